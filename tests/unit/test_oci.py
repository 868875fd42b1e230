"""State and bundle: what the runtimes write is understood, what nobody should write is an error with a place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from nvc.base.errors import ContainerError
from nvc.base.files import closing
from nvc.request.oci import (
    MAX_CONFIG,
    MAX_STATE,
    ContainerState,
    Malformed,
    Mount,
    container_of,
    read_container,
    read_state,
)

#: As each runtime writes it (measured, or read from its source).
RUNC = {
    "ociVersion": "1.0.2-dev",
    "id": "x",
    "status": "creating",
    "pid": 4242,
    "bundle": "/run/b",
    "annotations": None,
}
CRUN = {
    "ociVersion": "1.0",
    "id": "x",
    "status": "created",
    "pid": 4242,
    "root": "rootfs",
    "bundle": "/run/b",
}
YOUKI = {
    **RUNC,
    "status": {"kind": "Creating"},
    "created": "2026-11-21T10:00:00Z",
    "creator": 0,
    "useSystemd": 1,
}
MINIMAL: dict[str, Any] = {"ociVersion": "1.0.2", "process": {}, "root": {"path": "rootfs"}}


def state_of(data: bytes, tmp_path: Any) -> ContainerState:
    """What `read_state` makes of these bytes."""
    path = tmp_path / "state"
    path.write_bytes(data)
    with closing(os.open(path, os.O_RDONLY)) as fd:
        return read_state(fd)


@pytest.mark.parametrize("document", [RUNC, CRUN, YOUKI], ids=["runc", "crun", "youki"])
def test_states_of_the_runtimes(document: dict[str, Any], tmp_path: Any) -> None:
    assert state_of(json.dumps(document).encode(), tmp_path) == ContainerState(4242, "/run/b", document["id"])


def test_old_name_of_the_bundle(tmp_path: Any) -> None:
    assert state_of(b'{"pid": 7, "bundlePath": "/b"}', tmp_path) == ContainerState(7, "/b")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "empty"),
        (b"[]", "not an object"),
        (b'{"pid": 1}', "bundle: missing or not an absolute path"),
        (b'{"pid": 1, "bundle": "b"}', "not an absolute path"),
        (b'{"pid": 1, "bundle": ["/b"]}', "not an absolute path"),
        (b'{"pid": 1, "bundle": "/b\\u0000c"}', "not an absolute path"),
        (b'{"pid": 1, "bundle": "/\\ud800"}', "not an absolute path"),
        (b'{"pid": "1", "bundle": "/b"}', "pid: not a process id"),
        (b'{"pid": -2, "bundle": "/b"}', "not a process id"),
        (b'{"pid": true, "bundle": "/b"}', "not a process id"),
        (b'{"pid": 1e3, "bundle": "/b"}', "not a process id"),
        (b'{"pid": 99999999, "bundle": "/b"}', "not a process id"),
        (b" " * (MAX_STATE + 1), "larger than"),
        (b"[" * 1000, "brackets"),
    ],
)
def test_a_bad_state(data: bytes, cause: str, tmp_path: Any) -> None:
    with pytest.raises(ContainerError, match=cause):
        state_of(data, tmp_path)


def test_closed_standard_input(tmp_path: Any) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(ContainerError, match="standard input: is a directory"):
        read_state(directory)
    os.close(directory)


def test_a_whole_configuration() -> None:
    document = {
        **MINIMAL,
        "process": {
            "env": ["A=1", "B=2=3", "A=last", "NO_VALUE"],
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"]},
        },
        "mounts": [{"destination": "/d", "source": "/s", "type": "bind"}, {"destination": "/proc"}],
        "linux": {"mountLabel": "u:r:t:s0:c1,c2"},
        "annotations": {"key": "value"},
        "unknown": {"to": ["nvc"]},
    }
    container = container_of(document, "/b")
    assert container.rootfs == "/b/rootfs"
    assert container.environment == {"A": "last", "B": "2=3"}
    assert container.privileged
    assert container.mounts == (Mount("/s", "/d"), Mount("", "/proc", False))
    assert container.mount_label == "u:r:t:s0:c1,c2"
    assert container.annotations == {"key": "value"}


@pytest.mark.parametrize(("path", "rootfs"), [("/abs/r", "/abs/r"), ("r", "/b/r"), ("../r", "/b/../r")])
def test_rootfs_is_relative_to_the_bundle(path: str, rootfs: str) -> None:
    assert container_of({**MINIMAL, "root": {"path": path}}, "/b").rootfs == rootfs


@pytest.mark.parametrize(
    ("capabilities", "privileged"),
    [
        (["CAP_SYS_ADMIN"], True),  # before 1.0.0-rc5
        (["CAP_CHOWN"], False),
        ({"bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"]}, True),
        ({"effective": ["CAP_SYS_ADMIN"], "permitted": ["CAP_SYS_ADMIN"]}, False),
        ({"bounding": None}, False),
        ({}, False),
    ],
)
def test_privileged_is_the_bounding_set(capabilities: Any, privileged: bool) -> None:
    assert (
        container_of({**MINIMAL, "process": {"capabilities": capabilities}}, "/b").privileged is privileged
    )


def broken() -> Iterator[tuple[Any, str]]:
    """Configurations with one thing wrong, and what must be said."""
    yield [], "not an object"
    for name in ("ociVersion", "process", "root"):
        yield {key: value for key, value in MINIMAL.items() if key != name}, f"{name} is missing"
        yield {**MINIMAL, name: 5}, f"{name} is of the wrong type"
    yield {**MINIMAL, "root": {}}, "root.path is missing"
    yield {**MINIMAL, "root": {"path": 5}}, "root.path is not a path"
    yield {**MINIMAL, "root": {"path": "/a\0b"}}, "root.path is not a path"
    yield {**MINIMAL, "root": {"path": "/" + "x" * 5000}}, "root.path is not a path"
    for value in ("A=1", [5], {"A": "1"}):
        yield {**MINIMAL, "process": {"env": value}}, "process.env"
    for value in ("CAP_SYS_ADMIN", 5, {"bounding": "CAP_SYS_ADMIN"}):
        yield {**MINIMAL, "process": {"capabilities": value}}, "process.capabilities"
    for value in ({}, [5], [{"source": 5}], [{"destination": []}]):
        yield {**MINIMAL, "mounts": value}, "mount"
    yield {**MINIMAL, "linux": []}, "linux"
    for value in ([], {"a": 5}):
        yield {**MINIMAL, "annotations": value}, "annotations"


@pytest.mark.parametrize(("document", "cause"), list(broken()))
def test_a_bad_configuration(document: Any, cause: str) -> None:
    with pytest.raises(Malformed, match=cause):
        container_of(document, "/b")


def test_reading_a_bundle(tmp_path: Any) -> None:
    bundle, path = str(tmp_path), tmp_path / "config.json"
    with pytest.raises(ContainerError, match="read bundle: .*config.json: no such file or directory"):
        read_container(bundle)
    path.mkdir()
    with pytest.raises(ContainerError, match="not a regular file"):
        read_container(bundle)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ContainerError, match="not a regular file"):
        read_container(bundle)
    path.unlink()
    path.write_text(json.dumps(MINIMAL))
    assert read_container(bundle).rootfs == f"{bundle}/rootfs"
    path.write_text(json.dumps(MINIMAL)[:-1])
    with pytest.raises(ContainerError, match="config.json: brackets do not match: truncated"):
        read_container(bundle)
    os.truncate(path, 100 << 20)  # sparse
    with pytest.raises(ContainerError, match=f"larger than {MAX_CONFIG} bytes"):
        read_container(bundle)


@pytest.mark.parametrize("id", ["7", '"a\\u0000b"', "[]", '"%s"' % ("x" * 2000), '"\\ud800"'])
def test_an_id_that_is_none(id: str, tmp_path: Any) -> None:
    """It only names a slice: a state without a sound one is no reason not to start a container."""
    assert state_of(f'{{"pid": 7, "bundle": "/b", "id": {id}}}'.encode(), tmp_path) == ContainerState(7, "/b")

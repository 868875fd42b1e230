"""Specification files: written at once or not at all, read whatever they hold, moved below another root."""

from __future__ import annotations

import json
import os
import re
import resource
from typing import Any

import pytest
from support.cdi import document

from nvc.base.errors import InputError
from nvc.base.files import closing
from nvc.frontends.cdi.store import (
    CdiError,
    check_conflicts,
    open_directory,
    read_directory,
    split_path,
    text_of,
    write_in,
)
from nvc.frontends.cdi.transform import transform_root
from nvc.frontends.cdi.validate import problems


def write(directory: str, name: str, data: bytes) -> bool:
    with closing(open_directory(directory, create=False, private=False)) as fd:
        return write_in(fd, name, data, f"{directory}/{name}")


def put(directory: str, name: str, content: Any) -> str:
    path = f"{directory}/{name}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_is_written_once(scratch: str) -> None:
    old = os.umask(0o077)
    try:
        assert write(scratch, "a.json", b"one\n")
    finally:
        os.umask(old)
    first = os.stat(f"{scratch}/a.json")
    assert first.st_mode & 0o7777 == 0o644 and os.listdir(scratch) == ["a.json"]
    assert not write(scratch, "a.json", b"one\n")
    assert os.stat(f"{scratch}/a.json").st_mtime_ns == first.st_mtime_ns
    with open(f"{scratch}/a.json", "rb") as held:
        assert write(scratch, "a.json", b"two\n")
        assert held.read() == b"one\n"  # who has it open keeps a whole one
    assert os.stat(f"{scratch}/a.json").st_ino != first.st_ino


def test_a_wrong_mode_is_mended(scratch: str) -> None:
    write(scratch, "a.json", b"one\n")
    os.chmod(f"{scratch}/a.json", 0o600)
    assert write(scratch, "a.json", b"one\n")
    assert os.stat(f"{scratch}/a.json").st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo"])
def test_only_a_regular_file_is_replaced(scratch: str, kind: str) -> None:
    """Nor is anything written through a link, though /dev/stdout is one."""
    path, victim = f"{scratch}/a.json", put(scratch, "victim", "precious")
    {
        "link": lambda: os.symlink(victim, path),
        "dangling": lambda: os.symlink("nowhere", path),
        "directory": lambda: os.mkdir(path),
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    before = os.lstat(path)
    with pytest.raises(CdiError, match="not a regular file"):
        write(scratch, "a.json", b"new")
    assert os.lstat(path).st_ino == before.st_ino
    with open(victim, encoding="utf-8") as file:
        assert file.read() == "precious"


def test_a_failed_write_leaves_the_old_file(scratch: str) -> None:
    write(scratch, "a.json", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, limits[1]))
    try:
        with pytest.raises(CdiError, match="file too large"):
            write(scratch, "a.json", b"new and longer")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(scratch) == ["a.json"]
    with open(f"{scratch}/a.json", "rb") as file:
        assert file.read() == b"old"


def test_a_directory_of_others_is_refused(scratch: str) -> None:
    os.chmod(scratch, 0o777)
    with pytest.raises(CdiError, match="can be changed by others"):
        open_directory(scratch, create=False, private=True)
    link = f"{scratch}/cdi"
    os.symlink(".", link)
    with pytest.raises(CdiError, match="can be changed by others"):
        open_directory(link, create=True, private=True)
    os.chmod(scratch, 0o755)
    os.close(open_directory(link, create=True, private=True))


@pytest.mark.parametrize("path", ["", "dir/", ".", "..", "a/..", "a\0b"])
def test_output_must_be_a_file(path: str) -> None:
    with pytest.raises(InputError, match="--output"):
        split_path(path)


def test_output_without_a_directory() -> None:
    assert split_path("a.json") == (".", "a.json") and split_path("/etc/cdi/a.json") == (
        "/etc/cdi",
        "a.json",
    )


def test_a_directory_is_read_whatever_is_in_it(scratch: str) -> None:
    made = document()
    put(scratch, "good.json", made)
    put(scratch, "good.yaml", text_of(made, "yaml"))
    put(scratch, "truncated.json", json.dumps(made)[:500])
    put(scratch, "truncated.yaml", text_of(made, "yaml").split("containerEdits")[0])
    put(scratch, "empty.json", "")
    put(scratch, "empty.yaml", "")
    put(scratch, "wrong.json", {**made, "cdiVersion": "0.2.9"})
    put(scratch, "deep.json", "[" * 100000)
    put(scratch, "ignored.yml", made)
    put(scratch, ".hidden.json", made)
    os.symlink("nowhere", f"{scratch}/dangling.json")
    os.mkfifo(f"{scratch}/fifo.json")
    os.mkdir(f"{scratch}/directory.json")
    found = {os.path.basename(file.path): file for file in read_directory(scratch)}
    assert set(found) == {
        "good.json", "good.yaml", "truncated.json", "truncated.yaml", "empty.json", "empty.yaml", "wrong.json",
        "deep.json", "dangling.json", "fifo.json", "directory.json",
    }  # fmt: skip
    good = {name for name, file in found.items() if not file.problems}
    assert good == {"good.json", "good.yaml"}
    assert found["good.json"].devices() == found["good.yaml"].devices()
    assert found["good.json"].devices()[0] == "nvidia.com/gpu=0"
    assert all(file.devices() == [] for name, file in found.items() if name not in good)


def test_no_directory_has_no_files(scratch: str) -> None:
    assert read_directory(f"{scratch}/none") == []
    with pytest.raises(CdiError):
        read_directory(put(scratch, "file", ""))


def test_a_device_of_another_file_is_a_conflict(scratch: str) -> None:
    """Engines would know neither."""
    made = document()
    put(scratch, "other.yaml", text_of(made, "yaml"))
    fd = open_directory(scratch, create=False, private=True)
    with pytest.raises(CdiError, match=re.escape(f"is also in {scratch}/other.yaml")):
        check_conflicts(fd, scratch, "ours.json", made)
    check_conflicts(fd, scratch, "other.yaml", made)
    check_conflicts(fd, scratch, "ours.json", document(device_class="slice"))
    os.close(fd)


MOVED = document(hook_path="/run/driver/usr/bin/nvc-cdi-hook")


def test_transform_gives_nodes_a_source_and_raises_the_version() -> None:
    plain = document(strategies=("uuid",))
    made = transform_root(plain, "/", "/host", "host")
    node = made["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert (node["path"], node["hostPath"]) == ("/dev/nvidia1", "/host/dev/nvidia1")
    assert (plain["cdiVersion"], made["cdiVersion"]) == ("0.3.0", "0.5.0") and problems(made) == []
    back = transform_root(made, "/host", "/", "host")
    assert "hostPath" not in back["devices"][0]["containerEdits"]["deviceNodes"][0]


def test_transform_arguments_as_other_tools_write_them() -> None:
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "../a::/old/b", "--folder", "/old", "/old"],
    }
    made = {**MOVED, "containerEdits": {"hooks": [hook]}}
    found = transform_root(made, "/old", "/new", "container")["containerEdits"]["hooks"][0]
    assert found["args"][2:] == ["--link", "../a::/new/b", "--folder", "/new", "/old"]


@pytest.mark.parametrize(("old", "new"), [("run", "/y"), ("/run", "y"), ("", "/y"), ("/a\0", "/y")])
def test_transform_wants_absolute_roots(old: str, new: str) -> None:
    with pytest.raises(InputError, match="absolute"):
        transform_root(MOVED, old, new, "host")

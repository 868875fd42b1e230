"""What doctor reads of others: whatever stands there, it ends with findings and with nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import examples

from nvc.base.errors import NvcError
from nvc.discovery.containers import running
from nvc.doctor import OK, ORDER, WARNING, Check, Fact, Row
from nvc.doctor.host import driver, registrations, system
from nvc.frontends.engines import containerd, crio, docker, podman

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = (
    "runtimes", "default-runtime", "path", "nvc", "config", "labels", "init_process_pid", "pid", "bundle", "hook",
)  # fmt: skip
DOCUMENTS = st.dictionaries(
    st.sampled_from(KEYS), VALUES | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3), max_size=5
)
ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))


def test_what_is_well_has_no_commands() -> None:
    rows = [Row(status, "nvcd", run=("nvcd --stop",)) for status in (OK, WARNING)]
    assert [row.of(Fact(run=["nvcd &"])).commands for row in rows] == [(), ("nvcd --stop", "nvcd &")]


@pytest.fixture
def place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A directory in which files of engines are looked for."""
    base = str(tmp_path)
    monkeypatch.setattr(docker, "CONFIG", f"{base}/daemon.json")
    monkeypatch.setattr(containerd, "CONFIG", f"{base}/config.toml")
    monkeypatch.setattr(crio, "MAIN", f"{base}/crio.conf")
    monkeypatch.setattr(crio, "DROP_INS", f"{base}/crio.conf.d")
    monkeypatch.setattr(podman, "MAIN", f"{base}/containers.conf")
    monkeypatch.setattr(podman, "CONFIG", f"{base}/containers.conf.d/50.conf")
    monkeypatch.setattr(registrations, "DEFAULTS", (f"{base}/hooks.d",))
    monkeypatch.setattr(system, "TRANSIENT", (base,))
    monkeypatch.setattr(driver, "_KMSG", f"{base}/kmsg")
    os.mkdir(f"{base}/hooks.d")
    yield base


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as out:
        out.write(data)


@pytest.mark.parametrize("ids", [("web-1", "web-10"), ("web-10", "web-1")])
def test_a_whole_id_comes_before_one_that_begins_like_it(
    place: str, monkeypatch: pytest.MonkeyPatch, ids: tuple[str, ...]
) -> None:
    monkeypatch.setattr(running, "STATES", tuple(f"{place}/run/{id}" for id in ids))
    for id in ids:
        os.makedirs(f"{place}/run/{id}")
        write(f"{place}/run/{id}/state.json", b'{"init_process_pid": %d}' % os.getpid())
    assert [running.resolve(id).id for id in ("web-1", "web-10")] == ["web-1", "web-10"]
    assert running.resolve("web-").id == ids[0]


@pytest.mark.parametrize("pid", [1 << 32, -1, 1 << 100])
def test_a_state_that_a_user_has_made_up(place: str, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """Whoever looks for another container goes on."""
    monkeypatch.setattr(running, "STATES", (f"{place}/made",))
    os.makedirs(f"{place}/made")
    write(f"{place}/made/state.json", b'{"init_process_pid": %d}' % pid)
    assert running.resolve(str(os.getpid())).id == ""
    write(f"{place}/made/state.json", b'{"config": {"labels": ["bundle=/a\\u0000", "bundle=/\\ud800"]}}')
    assert running.read_state(f"{place}/made") == (0, "")


@ONCE
@given(data=st.binary(max_size=300) | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
def test_any_bytes(place: str, data: bytes) -> None:
    for name in (
        "daemon.json", "config.toml", "crio.conf", "containers.conf", "hooks.d/any.json", "x.scope",
    ):  # fmt: skip
        write(f"{place}/{name}", data)
    for name in ("state.json", "status"):
        write(f"{place}/{name}", data)
        pid, bundle = running.read_state(place)
        assert type(pid) is int and type(bundle) is str
        os.unlink(f"{place}/{name}")
    write(f"{place}/kmsg", data + b"NVRM: Xid (PCI:0): 79, x\n" + data)
    look: Any = None
    for check in registrations.CHECKS:
        assert all(finding.status in ORDER for finding in check.run(look))
    assert all(fact.scope == "x.scope" for fact in system.lost_by("x.scope", 1))
    lines = driver.kernel_log()
    assert all(line.isprintable() for line in lines)
    assert ("PCI:0", 79) in driver.xids(lines)


def test_a_state_that_is_of_the_wrong_kind(place: str) -> None:
    for config in (["labels"], {"labels": 7}, {"labels": [7, "bundle=/b"]}, "labels", None):
        write(f"{place}/state.json", json.dumps({"config": config, "init_process_pid": "1"}).encode())
        assert running.read_state(place) == (
            0,
            "/b" if isinstance(config, dict) and config["labels"] != 7 else "",
        )


@given(name=st.text(max_size=40))
def test_any_name_of_a_container(name: str) -> None:
    try:
        found = running.resolve(name)
    except NvcError as error:
        assert "\n" not in str(error)
    else:
        assert os.path.exists(f"/proc/{found.pid}")


def test_a_scope_of_systemd(place: str) -> None:
    look: Any = None
    os.mkdir(f"{place}/docker-1.scope.d")
    write(
        f"{place}/docker-1.scope.d/50.conf", b"[Scope]\nDevicePolicy=strict\nDeviceAllow=/dev/char/1:3 rwm\n"
    )
    (finding,) = Check("", "", lambda _: system.lost_by("docker-1.scope", 42), system.LOST).run(look)
    assert "process 42 loses its GPUs" in finding.text and "docker-1.scope" in finding.commands[0]
    for allowed in (b"char-nvidia rw", b"/dev/nvidia0 rw", b"/dev/char/195:0 rw", b"char-* rwm"):
        write(f"{place}/docker-1.scope.d/60.conf", b"[Scope]\nDeviceAllow=" + allowed + b"\n")
        assert not list(system.lost_by("docker-1.scope", 42)), allowed


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/system.slice/docker-1.scope", "docker-1.scope"),
        ("/machine.slice/libpod-2.scope/container", "libpod-2.scope"),
        ("/system.slice/docker-1.scope/docker-2.scope", "docker-1.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-2.scope", ""),
        ("/user.slice/user-1000.slice/session-4.scope/docker-2.scope", ""),
        ("/init.scope", ""),
        ("/", ""),
    ],
)
def test_the_scope_of_a_cgroup(path: str, scope: str) -> None:
    """One that is called as the scope of others is none: else doctor would advise to give those GPUs."""
    assert system.scope_in(path) == scope

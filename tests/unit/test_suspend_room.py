"""Room for a slice that is suspended: on the host, in its cgroup, and on the GPU when it comes back."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.suspend.room import (
    GPU_SPARE,
    gpu_refusal,
    host_refusal,
    needed,
    resident,
    size_refusal,
    stopped_refusal,
    unclaimed,
)
from nvc.model.slices.suspension import HOST_SPARE, Saved

GIB = 1 << 30
ONE, OTHER = Saved(10, 1, "GPU-a", 4 * GIB), Saved(11, 1, "GPU-a", 2 * GIB)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A /proc and cgroups with two processes in one container."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {100 << 20} kB\n")
    for pid in (10, 11):
        write(tmp_path / f"proc/{pid}/cgroup", "0::/pods/web\n")
        write(tmp_path / f"proc/{pid}/status", "Name:\tState: T\nState:\tS (sleeping)\nVmSize:\t1 kB\n")
    write(tmp_path / "cgroup/cgroup.controllers", "memory\n")
    write(tmp_path / "cgroup/pods/memory.max", "max\n")
    return tmp_path


def limit(host: Path, group: str, most: int, used: int, cache: int = 0) -> None:
    write(host / f"cgroup/{group}/memory.max", f"{most}\n")
    write(host / f"cgroup/{group}/memory.current", f"{used}\n")
    write(host / f"cgroup/{group}/memory.stat", f"anon 1\ninactive_file {cache}\n")


def refused(host: Path, *leaving: Saved) -> str:
    found = host_refusal((ONE, OTHER), leaving, str(host / "proc"), str(host / "cgroup"))
    return f"{found.path}: {found.cause}" if found else ""


def test_a_host_without_room(host: Path) -> None:
    free = 6 * GIB + HOST_SPARE
    write(host / "proc/meminfo", f"MemAvailable: {free >> 10} kB\n")
    assert refused(host) == ""
    write(host / "proc/meminfo", f"MemAvailable: {(free >> 10) - 1} kB\n")
    assert "6 GiB are to be kept in the host's memory, which has " in refused(host)


def test_two_are_not_granted_the_same_memory_of_the_host(host: Path) -> None:
    write(host / "proc/meminfo", f"MemAvailable: {(9 * GIB + HOST_SPARE) >> 10} kB\n")
    write(host / "proc/12/cgroup", "0::/pods/other\n")
    leaving = Saved(12, 1, "GPU-b", 3 * GIB)
    assert refused(host, leaving) == ""
    assert "10 GiB are to be kept in the host's memory" in refused(host, leaving, leaving.replace(bytes=GIB))
    limit(host, "pods/other", GIB, 0)
    assert refused(host, leaving) == "", "what has begun to leave is not judged again"
    limit(host, "pods", 8 * GIB, 0)
    assert "pods: 9 GiB are to be kept in the memory of this cgroup" in refused(host, leaving)


@pytest.mark.parametrize("group", ["pods/web", "pods"])
def test_a_cgroup_without_room(host: Path, group: str) -> None:
    """Its own or one above it; all processes of it count together, and pages of files do not."""
    limit(host, group, 10 * GIB, 5 * GIB)
    assert refused(host) == (
        f"{host}/cgroup/{group}: 6 GiB are to be kept in the memory of this cgroup, which has 5 GiB left"
    )
    limit(host, group, 10 * GIB, 5 * GIB, cache=GIB)
    assert refused(host) == ""


def test_a_cgroup_of_version_1(host: Path) -> None:
    os.unlink(host / "cgroup/cgroup.controllers")
    for pid in (10, 11):
        write(host / f"proc/{pid}/cgroup", "5:cpu:/x\n4:memory:/web\n")
    for name, value in (("limit_in_bytes", GIB), ("usage_in_bytes", 0)):
        write(host / f"cgroup/memory/web/memory.{name}", f"{value}\n")
    assert refused(host).startswith(f"{host}/cgroup/memory/web: ")
    write(host / "cgroup/memory/web/memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
    assert refused(host) == ""


def test_an_operator_s_bound(host: Path) -> None:
    assert size_refusal(0, 99 * GIB, (ONE, OTHER)) is size_refusal(7 * GIB, GIB, (ONE, OTHER)) is None
    found = size_refusal(7 * GIB, 2 * GIB, (ONE, OTHER))
    assert found is not None and "6 GiB are to be kept" in found.cause and "5 GiB of 7 GiB are left" in found.cause
    found = size_refusal(7 * GIB, 9 * GIB, (ONE, OTHER))  # it was lowered
    assert found is not None and "0 MiB of 7 GiB are left" in found.cause
    assert resident(10, str(host / "proc")) == resident(99, str(host / "proc")) == 0
    write(host / "proc/10/status", "Name:\tVmRSS: 1\nVmRSS:\t   12 kB\n")
    assert resident(10, str(host / "proc")) == 12 << 10


@pytest.mark.parametrize(("state", "frozen"), [("THAWED", False), ("FREEZING", True), ("FROZEN", True)])
def test_a_frozen_cgroup_of_version_1(host: Path, state: str, frozen: bool) -> None:
    """Each hierarchy has a place of its own for a process."""
    os.unlink(host / "cgroup/cgroup.controllers")
    write(host / "proc/10/cgroup", "5:freezer:/docker/web\n4:memory:/other\n0::/\n")
    write(host / "cgroup/freezer/docker/web/freezer.state", f"{state}\n")
    found = stopped_refusal((10,), str(host / "proc"), str(host / "cgroup"))
    assert (found is not None) == frozen
    assert found is None or found.path == f"{host}/cgroup/freezer/docker/web" and "unpause" in found.hint


def test_processes_that_cannot_answer(host: Path) -> None:
    where = str(host / "proc"), str(host / "cgroup")
    assert stopped_refusal((10, 11, 12), *where) is None  # one has ended
    write(host / "cgroup/pods/cgroup.events", "populated 1\nfrozen 1\n")
    found = stopped_refusal((10, 11), *where)
    assert found is not None and found.path == f"{host}/cgroup/pods" and "frozen" in found.cause
    for letter in "Tt":
        write(host / "proc/11/status", f"Name:\ta\nState:\t{letter} (stopped)\n")
        found = stopped_refusal((11,), *where)
        assert found is not None and found.path.endswith("/proc/11") and "kill -CONT 11" in found.hint


def test_a_gpu() -> None:
    needs = needed((ONE, OTHER))
    assert needs == {"GPU-a": 6 * GIB + GPU_SPARE}
    assert gpu_refusal(needs, {"gpu-a": needs["GPU-a"]}) is None
    found = gpu_refusal(needs, {"gpu-a": needs["GPU-a"] - 1})
    assert found is not None and found.path == "GPU-a" and "6 GiB" not in found.hint
    assert gpu_refusal(needed((ONE,)), {}) is not None


def test_what_is_on_its_way_has_its_room() -> None:
    """One that comes is not all there yet; one that leaves may come back, if another process cannot leave."""
    seen: Any = SimpleNamespace(uuid="GPU-A", memory=16 * GIB, used=3 * GIB)
    users: list[Any] = [SimpleNamespace(pid=10, uuid="GPU-a", used=3 * GIB)]
    assert unclaimed([seen], users, ()) == {"gpu-a": 13 * GIB}
    assert unclaimed([seen], users, (ONE, OTHER)) == {"gpu-a": 10 * GIB}

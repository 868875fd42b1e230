"""Room for a slice that is suspended: on the host, in its cgroup, and on the GPU when it comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.daemon.suspend.room import GPU_SPARE, gpu_refusal, host_refusal, stopped_refusal
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


def refused(host: Path) -> str:
    found = host_refusal((ONE, OTHER), str(host / "proc"), str(host / "cgroup"))
    return f"{found.path}: {found.cause}" if found else ""


def test_a_host_without_room(host: Path) -> None:
    free = 6 * GIB + HOST_SPARE
    write(host / "proc/meminfo", f"MemAvailable: {free >> 10} kB\n")
    assert refused(host) == ""
    write(host / "proc/meminfo", f"MemAvailable: {(free >> 10) - 1} kB\n")
    assert "6 GiB are to be kept in the host's memory, which has " in refused(host)


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
    free = {"gpu-a": 6 * GIB + GPU_SPARE}
    assert gpu_refusal((ONE, OTHER), frozenset(), free) is None
    found = gpu_refusal((ONE, OTHER), frozenset(), {"gpu-a": free["gpu-a"] - 1})
    assert found is not None and found.path == "GPU-a" and "6 GiB" not in found.hint
    assert gpu_refusal((ONE, OTHER), frozenset({11}), {"gpu-a": 4 * GIB + GPU_SPARE}) is None
    assert gpu_refusal((ONE,), frozenset(), free, (OTHER,)) is None
    assert gpu_refusal((ONE,), frozenset(), free, (OTHER, OTHER)) is not None
    assert gpu_refusal((ONE,), frozenset(), {}) is not None

"""Lines of what the kernel writes: it escapes blanks and newlines in a mount's name, and nothing in a cgroup's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.apply import target
from nvc.base.files import closing, lines_of
from nvc.daemon import stop
from nvc.daemon.io import lineage
from nvc.daemon.suspend.room import host_refusal
from nvc.discovery.containers import running
from nvc.kernel import O_PATH
from nvc.model.slices.suspension import Saved
from nvc.slices.store.process_info import cgroup_of

ODD = ["\r", "\x0b", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
MOUNT = "31 23 0:27 / {} rw,nosuid shared:5 - tmpfs nvc rw\n"


def process(tmp_path: Path, cgroup: str) -> str:
    """What a number in /proc is to be, for a process in that cgroup."""
    (tmp_path / "cgroup").write_bytes(f"0::{cgroup}\n".encode())
    return f"..{tmp_path}"


@pytest.mark.parametrize(
    ("text", "lines"), [("", []), ("a", ["a"]), ("a\n", ["a"]), ("a\n\nb\n", ["a", "", "b"]), ("\n", [""])]
)
def test_lines(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines
    assert lines_of(text.encode()) == [line.encode() for line in lines]


@pytest.mark.parametrize("odd", ODD)
def test_a_mount_with_an_odd_name(tmp_path: Path, odd: str) -> None:
    names = [f"/tmp/a{odd}b", f"/tmp/a{odd}9\\0409\\0400:1\\040/\\040/proc\\040rw\\040-\\040proc\\040proc"]
    (tmp_path / "mountinfo").write_bytes("".join(map(MOUNT.format, names)).encode())
    found = target._mounts(str(tmp_path / "mountinfo"))
    assert found == [(name, "tmpfs", "nvc") for name in names]


@pytest.mark.parametrize("odd", ODD)
def test_a_cgroup_with_an_odd_name(tmp_path: Path, odd: str) -> None:
    """Its name is of no more than its own line: it does not put a process into another container."""
    forged = f"/mine/x{odd}0::/docker/{'0' * 64}/docker-{'1' * 64}.scope/nvcd.service"
    number = process(tmp_path, forged)
    assert lineage._cgroups(number) == {"0": forged}
    assert running._cgroups(number) == [forged]  # type: ignore[arg-type]
    with closing(os.open(tmp_path, O_PATH | os.O_DIRECTORY)) as proc:
        assert cgroup_of(proc) == forged
    (tmp_path / "cgroup").write_bytes(f"0::/{odd}9::/late\n0::/mine\n".encode())
    with closing(os.open(tmp_path, O_PATH | os.O_DIRECTORY)) as proc:
        assert cgroup_of(proc) == f"/{odd}9::/late"


@pytest.mark.parametrize("odd", ODD)
def test_a_service_in_an_odd_name(tmp_path: Path, odd: str) -> None:
    assert stop._is_of_unit(process(tmp_path, f"/a/{stop.UNIT}"))  # type: ignore[arg-type]
    assert not stop._is_of_unit(process(tmp_path, f"/a/{stop.UNIT}{odd}0::/b"))  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ODD)
def test_room_in_a_cgroup_with_an_odd_name(tmp_path: Path, odd: str) -> None:
    """Its limit counts, not that of the cgroup that its name ends with."""
    group = f"x{odd}0::"
    for path, text in {
        "proc/meminfo": f"MemAvailable: {100 << 20} kB\n",
        "proc/10/cgroup": f"0::/{group}\n",
        "cgroups/cgroup.controllers": "memory\n",
        f"cgroups/{group}/memory.max": "4096\n",
        f"cgroups/{group}/memory.current": "0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(text.encode())
    saved = [Saved(10, 1, "GPU-a", 1 << 20)]
    found = host_refusal(saved, proc=f"{tmp_path}/proc", cgroups=f"{tmp_path}/cgroups")
    assert found is not None and found.path == f"{tmp_path}/cgroups/{group}"

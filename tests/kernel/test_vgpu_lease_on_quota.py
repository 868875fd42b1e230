"""A process in a slice holds a lease (fcntl(2), F_SETLEASE) on the slice's quota, which the host has to write."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, run
from support.fileleases import Lease
from support.host import host
from support.nvcd import CLI, Place, ask, eventually
from support.nvcd_programs import METRICS, Program, one, started
from support.rootfs import LIBS

from nvc.base import filelease
from nvc.kernel import LinuxKernel
from nvc.model.slices.entry import FILE_LEASE_TIME
from nvc.slices.store import registry
from nvc.slices.store.snapshot import snapshot

pytestmark = pytest.mark.driver(gpus=1)

#: Takes the lease again as soon as the kernel wants it back (`renews`), or does not give it back (`keeps`).
HOLDER = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
def take(*_):
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            pass
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            continue
        os.write(1, b"leased\\n")
        return
signal.signal(signal.SIGIO, take if sys.argv[2] == "renews" else signal.SIG_IGN)
take()
while True:
    signal.pause()
"""
#: nvc-cli, which waits less.
IMPATIENT = CLI.replace(";from", ";from nvc.slices.admin import change;change.FILE_LEASE_PATIENCE=0.3;from")


class Holder:
    """The process that has the lease."""

    def __init__(self, pid: int, driver: str, kind: str) -> None:
        words = ["nsenter", "-t", str(pid), "-m", sys.executable, "-c", HOLDER]
        pipe = subprocess.PIPE
        words += [f"{driver}{LIBS}/nvc/quota", kind]
        self.process = subprocess.Popen(words, stdout=pipe, env=CLEAN_ENV)

    def has_it(self) -> None:
        """Waits until it has taken the lease once more."""
        assert self.process.stdout is not None and self.process.stdout.readline() == b"leased\n"

    def end(self) -> None:
        with self.process:  # which closes its pipe and waits for it
            self.process.kill()


@pytest.fixture
def program(sliced: Callable[..., Program]) -> Program:
    return sliced("4g")


@pytest.fixture
def pid(place: Place, launcher: str, program: Program) -> int:
    """Of a process of the slice."""
    found = json.loads(run(*place.enter(launcher, "vgpu", "ls", "--format", "json"), env=CLEAN_ENV).stdout)
    return int(found["slices"][0]["processes"][0]["pid"])


@pytest.fixture
def held_by(pid: int, driver: str) -> Iterator[Callable[[str], Holder]]:
    made = []

    def hold(kind: str) -> Holder:
        made.append(Holder(pid, driver, kind))
        made[-1].has_it()
        return made[-1]

    yield hold
    for holder in made:
        holder.end()


def test_an_operator_ends_a_lease_that_is_renewed(
    place: Place, launcher: str, pid: int, held_by: Callable[[str], Holder]
) -> None:
    holder = held_by("renews")
    for words in (["set", str(pid), "--memory", "3g"], ["pause", str(pid)], ["resume", str(pid)]):
        run(*place.enter(launcher, "vgpu", *words), env=CLEAN_ENV)
        holder.has_it()


def test_who_keeps_a_lease_is_named(
    place: Place, driver: str, launcher: str, pid: int, held_by: Callable[[str], Holder]
) -> None:
    """nvcd goes on meanwhile, and takes the slice up when the lease has ended."""
    holder = held_by("keeps")
    named = f"process {holder.process.pid}"
    words = "vgpu", "pause", str(pid)
    refused = run(*place.enter(sys.executable, "-c", IMPATIENT, *words), env=CLEAN_ENV, check=False)
    assert refused.returncode == 1 and named in refused.stderr and "quota" in refused.stderr, refused.stderr
    started(place, driver, METRICS)
    (broken,) = ask(place)["broken"]
    assert named in broken["problem"] and "quota" in broken["problem"]
    holder.end()
    eventually(place, lambda state: not state["broken"] and one(state)["pids"])
    run(*place.enter(launcher, *words), env=CLEAN_ENV)


def test_all_leases_together_are_waited_for_as_long_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was waited for by itself, under the registry's lock: with 55 of them other starts gave up."""
    waits = []
    real = filelease.opened
    monkeypatch.setattr(filelease, "opened", lambda *words: (waits.append(words[3]), real(*words))[1])
    with host() as made:
        for _ in range(20):
            made.arrive(0, 5, 1)
        paths = [f"{registry.base_directory()}/{key}/quota" for key in made.keys]
        with Lease(":".join(paths[:-1])) as lease:
            assert not lease.refused
            known = snapshot(LinuxKernel(), locked=True)
    assert {one.entry.key for one in known.broken} == set(made.keys[:-1])
    assert all(f"process {lease.pid};" in one.cause for one in known.broken)
    assert [one.entry.key for one in known.slices] == made.keys[-1:]
    assert len(waits) == 19 and waits.count(0.0) == 18 and waits[0] <= FILE_LEASE_TIME
    assert known.broken_on("GPU-ffffffff-1111-2222-3333-444444444440") is None


def test_a_lease_does_not_keep_nvcd_from_denying(
    place: Place,
    driver: str,
    pid: int,
    program: Program,
    around: Callable[..., Program],
    held_by: Callable[[str], Holder],
) -> None:
    held_by("renews")
    started(place, driver, METRICS)
    assert program.code("alloc a 1g")[0] == 0
    assert around(pid).code("alloc a 4g")[0] == 0  # from now on it may be denied at any time
    eventually(place, lambda state: state["denied"])
    assert program.code("alloc b 2m")[0] != 0

"""Memory that NVML shows for a process that is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, PATIENCE

from nvc.daemon.audit.accountant import GRACE, Accountant, Balance
from nvc.daemon.audit.holders import HolderFinder
from nvc.daemon.audit.ledgers import AT_ONCE
from nvc.daemon.audit.nvml_client import DeviceSeen
from nvc.daemon.audit.verify import AGAIN, EXCESS, Verifier
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import Entry, EntryDevice
from nvc.model.slices.quota import QuotaDevice

UUID = "GPU-00000000-1111-2222-3333-444444444444"


def test_memory_that_outlives_its_process() -> None:
    """A child has the descriptors: NVML still lists a process that is gone, and it counts for its slice again."""
    slices: Any = SimpleNamespace(kernel=LinuxKernel(), by_key={}, living=list, say=lambda text: None)
    accountant = Accountant(slices, lambda text: None)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        device = DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((process.pid, GIB),))
        accountant.told((device,), 0)
        (user,) = accountant.users
    for passed, counted in ((1, 0), (GRACE, 0), (GRACE + 1, 1)):
        accountant.told((device,), passed)
        assert accountant.users == (user,) * counted, passed
    accountant.told((device.replace(processes=()),), 2 * GRACE)
    assert not accountant.users


def test_a_process_that_ends_while_the_ledgers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's answer is older than what the ledger says then. The difference is not held against the slice."""
    device = QuotaDevice(UUID, 2 * GIB)
    entry = Entry("1-2-3-4", "/none", 0, 0, "", "/lib", 0, (EntryDevice(UUID, "0", 0, ""),))
    known = SimpleNamespace(alive=True, entry=entry, devices=(device,))
    slices: Any = SimpleNamespace(kernel=LinuxKernel(), by_key={entry.key: known}, living=lambda: [entry])
    monkeypatch.setattr("nvc.daemon.audit.accountant.slice_of", lambda kernel, pid, living: entry)
    accountant = Accountant(slices, pytest.fail)
    monkeypatch.setattr(accountant, "change", pytest.fail)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:

        def ledger_after_its_end(known: object) -> tuple[int, ...]:
            process.kill()
            process.wait()
            return (0,)

        monkeypatch.setattr(accountant.ledgers, "model", ledger_after_its_end)
        accountant.told((DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((process.pid, GIB),)),), 0)
    assert [balance.truth for balance in accountant.balances] == [0]


def test_open_ledgers_are_looked_for_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"1-2-3-{number}" for number in range(AT_ONCE + 2)]
    slices: Any = SimpleNamespace(kernel=LinuxKernel(), by_key=dict.fromkeys(keys), living=list)
    accountant = Accountant(slices, pytest.fail)
    accountant.ledgers._open_ones = {key: number for number, key in enumerate(keys)}
    looked: list[int] = []

    def same(known: object, before: int) -> int:
        looked.append(before)
        return before

    monkeypatch.setattr(accountant.ledgers, "_open", same)
    accountant.ledgers.open_again()
    assert len(looked) == AT_ONCE
    accountant.ledgers.open_again()
    assert set(looked) == set(range(len(keys))) == set(accountant.ledgers._open_ones.values())


#: The program of a slice, with three processes: one that NVML lists ends, and two have a device open.
PROGRAM = """
import subprocess, sys
made = [subprocess.Popen(["sleep", "inf"], stdin=subprocess.DEVNULL, close_fds=True) for _ in range(2)]
user = subprocess.Popen(["sleep", "inf"])
print(*(one.pid for one in (*made, user)), flush=True)
sys.stdin.readline()
user.kill()
user.wait()
print(flush=True)
for one in made:
    print(one.wait(), flush=True)
    made[1].kill()
"""


@pytest.mark.parametrize("most", [0, 10_000_000_000])
def test_who_has_the_memory_of_the_dead_is_stopped(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Not those that NVML lists, nor processes of others. A look that ends at once leaves nothing open."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("nvc.daemon.audit.holders.nvidia_major", lambda majors: majors["mem"])
    monkeypatch.setattr("nvc.daemon.audit.holders.LOOK_TIME", most)
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(["sleep", "inf"], stdin=subprocess.DEVNULL) as stranger,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=CLEAN_ENV,
        ) as program,
    ):  # fmt: skip
        try:
            assert program.stdin is not None and program.stdout is not None
            holder, other, user = map(int, program.stdout.readline().split())
            key, start = "1-2-3-4", start_of(f"/proc/{program.pid}")
            entry = Entry(key, "/none", program.pid, start, "", "/lib", 0, ())
            slices: Any = SimpleNamespace(
                kernel=LinuxKernel(), by_key={}, living=lambda: [entry], names={}, say=lambda text: None, whose=str
            )
            accountant = Accountant(slices, pytest.fail)
            verifier = Verifier(accountant, {EXCESS: "stop"}, lambda text: None)
            device = DeviceSeen(UUID, 80 * GIB, 7 * GIB, 0, 0, 0, ((user, 6 * GIB), (other, GIB)))
            now = 0
            accountant.told((device,), now)
            assert [user.key for user in accountant.users] == [key, key]
            program.stdin.write("\n")
            program.stdin.flush()
            program.stdout.readline()
            while not any(event.action == f"stopped process {holder}" for event in verifier.events):
                now += GRACE + AGAIN
                accountant.told((device,), now)
                truth = sum(one.used for one in accountant.users)
                accountant.balances = (Balance(key, UUID, "0", 4 * GIB, 0, truth, ()),)
                verifier.look({}, (), now)
            assert program.stdout.readline() == "-9\n" and stranger.poll() is None
            looks = {event.action for event in verifier.events[:-1]}
            assert looks <= {f"process {user} is gone; found nobody who holds its memory"}
            assert bool(looks) == (most == 0)
            assert program.wait(timeout=PATIENCE) == 0
        finally:
            program.kill()
            stranger.kill()
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "a directory for each of the two slices at most"


def finder(monkeypatch: pytest.MonkeyPatch, kernel: LinuxKernel, said: list[str]) -> HolderFinder:
    """For slices A and B; the slice A has all processes, as far as anybody asks."""
    entries: list[Any] = [SimpleNamespace(key=key) for key in "AB"]
    slices: Any = SimpleNamespace(kernel=kernel, living=lambda: entries, say=said.append)
    monkeypatch.setattr("nvc.daemon.audit.holders.nvidia_major", lambda majors: majors["mem"])
    monkeypatch.setattr("nvc.daemon.audit.holders.slice_of", lambda kernel, pid, living: entries[0])
    return HolderFinder(slices)


def test_a_file_that_cannot_be_told_hides_no_node_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(LinuxKernel):
        """For the file of a tenant whose file system does not answer."""

        def identity(self, fd: int) -> Any:
            found = super().identity(fd)
            if found.inode == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return found

    said: list[str] = []
    with tempfile.TemporaryFile() as file:
        failing = os.fstat(file.fileno()).st_ino
        with subprocess.Popen(["sleep", "inf"], stdin=file, stdout=subprocess.DEVNULL) as process:
            try:
                listed = {**vars(os), "listdir": lambda path: [str(process.pid)]}
                monkeypatch.setattr("nvc.daemon.audit.holders.os", SimpleNamespace(**listed))
                found = finder(monkeypatch, Fails(), said).find("A", frozenset())
                assert found == (process.pid, start_of(f"/proc/{process.pid}"))
            finally:
                process.kill()
    assert said == [f"process {process.pid} has a file whose status cannot be read: Input/output error"]

"""When nvcd acts on what it finds, in time that the test lets pass."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from support import PATIENCE as LONG
from support import until

from nvc.daemon.audit import stale_accounts
from nvc.daemon.audit.accountant import GRACE, Accountant, Balance, User
from nvc.daemon.audit.nvml_client import DeviceSeen
from nvc.daemon.audit.verify import (
    AGAIN,
    BYPASS,
    EXCESS,
    PERSIST,
    TOLERANCE,
    UNREAD,
    Verifier,
)
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices import layout, ledger
from nvc.model.slices.entry import Entry
from nvc.model.slices.layout import DENIED
from nvc.model.slices.ledger import Account
from nvc.model.slices.quota import QuotaDevice
from nvc.request.config import Config
from nvc.slices.store.process_info import is_ending, is_here

KEY, UUID = "f-1-2-3", "GPU-00000000-1111-2222-3333-444444444440"
SECOND, HALF, GIB = 1_000_000_000, 500_000_000, 1 << 30
LIMIT = 4 * GIB
NAME = "ml/train/main"  # of the slice, for people


class World:
    """One slice on one device, and what NVML and the ledger say of it."""

    def __init__(self, **actions: str) -> None:
        config = Config()
        self.actions = {BYPASS: config.nvcd_on_bypass, EXCESS: config.nvcd_on_excess}
        self.actions |= actions
        self.said: list[str] = []
        self.ledger = -1
        self.known = SimpleNamespace(
            alive=True,
            entry=Entry(KEY, "/nowhere", 0, 0, "", "/nowhere", 0, ()),
            devices=(QuotaDevice(UUID, LIMIT, cores=10, policy=3),),
            uuids=(b"x",),
        )
        self.accountant: Any = SimpleNamespace(
            ledgers=SimpleNamespace(
                accounts={KEY: (Account(0, 5, "x", (GIB,)),)}, unread={}, descriptor=lambda key: self.ledger
            ),
            kernel=LinuxKernel(),
            users=(User(50, 1, 5, KEY, UUID, GIB),),
            balances=(),
            use=(),
            sampled={UUID.lower(): 0},
            slices=SimpleNamespace(by_key={KEY: self.known}, whose=lambda key: f"slice {key} ({NAME})"),
            outlived=lambda pid, start: False,
            change=self._change,
        )
        self.verifier = Verifier(self.accountant, self.actions, self.said.append)
        self.now = 1000 * SECOND

    def _change(self, key: str, change: Any, values: dict[str, int]) -> bool:
        self.known.devices = tuple(change(device, values[device.uuid]) for device in self.known.devices)
        return True

    def shows(self, truth: int, model: int = -1) -> bool:
        """NVML answers; whether the slice is denied anything after that."""
        pids = tuple(user.pid for user in self.accountant.users)
        books = truth if model < 0 else model
        self.accountant.balances = (Balance(KEY, UUID, "0", LIMIT, books, truth, pids),)
        self.verifier.look({}, (), self.now)
        (device,) = self.known.devices
        return bool(device.flags & DENIED)


def test_the_defaults_act() -> None:
    assert World().actions == {BYPASS: "report", EXCESS: "deny"}


def test_too_much_memory_is_denied_with_the_answer_that_shows_it() -> None:
    world = World()
    assert not world.shows(LIMIT + TOLERANCE)
    assert world.shows(LIMIT + TOLERANCE + 1)
    assert world.said == [f"excess: slice {KEY} ({NAME}) on {UUID} has 4160 MiB of 4 GiB; deny"]
    world.now += HALF
    assert world.shows(LIMIT + GIB) and len(world.said) == 1
    (denied,) = world.verifier.denied.values()
    assert (denied.kind, denied.uuid, denied.text) == (EXCESS, UUID, "has 5 GiB of 4 GiB")
    world.now += HALF
    assert not world.shows(LIMIT)
    assert world.said[1] == f"excess: slice {KEY} ({NAME}) on {UUID} is within its limits again; no longer denied"
    assert not world.verifier.ongoing and world.verifier.counts[EXCESS] == 1
    assert world.shows(LIMIT + GIB) and world.verifier.counts[EXCESS] == 2


def test_a_slice_that_is_gone_ends_what_was_found_of_it() -> None:
    world = World()
    assert world.shows(LIMIT + GIB)
    world.accountant.balances = world.accountant.users = ()
    world.accountant.slices.by_key.clear()
    world.verifier.look({}, (), world.now + HALF)
    assert world.said[1].endswith("is gone; over") and not world.verifier.ongoing


def test_two_causes_end_one_after_the_other() -> None:
    world = World(bypass="deny")
    world.accountant.ledgers.accounts = {KEY: ()}
    world.shows(LIMIT + GIB)
    world.now += SECOND
    assert world.shows(LIMIT + GIB) and len(world.verifier.ongoing) == 2
    assert world.shows(LIMIT) and "is within its limits again; over" in world.said[-1]
    world.accountant.ledgers.accounts = {KEY: (Account(0, 5, "x", (GIB,)),)}
    assert not world.shows(LIMIT) and "is within its limits again; no longer denied" in world.said[-1]


def test_the_next_process_is_stopped_where_one_was_not_enough() -> None:
    world = World(excess="stop")
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
    ):
        users = [
            User(process.pid, start_of(f"/proc/{process.pid}"), 5, KEY, UUID, used)
            for process, used in ((one, 3 * GIB), (other, 5 * GIB))
        ]
        world.accountant.users = tuple(users)
        world.shows(2 * LIMIT)
        assert other.wait(timeout=LONG) == -9
        world.accountant.users = (users[0],)
        # The driver may take a while to take back what the first one had.
        world.now += AGAIN - 1
        world.shows(LIMIT + GIB)
        assert one.poll() is None
        world.now += 1
        world.shows(LIMIT + GIB)
        assert one.wait(timeout=LONG) == -9
    assert [event.action for event in world.verifier.events] == [
        f"stopped process {process.pid}" for process in (other, one)
    ]


def test_a_ledger_that_cannot_be_read_hides_nobody() -> None:
    """A moment of it is nothing: nvcd reads no longer than it may."""
    world = World(bypass="deny")
    world.accountant.ledgers.accounts, world.accountant.ledgers.unread = {}, {KEY: "cut short"}
    assert not world.shows(GIB)
    world.now += UNREAD - 1
    assert not world.shows(GIB)
    world.now += 1
    assert world.shows(GIB)
    assert world.said == [
        f"bypass: slice {KEY} ({NAME}) on {UUID} uses the device, and its ledger cannot be read: cut short; deny"
    ]


@pytest.fixture
def books(scratch: str) -> Iterator[World]:
    """A slice whose ledger has 3 GiB of process 77, which has ended, and 1 GiB of process 5, which NVML lists."""
    world = World()
    data = bytearray(layout.LEDGER_SIZE)
    data[: layout.LEDGER_HEADER.size] = layout.LEDGER_HEADER.pack(
        layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, 2, 0, 0
    )
    for slot, (pid, used) in enumerate(((5, GIB), (77, 3 * GIB))):
        place = layout.LEDGER_HEADER.size + slot * layout.SLOT_HEADER.size
        layout.SLOT_HEADER.pack_into(data, place, pid, 1, 1, b"python")
        layout.AMOUNT.pack_into(data, layout.AMOUNTS_OFFSET + slot * layout.AMOUNT.size, 1, used, 0, 0)
    world.ledger = os.open(f"{scratch}/ledger", os.O_RDWR | os.O_CREAT)
    os.pwrite(world.ledger, data, 0)
    yield world
    os.close(world.ledger)


def books_of(world: World) -> tuple[Account, ...]:
    return ledger.parse_slots(os.pread(world.ledger, ledger.slots_size(1), 0), 1)


def look(world: World, truth: int = GIB) -> int:
    """The books are read, and NVML answers; what they have after that."""
    accounts = books_of(world)
    world.accountant.ledgers.accounts = {KEY: accounts}
    world.shows(truth, model=ledger.totals(accounts, 1)[0])
    return int(ledger.totals(books_of(world), 1)[0])


def test_a_line_of_many_dead_is_short() -> None:
    accounts = tuple(Account(slot, slot, "x" * 16, (GIB,)) for slot in range(layout.SLOTS))
    left = stale_accounts.StaleAccounts(0, accounts)
    assert left.owners.endswith(" and 508 more") and len(left.owners) < 120 and left.bytes == 512 * GIB


def never(world: World) -> bool:
    for _ in range(50):
        world.now += HALF
        if look(world) != 4 * GIB:
            return False
    return True


def test_books_of_a_process_that_lives_are_its_own(books: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have managed memory that is not on the device, and NVML need not list it."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        place = layout.LEDGER_HEADER.size + layout.SLOT_HEADER.size
        os.pwrite(books.ledger, struct.pack("<I", process.pid), place)
        monkeypatch.setattr(stale_accounts, "slice_of", lambda kernel, pid, entries: entries[0])
        assert never(books)
        monkeypatch.setattr(stale_accounts, "slice_of", lambda kernel, pid, entries: None)  # of another slice
        assert not never(books)


def test_books_of_a_process_that_nvml_lists_are_its_own(books: World) -> None:
    books.accountant.users += (User(70, 1, 77, "", UUID, GIB),)  # of what slice ever
    assert never(books)


def test_books_of_what_others_map_stay(books: World) -> None:
    share = layout.SHARE.pack(b"", 3 * GIB, 0, 2, 1, 0, b"\1" + bytes(63))
    os.pwrite(books.ledger, share, layout.SHARES_OFFSET)
    assert never(books) and "others may map what process 77 exported" in books.said[0]


def test_books_stay_where_nothing_can_be_told(books: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(stale_accounts, "pid_inside", failing)
    assert never(books) and not books.said


def test_balances_of_a_slice_that_has_gone_meanwhile(books: World) -> None:
    """As when the next ones could not be made."""
    look(books)
    books.accountant.slices.by_key.clear()
    books.verifier.look({}, (), books.now)
    assert not books.verifier.stale.found


def test_books_that_nvml_cannot_tell_of_stay(books: World) -> None:
    for _ in range(50):
        books.now += HALF
        assert look(books, truth=-1) == 4 * GIB


def test_a_process_has_a_second_to_claim_its_slot() -> None:
    world = World(bypass="deny")
    world.accountant.ledgers.accounts = {KEY: ()}
    assert not world.shows(GIB)
    world.now += PERSIST[BYPASS] - 1
    assert not world.shows(GIB)
    world.now += 1
    assert world.shows(GIB) and "bypass: process 50 of slice" in world.said[0]


def test_nothing_is_denied_when_nobody_verifies_any_more() -> None:
    world = World()
    assert world.shows(LIMIT + GIB)
    world.verifier.release()
    assert not world.known.devices[0].flags & DENIED


@pytest.mark.parametrize("inside", ["pass", "import ctypes; ctypes.CDLL(None).pthread_exit(None)"])
def test_a_process_that_ends_is_counted_for_nobody_for_a_while(inside: str) -> None:
    """Its memory is the driver's to take back; but a first thread that has ended does not hide the others."""
    whole = inside == "pass"
    start = "" if whole else "import sys, threading; threading.Thread(target=sys.stdin.read).start(); "
    slices: Any = SimpleNamespace(kernel=LinuxKernel(), by_key={}, living=list, say=lambda text: None)
    accountant = Accountant(slices, lambda text: None)
    with subprocess.Popen([sys.executable, "-c", start + inside], stdin=subprocess.PIPE) as process:
        began = start_of(f"/proc/{process.pid}")
        device = DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((process.pid, GIB),))

        def first_has_ended() -> bool:
            with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"

        until(first_has_ended)
        assert is_ending(process.pid) == whole and is_here(process.pid, began) != whole
        for passed in (0, GRACE):
            accountant.told((device,), passed)
            assert len(accountant.users) == (0 if whole else 1), passed


def test_a_process_that_does_not_end_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs in the driver: it has GRACE to end."""
    slices: Any = SimpleNamespace(kernel=LinuxKernel(), by_key={}, living=list, say=lambda text: None)
    accountant = Accountant(slices, lambda text: None)
    monkeypatch.setattr("nvc.daemon.audit.accountant.is_ending", lambda pid: True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        device = DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((process.pid, GIB),))
        for passed, counted in ((0, 0), (GRACE - 1, 0), (GRACE, 1)):
            accountant.told((device,), passed)
            assert len(accountant.users) == counted, passed


def test_the_first_process_of_a_claim_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it nobody shows the slice's ledger; with the answer of NVML that has it, it is read."""
    entry: Any = SimpleNamespace(key=KEY, pid=0, devices=(SimpleNamespace(index="0"),))
    known: Any = SimpleNamespace(
        alive=True, entry=entry, stamp=1, devices=(QuotaDevice(UUID, LIMIT),), quota=-1
    )
    slices: Any = SimpleNamespace(
        kernel=LinuxKernel(), by_key={KEY: known}, living=lambda: (entry,), say=lambda text: None
    )
    accountant = Accountant(slices, lambda text: None)
    view: Any = SimpleNamespace(sees=lambda entry: True, open_ledger=lambda *_, **__: 0)

    def look(_: object, pid: int) -> Any:
        os.stat(f"/proc/{pid}")  # a claim's slice has no first process: 0
        return nullcontext(view)

    monkeypatch.setattr("nvc.daemon.audit.ledgers.ProcessView", look)
    monkeypatch.setattr("nvc.daemon.audit.accountant.slice_of", lambda *_: entry)
    account = Account(0, os.getpid(), "python", (GIB,))
    monkeypatch.setattr("nvc.daemon.audit.ledgers._read", lambda *_: (account,))
    wrong: list[object] = []
    monkeypatch.setattr(accountant, "change", lambda *words: wrong.append(words))
    accountant.before()
    accountant.told((DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((os.getpid(), GIB),)),), 0)
    (balance,) = accountant.balances
    assert (balance.model, balance.truth) == (GIB, GIB) and wrong == [] and accountant.ledgers.unread == {}

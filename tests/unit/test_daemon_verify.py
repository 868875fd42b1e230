"""When nvcd acts on what it finds, in time that the test lets pass."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support import until

from nvc.config import Config
from nvc.daemon.audit.accountant import GRACE, Accountant, Balance, Use, User
from nvc.daemon.audit.asker import DeviceSeen
from nvc.daemon.audit.overuse import PATIENCE, TURNS
from nvc.daemon.audit.verify import BYPASS, EXCESS, OVERUSE, PERSIST, TOLERANCE, Verifier
from nvc.kernel import LinuxKernel
from nvc.slices.model.layout import DENIED
from nvc.slices.model.quota import QuotaDevice
from nvc.slices.store.origin import is_ending, is_here, start_of

KEY, UUID = "f-1-2-3", "GPU-00000000-1111-2222-3333-444444444440"
SECOND, HALF, GIB = 1_000_000_000, 500_000_000, 1 << 30
LIMIT = 4 * GIB


class World:
    """One slice on one device, and what NVML and the books say of it."""

    def __init__(self, **actions: str) -> None:
        config = Config()
        self.actions = {BYPASS: config.nvcd_on_bypass, EXCESS: config.nvcd_on_excess}
        self.actions[OVERUSE] = config.nvcd_on_overuse
        self.actions |= actions
        self.said: list[str] = []
        self.known = SimpleNamespace(
            alive=True,
            entry=SimpleNamespace(key=KEY),
            devices=(QuotaDevice(UUID, LIMIT, cores=10, policy=3),),
            uuids=(b"x",),
        )
        self.accountant: Any = SimpleNamespace(
            accounts={KEY: (SimpleNamespace(pid=5),)},
            users=(User(50, 1, 5, KEY, UUID, GIB),),
            balances=(),
            use=(),
            sampled={UUID.lower(): 0},
            use_is_new=False,
            book=SimpleNamespace(known={KEY: self.known}),
            budgets=lambda key: (),
            change=self._change,
        )
        board: Any = SimpleNamespace(arbiters={})
        self.verifier = Verifier(self.accountant, board, self.actions, self.said.append)
        self.now = 1000 * SECOND

    def _change(self, key: str, change: Any, values: dict[str, int]) -> bool:
        self.known.devices = tuple(change(device, values[device.uuid]) for device in self.known.devices)
        return True

    def shows(self, truth: int, percent: int = -1) -> bool:
        """NVML answers; whether the slice is denied anything after that."""
        pids = tuple(user.pid for user in self.accountant.users)
        self.accountant.balances = (Balance(KEY, UUID, "0", LIMIT, truth, truth, pids),)
        self.accountant.use_is_new = percent >= 0
        self.accountant.use = (Use(50, 1, KEY, UUID.lower(), max(percent, 0)),)
        self.verifier.look({}, self.now)
        (device,) = self.known.devices
        return bool(device.flags & DENIED)


def test_the_defaults_act() -> None:
    assert World().actions == {BYPASS: "report", EXCESS: "deny", OVERUSE: "deny"}


def test_too_much_memory_is_denied_with_the_answer_that_shows_it() -> None:
    world = World()
    assert not world.shows(LIMIT + TOLERANCE)
    assert world.shows(LIMIT + TOLERANCE + 1)
    assert world.said == [f"excess: slice {KEY} on {UUID} has 4160 MiB of 4 GiB; deny"]
    world.now += HALF
    assert world.shows(LIMIT + GIB) and len(world.said) == 1
    (denied,) = world.verifier.denied.values()
    assert (denied.kind, denied.uuid) == (EXCESS, UUID)
    world.now += HALF
    assert not world.shows(LIMIT)
    assert world.said[1] == f"excess: slice {KEY} on {UUID} does that no more; allowed again"
    assert not world.verifier.denied and world.verifier.counts[EXCESS] == 1
    assert world.shows(LIMIT + GIB) and world.verifier.counts[EXCESS] == 2


def test_time_is_denied_within_its_window_and_given_again() -> None:
    world = World()
    began, looks = world.now, 0
    while not world.shows(GIB, percent=100):
        world.now += 2 * SECOND
        looks += 1
        assert looks < 20
    # What is allowed is taken off: a cap of 10 % with its margins, of the whole time.
    assert PATIENCE[TURNS] <= world.now - began <= 2 * PATIENCE[TURNS]
    assert "may have 10 %; deny" in world.said[0]
    began = world.now
    while world.shows(GIB, percent=0):
        world.now += 2 * SECOND
    assert world.now - began <= 10 * SECOND and "allowed again" in world.said[1]


@pytest.mark.parametrize("percent", [10, 15, 20])
def test_a_slice_that_keeps_its_cap_is_never_denied(percent: int) -> None:
    """For an hour, at the cap and a little above it, as NVML's samples are."""
    world = World()
    for _ in range(1800):
        world.now += 2 * SECOND
        assert not world.shows(LIMIT, percent)
    assert world.said == []


def test_a_process_has_a_second_to_claim_its_slot() -> None:
    world = World(bypass="deny")
    world.accountant.accounts = {KEY: ()}
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


def test_a_process_that_ends_is_counted_for_nobody_for_a_while() -> None:
    """Its memory is the driver's to take back; but a first thread that has ended does not hide the others."""
    inside = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True); "
    )
    inside += "ctypes.CDLL(None).pthread_exit(None)"
    book: Any = SimpleNamespace(kernel=LinuxKernel(), known={}, living=list, say=lambda text: None)
    accountant = Accountant(book, lambda text: None)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", inside], stdin=pipe, stdout=pipe) as process:
        device = DeviceSeen(UUID, 80 * GIB, GIB, 0, 0, 0, ((process.pid, GIB),))
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        until(lambda: is_ending(process.pid))
        assert is_here(process.pid, start_of(f"/proc/{process.pid}"))
        for passed, counted in ((0, 0), (GRACE - 1, 0), (GRACE, 1)):
            accountant.told((device,), passed)
            assert len(accountant.users) == counted, passed

"""Slices with a cap pay for what may have run while processes of theirs were stopped, until these were killed."""

from __future__ import annotations

import os
import re
import tempfile
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from support import REPO
from support.arbiter_world import FIXED, SECOND, WEIGHT, Program, World

from nvc.daemon.audit import killed
from nvc.daemon.audit.killed import ALIVE, MOST, Killed
from nvc.daemon.audit.last_word import Place, place_of
from nvc.daemon.schedule.unseen import owe
from nvc.slices.model import layout, ledger
from nvc.slices.model.policy import MS
from nvc.slices.policy.policies import DevicePolicy

UUID, PID, SLOT = "GPU-0", 77, 3
BEGAN = 10 * SECOND  # when a process connected
NAME = (1000, 5)


def killed_one(cores: int, policy: int = FIXED) -> tuple[World, Any, Program]:
    """A process that is alone has a lease without an end, and is killed; the next one of its slice has work."""
    world = World(DevicePolicy(policy))
    (member,) = world.add("a", Program(), cores=cores)
    world.want(member)
    world.run(SECOND)
    arbiter = world.board.arbiters[world.uuids[0]]
    arbiter.leave(member, world.now)
    return world, arbiter, Program()


@pytest.mark.parametrize("cores, waits", [(10, 9 * SECOND), (50, SECOND), (100, 0)])
def test_it_waits_until_its_cap_has_allowed_that(cores: int, waits: int) -> None:
    """The cap allowed a part of it while it ran."""
    world, arbiter, program = killed_one(cores)
    owe(arbiter, "a", SECOND, world.now)
    began = world.now
    world.start("a", program, cores=cores)
    while not program.messages:
        world.run(MS)
    assert waits <= world.now - began <= waits + MS


def test_without_a_cap_nothing_is_owed() -> None:
    world, arbiter, program = killed_one(0, WEIGHT)
    owe(arbiter, "a", SECOND, world.now)
    world.start("a", program)
    world.run(MS)
    assert program.messages


def test_another_process_of_it_loses_its_lease() -> None:
    world, arbiter, program = killed_one(50)
    world.start("a", program, cores=50)
    world.run(MS)
    assert world.holders() == {"a"}
    owe(arbiter, "a", SECOND, world.now)
    world.run(SECOND - MS)
    assert not world.holders()
    world.run(2 * MS)
    assert world.holders() == {"a"}


def test_others_have_the_device_meanwhile() -> None:
    world, arbiter, program = killed_one(50)
    world.start("b", Program(), cores=50)
    owe(arbiter, "a", 10 * SECOND, world.now)
    world.start("a", program, cores=50)
    before = world.held()
    world.run(9 * SECOND)
    assert world.held()["a"] == before["a"]
    assert 0.49 <= (world.held()["b"] - before["b"]) / (9 * SECOND) <= 0.51


class Host:
    """A slice with a ledger, one process of which is a client."""

    def __init__(self, descriptor: int) -> None:
        os.ftruncate(descriptor, layout.LEDGER_SIZE)
        os.pwrite(descriptor, ledger.header(), 0)
        self.fd = descriptor
        self.owed: list[int] = []
        arbiter: Any = SimpleNamespace(
            tenants={"a": SimpleNamespace(rate=0.5, barred=0)}, lease=None
        )
        self.tenant = arbiter.tenants["a"]
        device = SimpleNamespace(uuid=UUID)
        self.known: Any = SimpleNamespace(
            entry=SimpleNamespace(key="a"), uuids=(b"0",), devices=(device,), clients=set()
        )
        accountant: Any = SimpleNamespace(
            ledger_of=lambda key: descriptor, slices=SimpleNamespace(by_key={"a": self.known})
        )
        board: Any = SimpleNamespace(arbiters={b"0": arbiter})
        loop: Any = SimpleNamespace(remove=lambda fd: None, add=self._add)
        self.killed = Killed(loop, board, accountant, 0)
        self.claim(PID, 1)
        self.client: Any = SimpleNamespace(
            peer=SimpleNamespace(pid=NAME[0], start=NAME[1]), known=self.known, since=BEGAN, living=-1,
            place=place_of(descriptor, PID), tries=0,
        )  # fmt: skip

    def _add(self, fd: int, look: Any) -> None:
        pass

    def claim(self, pid: int, generation: int) -> None:
        place = layout.LEDGER_HEADER.size + SLOT * layout.SLOT_HEADER.size
        os.pwrite(self.fd, layout.SLOT_HEADER.pack(pid, generation, 1, b"program"), place)

    def says(self, since: int, seen: int) -> None:
        place = layout.INTERVALS_OFFSET + SLOT * layout.INTERVAL.size
        os.pwrite(self.fd, layout.INTERVAL.pack(since, seen), place)

    def dies(self, now: int, parted: int = 0) -> int:
        """How much its slice owes then, in nanoseconds of the device."""
        self.killed.waiting[NAME] = self.client
        self.killed._ended(NAME, parted or now, now)
        assert not self.killed.waiting
        barred = int(self.tenant.barred)
        return (barred - now) if barred else 0  # with a cap of one half


@pytest.fixture
def host() -> Any:
    with tempfile.TemporaryFile() as file:
        yield Host(file.fileno())


def windows(seconds: range, used: set[int]) -> deque[tuple[int, int, dict[str, set[tuple[int, int]]]]]:
    """What NVML said from then to then, every two seconds; who died had the device in some."""
    return deque(
        (at * SECOND, (at + 2) * SECOND, {UUID.lower(): {NAME} if at in used else set()}) for at in seconds
    )


def test_who_dies_at_work_owes_nothing_more(host: Host) -> None:
    """Its last word was just before. The shims charge for that."""
    host.says(11 * SECOND, 20 * SECOND)
    assert host.dies(20 * SECOND + ALIVE) == 0


def test_who_had_nothing_to_do_owes_nothing(host: Host) -> None:
    host.says(0, 11 * SECOND)
    assert host.dies(20 * SECOND) == 0


def test_who_was_stopped_owes_all_of_that(host: Host) -> None:
    host.says(11 * SECOND, 12 * SECOND)
    assert host.dies(13 * SECOND) == SECOND


def test_what_nvml_did_not_see_is_not_owed(host: Host) -> None:
    """A kernel of three seconds, and stopped for a minute: a window in which it ended counts whole."""
    host.killed.windows = windows(range(10, 70, 2), {12, 14})
    host.says(11 * SECOND, 12 * SECOND)
    assert host.dies(71 * SECOND) == 5 * SECOND


def test_nobody_owes_more_than_a_slice_can(host: Host) -> None:
    host.says(11 * SECOND, 12 * SECOND)
    now = 12 * SECOND + 2 * MOST
    assert host.dies(now) == MOST


def test_a_word_of_a_process_that_had_the_number_before_says_nothing(host: Host) -> None:
    host.says(BEGAN - 2 * SECOND, BEGAN - SECOND)
    assert host.dies(20 * SECOND) == 0


def test_who_is_cleared_up_after_before_nvcd_looks_owes_what_nvml_saw(host: Host) -> None:
    """And what is too recent for it."""
    host.killed.windows = windows(range(10, 20, 2), {12, 14})
    host.says(0, 12 * SECOND)
    host.claim(0, 2)
    assert host.dies(21 * SECOND) == 5 * SECOND


def test_who_was_cleared_up_after_long_ago_owes_nothing(host: Host) -> None:
    """It is another program by now, and uses no device."""
    host.says(0, 12 * SECOND)
    host.claim(0, 2)
    assert host.dies(21 * SECOND, 15 * SECOND) == 0


def test_the_slot_is_another_ones_by_now(host: Host) -> None:
    host.says(20 * SECOND, 20 * SECOND)
    host.claim(PID + 1, 3)
    assert host.dies(21 * SECOND) == 0


def test_the_slot_that_was_claimed_last_is_its_own(host: Host) -> None:
    place = layout.LEDGER_HEADER.size + 7 * layout.SLOT_HEADER.size
    os.pwrite(host.fd, layout.SLOT_HEADER.pack(PID, 9, 2, b"program"), place)
    assert place_of(host.fd, PID) == Place(7, PID, 9)
    assert place_of(host.fd, PID + 1) is None


def test_many_processes_owe_no_more_than_a_slice_can(host: Host) -> None:
    """They had the same time."""
    now = 12 * SECOND + 2 * MOST
    for _ in range(3):
        host.says(11 * SECOND, 12 * SECOND)
        owed = host.dies(now)
    assert owed == int(MOST / 0.5)


def test_the_bounds_are_those_of_the_shim() -> None:
    with open(os.path.join(REPO, "native/vgpu/budget.c"), encoding="utf-8") as file:
        text = file.read()
    assert re.findall(r"ALIVE_NS = (\d+)", text) == [str(killed.ALIVE)]
    assert re.findall(r"LEDGER_DEBT \((\d+) \* SECOND\)", text) == [str(killed.MOST // SECOND)]

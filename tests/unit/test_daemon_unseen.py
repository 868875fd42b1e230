"""Slices with a cap pay for what may have run while processes of theirs were stopped, until these were killed."""

from __future__ import annotations

import errno
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
from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.audit.killed import ALIVE, MOST, Killed
from nvc.daemon.audit.last_word import Place, place_of
from nvc.daemon.schedule.unseen import owe
from nvc.slices.model import layout, ledger
from nvc.slices.model.ledger import LedgerError
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
        self.logged: list[str] = []
        arbiter: Any = SimpleNamespace(
            tenants={"a": SimpleNamespace(rate=0.5, barred=0)}, lease=None
        )
        self.tenant = arbiter.tenants["a"]
        device = SimpleNamespace(uuid=UUID)
        self.known: Any = SimpleNamespace(
            entry=SimpleNamespace(key="a", libs_dir="/nvc"), uuids=(b"0",), devices=(device,), clients=set()
        )
        accountant: Any = SimpleNamespace(
            open_ledger=lambda known: descriptor, slices=SimpleNamespace(by_key={"a": self.known}),
            log=self.logged.append,
        )  # fmt: skip
        board: Any = SimpleNamespace(arbiters={b"0": arbiter})
        loop: Any = SimpleNamespace(remove=lambda fd: None, add=self._add)
        self.killed = Killed(loop, board, accountant, 0)
        self.claim(PID, 1)
        self.client: Any = SimpleNamespace(
            peer=SimpleNamespace(pid=NAME[0], start=NAME[1]), known=self.known, since=BEGAN, living=-1,
            place=place_of(descriptor, PID), tries=0, lost="", left=0,
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
        self.client.left = parted or now
        self.killed._ended(NAME, now)
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


def lose(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nvcd look for the process for the first time; the ledger does not tell of it."""
    monkeypatch.setattr(killed, "pid_inside", lambda pid: PID)
    host.client.place = None
    host.killed.meet(host.client)
    assert host.client.lost and host.client.tries == 1


def overwritten(host: Host) -> None:
    host.claim(0, 1)


def cut_short(host: Host) -> None:
    os.ftruncate(host.fd, 100)


LOST = pytest.mark.parametrize(
    "harm, cause", [(overwritten, f"it has no entry of process {PID}"), (cut_short, "cut short")]
)


@LOST
def test_who_cannot_be_found_owes_all_since_it_connected(
    host: Host, monkeypatch: pytest.MonkeyPatch, harm: Any, cause: str
) -> None:
    harm(host)
    lose(host, monkeypatch)
    host.says(0, 19 * SECOND)  # what is there is not its own
    assert host.dies(20 * SECOND) == 20 * SECOND - BEGAN
    assert host.logged == [
        f"slice a: process {NAME[0]}: vgpu error: read what it said last: /nvc/nvc/ledger/ledger: {cause}; "
        "its slice pays as if it had worked all the time; end what changes that file in the container"
    ]


@LOST
def test_who_cannot_be_found_owes_nothing_while_nvml_sees_nothing_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, harm: Any, cause: str
) -> None:
    host.killed.windows = windows(range(10, 20, 2), {12})
    harm(host)
    lose(host, monkeypatch)
    assert host.dies(20 * SECOND) == 2 * SECOND


def test_who_cannot_be_found_owes_nothing_if_it_has_rested_for_long(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was before, NVML's windows do not tell any more."""
    end = 2 * MOST // SECOND
    host.killed.windows = windows(range(end - MOST // SECOND, end, 2), set())
    overwritten(host)
    lose(host, monkeypatch)
    assert host.dies(end * SECOND) == 0


def test_a_ledger_that_is_broken_when_a_process_ends(host: Host) -> None:
    host.says(0, 19 * SECOND)
    cut_short(host)
    assert host.dies(20 * SECOND) == 20 * SECOND - BEGAN
    assert len(host.logged) == 1


def test_a_slice_is_logged_once(host: Host) -> None:
    cut_short(host)
    for second in (20, 21):
        assert host.dies(second * SECOND)
    assert len(host.logged) == 1


def test_who_is_found_later_owes_by_what_it_says(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    overwritten(host)
    lose(host, monkeypatch)
    host.claim(PID, 1)
    host.killed.meet(host.client)
    host.says(11 * SECOND, 12 * SECOND)
    assert host.dies(13 * SECOND) == SECOND
    assert not host.logged


def test_who_has_ended_before_it_had_a_lease_owes_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(pid: int) -> int:
        raise ProcessLookupError(errno.ESRCH, "no such process")

    monkeypatch.setattr(killed, "pid_inside", ended)
    host.client.place = None
    host.killed.meet(host.client)
    host.killed.parted(host.client, 20 * SECOND)
    assert not host.client.lost and not host.killed.waiting


def test_who_never_wanted_a_device_is_not_waited_for(host: Host) -> None:
    """It has made no context, and has no slot."""
    host.client.place = None
    host.killed.parted(host.client, 20 * SECOND)
    assert not host.killed.waiting


def test_who_cannot_be_found_is_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed, "watch_on", lambda *_: None)
    overwritten(host)
    lose(host, monkeypatch)
    host.killed.parted(host.client, 20 * SECOND)
    assert host.killed.waiting == {NAME: host.client}


def test_the_slice_with_the_most_pays_at_once_where_there_is_no_room(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its oldest process is no longer waited for, nor forgotten. Another slice's is older, and waited for."""
    monkeypatch.setattr(killed, "watch_on", lambda *_: None)
    monkeypatch.setattr(killed, "WAITING", 3)
    other: Any = SimpleNamespace(entry=SimpleNamespace(key="b", libs_dir="/nvc"))
    for number, known in enumerate([other, *[host.known] * 4]):
        one = SimpleNamespace(**{**vars(host.client), "known": known})
        one.peer = SimpleNamespace(pid=NAME[0] + number, start=NAME[1])
        host.says(11 * SECOND, 12 * SECOND)
        host.killed.parted(one, 13 * SECOND)
    assert [pid - NAME[0] for pid, _ in host.killed.waiting] == [0, 3, 4]
    assert host.tenant.barred == 12 * SECOND + 2 * 2 * SECOND  # two processes, a cap of one half
    (line,) = host.logged
    assert line.startswith(f"slice a: process {NAME[0] + 1}: ") and "are waited for already; its slice pays" in line


def test_a_ledger_is_looked_for_when_a_process_wants_a_device() -> None:
    """Before the first look at all slices; again where that fails, but not before the next one."""
    known: Any = SimpleNamespace(entry=SimpleNamespace(key="a"), stamp=1)
    accountant = Accountant(SimpleNamespace(kernel=None, by_key={}), lambda text: None)  # type: ignore[arg-type]
    asked: list[int] = []
    answers: list[Any] = [LedgerError("read ledger", "", "not a regular file"), 7]

    def look(*_: object) -> int:
        asked.append(1)
        answer = answers.pop(0)
        if isinstance(answer, int):
            return answer
        raise answer

    accountant._open = look  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(LedgerError, match="not a regular file"):
            accountant.open_ledger(known)
    assert len(asked) == 1
    accountant.before()
    assert [accountant.open_ledger(known) for _ in range(2)] == [7, 7] and len(asked) == 2


def test_the_bounds_are_those_of_the_shim() -> None:
    with open(os.path.join(REPO, "native/vgpu/budget.c"), encoding="utf-8") as file:
        text = file.read()
    assert re.findall(r"ALIVE_NS = (\d+)", text) == [str(killed.ALIVE)]
    assert re.findall(r"LEDGER_DEBT \((\d+) \* SECOND\)", text) == [str(killed.MOST // SECOND)]

"""Turns that are laid down before they begin: the same as those that the arbiter would have given one by one, and
nothing but what was laid down happens without it."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.turns import SECOND, Program, World

from nvc.daemon.io.clients import GRAB, Client
from nvc.daemon.io.loop import Loop
from nvc.daemon.io.wire import DROP, GRANT, MESSAGE, RELEASE
from nvc.daemon.schedule.arbiter import Arbiter
from nvc.daemon.schedule.foresight import Turn, foresee, take_over
from nvc.daemon.schedule.policy import FAIR, FIXED, MS, NATIVE, PREEMPT, SOFT, WEIGHT, DevicePolicy, Terms
from nvc.daemon.schedule.turns import Member
from nvc.daemon.server import Server
from nvc.kernel.turns import END, EVENT, TIME, Turns


class Foreseeing(Arbiter):
    """Goes by what it has foreseen for as long as nothing else happens on any device."""

    course: list[Turn] | None = None
    taken = rests = 0

    def want(self, member: Member, now: int) -> None:
        super().want(member, now)
        self._forget()

    def tick(self, now: int) -> None:
        super().tick(now)
        self._forget()

    def release(self, member: Member, round: int, more: bool, now: int) -> bool:
        course = foresee(self, 8) if self.course is None else self.course
        foreseen = len(course) > 1 and more and course[0].member is member and round == course[0].round
        if foreseen and not course[1].rest:
            self.course = course[1:]
            self.taken += 1
            take_over(self, course[1], now, now)
            self.send(course[1].member, GRANT, course[1].round, course[1].length)
            return True
        done = super().release(member, round, more, now)
        if foreseen:
            self.rests += self.lease is None and self.deadline == now + course[1].rest
        self._forget()
        return done

    def _forget(self) -> None:
        for arbiter in self.board.ordered:
            assert isinstance(arbiter, Foreseeing)
            arbiter.course = None


def foreseeing(policy: DevicePolicy, devices: int = 1) -> World:
    world = World(policy, devices)
    for arbiter in world.board.arbiters.values():
        arbiter.__class__ = Foreseeing
    return world


def taken(world: World) -> int:
    return sum(arbiter.taken for arbiter in world.board.arbiters.values() if isinstance(arbiter, Foreseeing))


PROGRAMS = st.lists(
    st.tuples(
        st.integers(1, 5),  # weight, and a part of 20 percent
        st.integers(0, 3),  # MS that draining takes
        st.sampled_from((0, 0, 0, 7, 30)),  # MS of work, then it is idle
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(
    programs=PROGRAMS,
    policy=st.sampled_from((FAIR, PREEMPT, WEIGHT, FIXED, SOFT)),
    devices=st.integers(1, 2),
)
def test_who_foresees_gives_the_same(
    programs: list[tuple[int, int, int]], policy: int, devices: int
) -> None:
    found = []
    for made in (World, foreseeing):
        world = made(DevicePolicy(policy), devices)
        for number, (weight, drain, work) in enumerate(programs):
            terms = Terms(weight, cores=weight * 4)
            one = Program(drain * MS, work * MS, work * MS)
            world.start(str(number), one, terms, 1 + number % devices)
        world.run(2 * SECOND)
        found.append([world.held(uuid) for uuid in world.uuids])
    for plain, other in zip(*found):
        for key, held in plain.items():
            assert other[key] == pytest.approx(held, abs=0.03 * 2 * SECOND), found


def test_what_is_foreseen_happens() -> None:
    """Turn by turn, where everybody drains as fast as before."""
    world = World(DevicePolicy(WEIGHT))
    for number in range(5):
        world.start(str(number), Program(drain=number * MS), Terms(1 + number))
    world.run(SECOND)
    (arbiter,) = world.board.arbiters.values()
    course = foresee(arbiter, 30)
    assert len(course) == 30 and len({turn.round for turn in course}) == 30
    for turn in course:
        while arbiter.lease is not None and arbiter.lease.round != turn.round:
            world.run(MS)
        assert arbiter.lease is not None and arbiter.lease.holders == {turn.member}
        assert arbiter.lease.end - arbiter.lease.began == turn.length


def test_it_is_foreseen_when_nobody_is_due() -> None:
    """With percentages that do not make a hundred, the device rests now and then."""
    world = foreseeing(DevicePolicy(FIXED))
    for number in range(4):
        world.start(str(number), Program(), Terms(cores=20))
    world.run(4 * SECOND)
    (arbiter,) = world.board.arbiters.values()
    assert isinstance(arbiter, Foreseeing) and arbiter.rests > 10
    for held in world.held().values():
        assert held == pytest.approx(0.2 * 4 * SECOND, rel=0.03)


@pytest.mark.parametrize("devices", [1, 2])
def test_looking_ahead_changes_nothing(devices: int) -> None:
    """Of what others do on another device either."""
    world = World(DevicePolicy(FIXED), devices)
    for number in range(4):
        world.start(str(number), Program(drain=number * MS), Terms(cores=25))
    for number in range(2 * (devices - 1)):
        world.start(f"gang {number}", Program(), Terms(cores=10), devices)
    world.run(SECOND)
    arbiters = list(world.board.arbiters.values())

    def everything() -> list[object]:
        return [
            [
                getattr(arbiter, name)
                for name in ("account", "settled", "deadline", "round", "lease", "turns")
            ]
            + [
                [getattr(tenant, name) for name in tenant.__slots__ if name != "members"]
                for tenant in arbiter.tenants.values()
            ]
            for arbiter in arbiters
        ]

    seen = 0
    for _ in range(400):
        before = everything()
        seen += len(foresee(arbiters[0], 16)) > 1
        assert everything() == before
        world.run(MS)
    assert seen


def test_nothing_is_foreseen_of_an_end_that_was_set_meanwhile() -> None:
    """Whoever has the device alone is told of that end when it has come, and not half a turn later."""
    world = World(DevicePolicy(SOFT, slice=100 * MS))
    world.start("alone", Program())
    world.run(SECOND)
    world.start("other", Program())
    (arbiter,) = world.board.arbiters.values()
    assert arbiter.lease is not None and arbiter.lease.end and foresee(arbiter, 8) == []
    world.run(SECOND)
    assert arbiter.lease is not None and len(foresee(arbiter, 8)) == 8


def test_messages_on_several_devices_are_metered() -> None:
    """Turns that passed on two devices at once may have taken one message more than there were."""
    loop = Loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        server = Server(loop, None, None, print)  # type: ignore[arg-type]
        known = SimpleNamespace(entry=SimpleNamespace(key="key"))
        client = Client(ours, None, known, 0)  # type: ignore[arg-type]
        client.tokens = -1
        theirs.send(b"x")
        server._ready(client, SECOND)
    loop.epoll.close()
    assert client.tokens == GRAB - 1 and client.doomed == errno.EMSGSIZE


def test_it_is_worth_it() -> None:
    """Where all are busy, hardly a turn is decided by itself."""
    world = foreseeing(DevicePolicy(PREEMPT))
    for number in range(16):
        world.start(str(number), Program(drain=MS))
    world.run(4 * SECOND)
    (arbiter,) = world.board.arbiters.values()
    assert taken(world) > 0.8 * arbiter.turns


@pytest.mark.parametrize("policy", [NATIVE, PREEMPT])
def test_nothing_is_foreseen_of_who_is_alone(policy: int) -> None:
    world = World(DevicePolicy(policy))
    world.start("one", Program())
    (arbiter,) = world.board.arbiters.values()
    assert foresee(arbiter, 8) == []


def test_nothing_is_foreseen_while_somebody_is_late() -> None:
    world = World(DevicePolicy(PREEMPT))
    stuck = world.start("stuck", Program(stuck=True))
    for number in range(3):
        world.start(str(number), Program())
    world.run(SECOND)
    (arbiter,) = world.board.arbiters.values()
    assert DROP in [kind for _, kind, _ in stuck.messages] and foresee(arbiter, 8) == []


def test_a_container_of_several_processes() -> None:
    world = foreseeing(DevicePolicy(PREEMPT))
    for key in "aabc":
        world.start(key, Program(drain=MS))
    world.run(SECOND)
    assert world.held()["a"] == pytest.approx(SECOND / 3, rel=0.05)


# Those that pass without the interpreter

UUID = bytes(range(16))
LENGTH = 10 * MS


class Table:
    """Three processes, and nvcd's end of their connections."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.epoll = select.epoll()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
        self.ours, self.theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        for one in self.ours:
            self.epoll.register(one, select.EPOLLIN)
        self.began = time.monotonic_ns()

    def lay_down(
        self,
        *order: int,
        held: int = LENGTH,
        slack: int = 10 * SECOND,
        patience: int = SECOND,
        rest: int = 0,
    ) -> None:
        turns = [(self.ours[one].fileno(), 7 + place, LENGTH, held, rest) for place, one in enumerate(order)]
        self.turns.lay_down(0, UUID, patience, slack, turns, self.began)

    def let_pass(self, until: int = 5 * SECOND) -> int:
        return self.turns.let_pass(self.epoll.fileno(), 1, self.began + until)

    def give_back(self, one: int, round: int, uuid: bytes = UUID, b: int = 0) -> None:
        self.theirs[one].send(MESSAGE.pack(RELEASE, 0, round, uuid, 1, b))

    def told(self, one: int) -> tuple[int, ...] | None:
        if not select.select([self.theirs[one]], [], [], 0)[0]:
            return None
        kind, reserved, round, uuid, length, b = MESSAGE.unpack(
            self.theirs[one].recv(100, socket.MSG_DONTWAIT)
        )
        assert uuid == UUID and reserved == b == 0
        return kind, round, length


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.epoll.close()
    for one in made.ours + made.theirs:
        one.close()


def test_turns_follow_each_other(table: Table) -> None:
    table.lay_down(0, 1, 2)
    table.give_back(0, 7)
    table.give_back(1, 8)
    assert table.let_pass() == END
    assert table.told(1) == (GRANT, 8, LENGTH) and table.told(2) == (GRANT, 9, LENGTH)
    (first, begun), (second, last) = table.turns.passed(0)
    assert table.began < first == begun <= second == last <= time.monotonic_ns() and not table.turns.error(0)
    assert not table.epoll.poll(0)


@pytest.mark.parametrize(
    ("one", "round", "uuid", "b"), [(1, 7, UUID, 0), (0, 8, UUID, 0), (0, 7, bytes(16), 0), (0, 7, UUID, 1)]
)
def test_what_is_not_foreseen_is_left_for_others(
    table: Table, one: int, round: int, uuid: bytes, b: int
) -> None:
    table.lay_down(0, 1, 2)
    table.give_back(one, round, uuid, b)
    assert table.let_pass() == EVENT and table.turns.passed(0) == []
    assert MESSAGE.unpack(table.ours[one].recv(100, socket.MSG_DONTWAIT))[2:4] == (round, uuid)


@pytest.mark.parametrize("message", [b"", b"x", bytes(39), bytes(41), bytes(200)])
def test_messages_of_a_wrong_size(table: Table, message: bytes) -> None:
    table.lay_down(0, 1)
    table.theirs[0].send(message)
    assert table.let_pass() == EVENT and table.ours[0].recv(300, socket.MSG_DONTWAIT) == message


def test_who_hangs_up(table: Table) -> None:
    table.lay_down(0, 1)
    table.theirs[0].close()
    assert table.let_pass() == EVENT and table.turns.passed(0) == []


def test_who_does_not_read(table: Table) -> None:
    table.lay_down(0, 1, 2)
    try:
        while True:
            table.ours[1].send(b"x", socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    table.give_back(0, 7)
    assert table.let_pass() == END
    assert len(table.turns.passed(0)) == 1 and table.turns.error(0) == errno.EAGAIN


def test_whose_end_is_gone(table: Table) -> None:
    table.lay_down(0, 1, 2)
    table.epoll.unregister(table.ours[1])
    table.theirs[1].close()
    table.give_back(0, 7)
    assert table.let_pass() == END and table.turns.error(0) == errno.EPIPE


def test_turns_that_do_not_last_as_foreseen(table: Table) -> None:
    """They are given back within a moment: the first one may be, the next one is the arbiter's."""
    table.lay_down(0, 1, 2, held=SECOND, slack=3 * SECOND // 2)
    table.give_back(0, 7)
    table.give_back(1, 8)
    assert table.let_pass() == EVENT and len(table.turns.passed(0)) == 1
    assert table.ours[1].recv(100, socket.MSG_DONTWAIT)


def test_a_device_rests(table: Table) -> None:
    table.lay_down(0, 1, 2, rest=10 * MS)
    table.give_back(0, 7)
    table.give_back(1, 8)  # before it has its turn, which is nothing that was foreseen
    assert table.let_pass() == EVENT
    assert table.turns.passed(0)[0][1] == 0 and table.told(0) is None
    assert table.ours[1].recv(100, socket.MSG_DONTWAIT)
    table.began = time.monotonic_ns()
    table.lay_down(0, 1, 2, rest=10 * MS)
    table.give_back(0, 7)
    threading.Timer(0.03, table.give_back, (1, 8)).start()
    assert table.let_pass() == END
    (first, begun), (second, last) = table.turns.passed(0)
    assert begun - first >= 10 * MS and last - second >= 10 * MS and second > begun
    assert table.told(1) == (GRANT, 8, LENGTH) and table.told(2) == (GRANT, 9, LENGTH)


def test_while_a_device_rests_other_things_are_due(table: Table) -> None:
    table.lay_down(0, 1, 2, rest=SECOND)
    table.give_back(0, 7)
    assert table.let_pass(20 * MS) == TIME
    ((ended, begun),) = table.turns.passed(0)
    assert table.began < ended <= time.monotonic_ns() and begun == 0


def test_who_is_late_and_what_is_due(table: Table) -> None:
    table.lay_down(0, 1, patience=10 * MS)
    assert table.let_pass() == TIME
    assert time.monotonic_ns() - table.began >= LENGTH + 10 * MS
    table.began = time.monotonic_ns()
    table.lay_down(0, 1, patience=SECOND)
    assert table.let_pass(LENGTH // 2) == TIME
    assert LENGTH // 2 <= time.monotonic_ns() - table.began < SECOND

"""Hand-overs that C makes are those that the arbiter would make, and all else is left to Python."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples
from support.arbiter_world import PREEMPT, SECOND, SOFT, WEIGHT, Program, World

from nvc.daemon.io.wire import ENOUGH, GRANT, MESSAGE, NO_UUID, RELEASE, RUNS, SIZE, STALL, TAIL, WANT
from nvc.daemon.schedule.handover import Handovers, Record, is_ordinary
from nvc.daemon.schedule.leases import Member
from nvc.kernel.handover import HandoverWaiter, pass_on
from nvc.slices.model.policy import MS
from nvc.slices.policy.policies import DevicePolicy


class WorldByC(World):
    """One in which C makes each hand-over that it can."""

    def __init__(self, policy: DevicePolicy, devices: int = 1) -> None:
        super().__init__(policy, devices)
        self.waiter = HandoverWaiter(-1, 0)
        self.made = 0

    def release(
        self, member: Member, uuid: bytes, round: int, more: bool, used: int, runs: bool, tail: int
    ) -> None:
        arbiter = self.board.arbiters[uuid]
        lease = arbiter.lease
        if more and lease is not None and lease.holders == {member} and is_ordinary(arbiter):
            self.waiter.room(1, len(arbiter.wanting))
            record = Record(arbiter, self.waiter.devices[0])
            sole = record.device.tenants[record.device.holder].fd == member.client.fd
            if sole and pass_on(record.device, runs, tail, self.now):
                record.read()
                lease = arbiter.lease
                assert lease is not None
                for one in lease.holders:
                    self._send(one, GRANT, lease.round, lease.end - lease.began, self.now)
                self.made += 1
                return
        super().release(member, uuid, round, more, used, runs, tail)


def standing(world: World) -> list[tuple[object, ...]]:
    """All that an arbiter keeps of its tenants."""
    found: list[tuple[object, ...]] = []
    for arbiter in world.board.ordered:
        lease = arbiter.lease
        found.append((arbiter.account, arbiter.round, arbiter.lease_count, arbiter.charged_until))
        found.append((lease and lease.tenant and lease.tenant.key, lease and lease.end, arbiter.deadline))
        found += [
            (
                one.key,
                one.account,
                one.tag,
                one.floor,
                one.held,
                one.waited,
                one.since,
                one.grants,
                one.served,
            )
            for one in arbiter.tenants.values()
        ]
    return found


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Those that hand over in the ordinary way, most of the time."""
    seed = draw(st.integers(0, 1000))
    return Program(
        drain=draw(st.sampled_from((0, MS, 3 * MS, 9 * MS, 40 * MS))),
        work=draw(st.sampled_from((0, 0, 0, 7 * MS))),
        idle=draw(st.sampled_from((1, 30 * MS))),
        tail=draw(st.sampled_from((0, MS // 2, 3 * MS))),
        chance=Random(seed),
    )


@settings(max_examples=examples(40))
@given(
    st.sampled_from((PREEMPT, WEIGHT, SOFT)),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 8).map(lambda n: max(n - 6, 1)), programs()),
             min_size=2, max_size=6),
    st.integers(1, 2),
)  # fmt: skip
def test_c_decides_as_the_arbiter(policy: int, asked: list[tuple[int, int, Program]], devices: int) -> None:
    worlds = [World(DevicePolicy(policy), devices), WorldByC(DevicePolicy(policy), devices)]
    said = []
    for world in worlds:
        heard = []
        for number, (weight, processes, program) in enumerate(asked):
            for process in range(processes if program._drain else 1):
                # No two of a slice do anything at the same moment: they are kept in a set.
                apart = process * 1000
                drain, work = program._drain, program.work
                one = Program(drain and drain + apart, work and work + apart, program.idle + apart,
                              tail=program.tail, chance=Random(number * 10 + process))  # fmt: skip
                heard.append(world.start(str(number), one, weight, devices=1 + number % devices).messages)
        world.run(SECOND)
        said.append((heard, standing(world)))
    assert said[0] == said[1]


@pytest.mark.parametrize("devices", [1, 2])
def test_c_makes_the_ordinary_ones(devices: int) -> None:
    """Also on a host with several GPUs, each with tenants of its own."""
    world = WorldByC(DevicePolicy(WEIGHT), devices)
    for number in range(4):
        world.start(str(number), Program(drain=MS, tail=MS), number + 1)
    world.run(10 * SECOND)
    assert world.made > 0.95 * world.board.arbiters[world.uuids[0]].lease_count > 300


class Connected:
    """Two slices with one process each, whose connections C reads. The first has the lease."""

    def __init__(self) -> None:
        self.world = World(DevicePolicy(WEIGHT))
        self.uuid = self.world.uuids[0]
        self.epoll = select.epoll()
        self.failed: list[tuple[int, int]] = []
        waiter = HandoverWaiter(self.epoll.fileno(), 7)
        self.handovers = Handovers(self.world.board, waiter, lambda fd, code: self.failed.append((fd, code)))
        self.world.now = time.monotonic_ns()
        self.members, self.theirs = [], []
        for number in range(2):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = Program()
            program.fd = ours.detach()
            (member,) = self.world.add(str(number), program)
            self.epoll.register(program.fd, select.EPOLLIN)
            self.members.append(member)
            self.theirs.append(theirs)
            theirs.setblocking(False)
        arbiter = self.arbiter = self.world.board.arbiters[self.uuid]
        for member in self.members:
            arbiter.want(member, self.world.now)
        arbiter.quantum = 1000 * SECOND
        self.release(0)
        arbiter.release(self.members[0], arbiter.round, True, 0, self.world.now)
        arbiter.release(self.members[1], arbiter.round, True, 0, self.world.now)
        self.drain()

    def drain(self) -> None:
        """Nothing is left to be read."""
        for member in self.members:
            with socket.socket(fileno=os.dup(member.client.fd)) as one:
                one.setblocking(False)
                while select.select([one], [], [], 0)[0] and one.recv(100):
                    pass

    def release(self, number: int, *descriptors: int, **fields: int | bytes) -> None:
        """What a process says, a RELEASE of the lease of now but for what is given."""
        said = {
            "kind": RELEASE,
            "reserved": 0,
            "round": self.arbiter.round,
            "uuid": self.uuid,
            "a": 0,
            "b": 0,
        }
        socket.send_fds(self.theirs[number], [MESSAGE.pack(*(said | fields).values())], list(descriptors))

    def wait(self, until: int = 0) -> list[int]:
        return self.handovers.wait(until)

    def close(self) -> None:
        self.epoll.close()
        for member, theirs in zip(self.members, self.theirs):
            os.close(member.client.fd)
            theirs.close()


@pytest.fixture
def connected() -> Iterator[Connected]:
    made = Connected()
    yield made
    made.close()


def test_a_turn_is_handed_on(connected: Connected) -> None:
    arbiter, (first, second) = connected.arbiter, connected.members
    lease, before = arbiter.lease, time.monotonic_ns()
    assert lease is not None and lease.holders == {first}
    connected.release(0, b=RUNS)
    assert connected.wait() == []
    kind, reserved, round, uuid, a, b = MESSAGE.unpack(connected.theirs[1].recv(SIZE + 1))
    assert (kind, reserved, round, uuid, a) == (
        GRANT, 0, lease.round + 1, connected.uuid, arbiter.lease_length(second.tenant)
    )  # fmt: skip
    assert before <= b + 7 <= time.monotonic_ns()
    assert arbiter.lease is not None and arbiter.lease.holders == {second} and arbiter.round == round
    assert (first.round, second.round) == (0, round)
    assert first.left == b + 7 and first.follower is arbiter.lease
    assert first.client.tokens == 49 and connected.handovers.waiter.messages == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"b": ENOUGH}, {"kind": STALL}, {"kind": WANT}, {"reserved": 1}, {"round": 0}, {"round": 1 << 31},
        {"uuid": NO_UUID}, {"b": 3601 * SECOND * TAIL}, {"b": (1 << 64) - 8}, {"kind": 65535},
    ],
    ids=str,
)  # fmt: skip
def test_all_else_is_left_to_python(connected: Connected, fields: dict[str, int | bytes]) -> None:
    """In the connection, to be read there."""
    fd = connected.members[0].client.fd
    connected.release(0, **fields)
    before = standing(connected.world)
    assert connected.wait() == [fd]
    assert connected.wait() == [fd] and standing(connected.world) == before


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1, 60000])
def test_messages_of_other_sizes(connected: Connected, size: int) -> None:
    connected.theirs[0].send(bytes([RELEASE]) * size)
    assert connected.wait() == [connected.members[0].client.fd]


def test_a_message_with_a_descriptor(connected: Connected) -> None:
    """nvcd must not be the one that closes it: see nvc/daemon/io/descriptors.py."""
    with open(os.devnull, "rb") as file:
        connected.release(0, file.fileno())
    assert connected.wait() == [connected.members[0].client.fd]


def test_who_has_no_turn_to_give_back(connected: Connected) -> None:
    connected.release(1)
    assert connected.wait() == [connected.members[1].client.fd]


def test_who_may_send_no_more(connected: Connected) -> None:
    """Python's meters decide whether it may, again."""
    connected.members[0].client.tokens = 0
    connected.release(0)
    assert connected.wait() == [connected.members[0].client.fd]


def test_who_is_gone(connected: Connected) -> None:
    """The turn is its own all the same: Python closes the connection, and hands it on."""
    connected.theirs[1].close()
    connected.release(0)
    assert connected.wait() == []
    ((fd, code),) = connected.failed
    assert fd == connected.members[1].client.fd and code == 32
    assert connected.arbiter.lease is not None and connected.arbiter.lease.holders == {connected.members[1]}


def test_a_deadline(connected: Connected) -> None:
    """Nobody gives the lease back: the wait ends when the arbiter is to look."""
    connected.arbiter.deadline = time.monotonic_ns() + 20 * MS
    assert connected.wait(time.monotonic_ns() + 1000 * SECOND) == []
    assert time.monotonic_ns() >= connected.arbiter.deadline

"""A host whose time is a number: arbiters, and programs that answer them after delays of their own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from nvc.daemon.io.wire import DROP, FREE, GRANT
from nvc.daemon.schedule.gang import Board
from nvc.daemon.schedule.leases import Member
from nvc.slices.model.policy import MS
from nvc.slices.policy.entitlement import Demand, InForce, in_force
from nvc.slices.policy.policies import DevicePolicy

SECOND = 1000 * MS
NUMBERS = count(1000)  # of connections
FAIR, PREEMPT, WEIGHT, FIXED, SOFT, NATIVE = range(6)


class Program:
    """A process that is always busy: at the end of a lease it drains, gives it back and wants more."""

    def __init__(
        self,
        drain: int = 0,
        work: int = 0,
        idle: int = 0,
        stuck: bool = False,
        pleads: int = 0,
        tail: int = 0,
        chance: Random | None = None,
    ) -> None:
        self._drain = drain  # nanoseconds from the end to having drained, about
        self.chance = chance
        self.fd, self.tokens = next(NUMBERS), 50
        self.tail = tail  # nanoseconds that its work runs on after it gave a lease back
        self.runs_on = 0  # of that, what nvcd is yet to be told
        self.work = work  # after so long it has nothing more to do, 0: there is no end of it
        self.idle = idle  # then, until it has work again
        self.stuck = stuck  # it never gives anything back
        self.pleads = pleads  # nanoseconds after the end, when it says that what runs waits for another turn
        self.had = 0
        self.excess = 0  # that it was told of
        self.messages: list[tuple[int, int, int]] = []  # time, kind, round
        self.began: dict[bytes, int] = {}
        self.rounds: dict[bytes, int] = {}

    @property
    def drain(self) -> int:
        """The same by chance, a tenth more or less."""
        return int(self._drain * self.chance.uniform(0.9, 1.1)) if self.chance else self._drain

    def all(self, now: int) -> int:
        """How long it might launch, until now."""
        return self.had + sum(now - self.began[uuid] for uuid in self.rounds)

    def hear(self, world: World, member: Member, uuid: bytes, kind: int, round: int, length: int) -> None:
        self.messages.append((world.now, kind, round))
        if self.pleads and (length or kind == DROP):
            world.later(length + self.pleads, lambda: world.want(member, uuid, round))
        if kind in (FREE, GRANT):
            self.began[uuid], self.rounds[uuid] = world.now, round
            if self.work:
                world.later(self.work, lambda: self._done(world, member, uuid, round))
            if length and not self.stuck:
                world.later(length + self.drain, lambda: self._give_back(world, member, uuid, round, True))
        elif kind == DROP and not self.stuck:
            world.later(self.drain, lambda: self._give_back(world, member, uuid, round, True))

    def _done(self, world: World, member: Member, uuid: bytes, round: int) -> None:
        if self.rounds.get(uuid) == round and not self.stuck:
            self._give_back(world, member, uuid, round, False)
            world.later(self.idle, lambda: world.want(member, uuid))

    def _give_back(self, world: World, member: Member, uuid: bytes, round: int, more: bool) -> None:
        if self.rounds.get(uuid) != round:
            return
        del self.rounds[uuid]
        self.had += world.now - self.began[uuid]
        used = world.now - self.began[uuid]
        runs, tail = bool(self.tail) and more, self.runs_on
        self.runs_on = self.tail if runs else 0
        world.release(member, uuid, round, more, used, runs, tail)
        world.check()


class World:
    """Devices and programs; every message arrives at once, and claims reach the arbiters as in nvcd."""

    def __init__(self, policy: DevicePolicy, devices: int = 1) -> None:
        self.policy = policy
        self.claims: dict[bytes, dict[str, Demand]] = {}
        self.force: dict[bytes, InForce] = {}
        self.now = SECOND
        self.board = Board(self._send)
        self.uuids = [bytes([number]) * 16 for number in range(1, devices + 1)]
        for uuid in self.uuids:
            self.claims[uuid] = {}
            self._enforce(uuid)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._where: dict[Member, bytes] = {}

    def claim(self, key: str, weight: int = 1, cores: int = 0, devices: int = 1, **more: object) -> None:
        """What the slice `key` has of the first `devices` from now on."""
        for uuid in self.uuids[:devices]:
            age = (
                self.claims[uuid][key].age
                if key in self.claims[uuid]
                else (self.now, len(self.claims[uuid]))
            )
            made = Demand(key, PREEMPT, cores, weight, age=age)
            self.claims[uuid][key] = made.replace(**more)
            self._enforce(uuid)

    def end(self, key: str) -> None:
        """The slice and its processes are gone."""
        for uuid in self.uuids:
            if self.claims[uuid].pop(key, None) is not None:
                self._enforce(uuid)

    def set_device_policy(self, policy: DevicePolicy) -> None:
        """What the operator wants for all devices from now on."""
        self.policy = policy
        for uuid in self.uuids:
            self._enforce(uuid)

    def _enforce(self, uuid: bytes) -> None:
        self.force[uuid] = in_force(self.policy, tuple(self.claims[uuid].values()))
        self.board.enforce(uuid, self.force[uuid], self.now)

    def add(
        self, key: str, program: Program, weight: int = 1, cores: int = 0, devices: int = 1, **more: object
    ) -> list[Member]:
        """A process of the slice `key`, with something to do on the first `devices`."""
        self.claim(key, weight, cores, devices, **more)
        members = []
        for uuid in self.uuids[:devices]:
            members.append(Member(self.board.arbiters[uuid].tenants[key], program))
            self._where[members[-1]] = uuid
        return members

    def want(self, member: Member, uuid: bytes = b"", round: int = 0) -> None:
        if member in member.tenant.members:
            self.board.arbiters[uuid or self._where[member]].want(member, self.now, round)
            self.check()

    def release(
        self, member: Member, uuid: bytes, round: int, more: bool, used: int, runs: bool, tail: int
    ) -> None:
        """The process gives its lease back."""
        self.board.arbiters[uuid].release(member, round, more, used, self.now, runs, tail)

    def start(
        self, key: str, program: Program, weight: int = 1, cores: int = 0, devices: int = 1, **more: object
    ) -> Program:
        """The same, with work at once."""
        for member in self.add(key, program, weight, cores, devices, **more):
            self.want(member)
        return program

    def later(self, delay: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, event))

    def run(self, duration: int) -> None:
        """Let so much time pass."""
        end = self.now + duration
        while True:
            event = self._events[0][0] if self._events else None
            known = [arbiter.deadline for arbiter in self.board.ordered] + [event]
            times = [time for time in known if time is not None and time <= end]
            if not times:
                break
            self.now = max(self.now, min(times))
            if event is not None and event <= self.now:
                heapq.heappop(self._events)[2]()
            else:
                self.board.tick(self.now)
            self.check()
        self.now = end

    def held(self, uuid: bytes = b"") -> dict[str, int]:
        """How long each tenant had a device, that of now included."""
        arbiter = self.board.arbiters[uuid or self.uuids[0]]
        arbiter.charge_until(self.now)
        return {tenant.key: tenant.held for tenant in arbiter.tenants.values()}

    def holders(self, uuid: bytes = b"") -> set[str]:
        """The tenants that may launch."""
        arbiter = self.board.arbiters[uuid or self.uuids[0]]
        return {
            tenant.key
            for tenant in arbiter.tenants.values()
            for member in tenant.members
            if member.round and member not in tenant.late
        }

    def check(self) -> None:
        """Never two at once, and nobody who wants a device waits for nothing."""
        for uuid, arbiter in self.board.arbiters.items():
            lease = arbiter.lease
            if not arbiter.policy.leases or lease is not None and lease.tenant is None:
                continue  # everybody holds it, until now at least
            holders = self.holders(uuid)
            assert len(holders) <= 1
            assert (lease is None) == (not holders)
            if arbiter.wanting and (lease is None or lease.end or lease.dropped):
                waits = arbiter.reserved is not None
                assert waits or arbiter.deadline is not None, "nothing will happen any more"

    def _send(self, member: Member, kind: int, round: int, length: int, excess: int) -> None:
        uuid = self._where[member]
        program = member.client
        assert isinstance(program, Program)
        if kind == DROP and excess:  # that is all it says
            program.excess += excess
            program.messages.append((self.now, kind, round))
            return
        # Not from within the arbiter: an answer takes its time.
        self.later(0, lambda: program.hear(self, member, uuid, kind, round, length))

"""Slices that run at the same time, under one MPS server, are kept to their weights."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pytest import approx
from support.vgpucap import Capped, Worker
from support.virtual import World

from nvc.daemon.schedule.pacer import HOLDS, Pacer
from nvc.kernel.clocks import ahead
from nvc.model.slices import layout, quota
from nvc.model.slices.ledger import Budget
from nvc.model.slices.policy import POLICIES
from nvc.slices.policy.entitlement import Demand, in_force
from nvc.slices.policy.policies import DevicePolicy

STEP = 2_000_000  # ns of a step alone, which its program waits for
ALONE = 500.0  # of these, a second
#: The same of each of two at once: see native/simdriver/cuda/together.c.
TWO = ALONE * 1.13 / 2
NATIVE = 469.0  # in all, by time slices of the driver
TRACE = 50  # milliseconds


class Server:
    """An MPS server that takes everybody."""

    def __init__(self) -> None:
        self.taken: list[socket.socket] = []
        self.listeners: list[socket.socket] = []

    def open(self, directory: str) -> None:
        os.makedirs(directory)
        listener = socket.socket(socket.AF_UNIX)
        place = os.open(directory, os.O_PATH)
        listener.bind(f"/proc/self/fd/{place}/client")
        os.close(place)
        listener.listen()
        self.listeners.append(listener)

    def take(self, world: World) -> None:
        """The next one that asks, when it does: a thread of the test's would when the host lets it."""
        (listener,) = world.wait(self.listeners, 60)
        self.taken.append(listener.accept()[0])
        self.taken[-1].send(b"a")

    def close(self) -> None:
        for one in (*self.listeners, *self.taken):
            one.close()


class Gpu:
    """Slices of one GPU under `concurrent`, and what nvcd does for them."""

    def __init__(self, world: World, make: Callable[..., Capped], server: Server) -> None:
        self.world, self.make, self.server = world, make, server
        self.slices: list[Capped] = []
        self.weights: list[int] = []
        self.liars: dict[str, Callable[[Budget], Budget]] = {}  # what their ledgers say of what they had
        self.due: list[tuple[int, Callable[[int], None]]] = []
        self.index = cast(Any, SimpleNamespace(by_key={}, force={}, say=print))
        loop = cast(Any, SimpleNamespace(once=lambda due, work: self.due.append((due, work))))
        self.pacer = Pacer(loop, self.index, self._budgets)

    def slice(self, weight: int) -> Capped:
        made = self.make()
        self.server.open(made.path("nvc/mps"))
        self.slices.append(made)
        self.weights.append(weight)
        made.cap(0, policy=POLICIES.index("concurrent"))
        known = SimpleNamespace(
            quota=os.open(made.path("nvc/quota"), os.O_RDWR), uuids=(quota.uuid_bytes(made.uuids[0]),)
        )
        self.index.by_key[str(len(self.slices) - 1)] = known
        self.weigh()
        return made

    def weigh(self, *weights: int) -> None:
        """As nvcd reads quotas after a change."""
        self.weights = list(weights or self.weights)
        demands = tuple(
            Demand(
                str(number), age=(number, 0), weight=weight, cores=0,
                policy=POLICIES.index("concurrent"),
            )  # fmt: skip
            for number, weight in enumerate(self.weights)
        )
        (raw,) = self.index.by_key["0"].uuids
        self.index.force[raw] = in_force(DevicePolicy(), demands)

    def _budgets(self, key: str) -> tuple[Budget, ...]:
        told = Budget(*self.slices[int(key)].budget()[2:5])
        return (self.liars[key](told) if key in self.liars else told,)

    def run(self, seconds: float) -> None:
        """Let time pass, in which nvcd does what it does."""
        end = self.now + round(seconds * 1e9)
        while self.now < end:
            self.pacer.begin(self.now)  # which nvcd does twice a second
            following = min([due for due, _ in self.due] + [end, self.now + 500_000_000])
            self.world.run((following - self.now) / 1e9)
            now = self.now
            ready = [work for due, work in self.due if due <= now]
            self.due = [(due, work) for due, work in self.due if due > now]
            for work in ready:
                work(now)

    @property
    def now(self) -> int:
        """CLOCK_MONOTONIC as nvcd and the programs read it: of this time namespace, nanoseconds."""
        return self.world.now_ns + ahead("monotonic")

    def start(self, one: Capped, **arguments: object) -> Tenant:
        """A loop that the server has taken."""
        words = {"ns": STEP, "batch": 1, "seconds": 1000, "warm": 0, "trace": TRACE, **arguments}
        made = Tenant(one.worker(**words))
        self.server.take(self.world)
        return made

    def start_all(self) -> list[Tenant]:
        """One in each slice. They do not begin at one moment, nor go on in step."""
        found = []
        for one in self.slices:
            found.append(self.start(one))
            self.run(0.0137)
        return found

    def rates(self, tenants: list[Tenant], seconds: float = 4.0, settle: float = 1.5) -> list[float]:
        """Steps a second of each, once what has changed has settled."""
        self.run(settle)
        begin = self.now
        self.run(seconds)
        return [one.rate(begin, self.now) for one in tenants]


class Tenant:
    """A loop of steps."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        assert worker.process.stdout is not None
        self.said = worker.process.stdout.fileno()
        os.set_blocking(self.said, False)
        self.rest = b""
        self.points: list[tuple[int, int]] = []  # nanoseconds, and steps by then

    def rate(self, begin: int, end: int) -> float:
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.said, 65536):
                self.rest += part
        *lines, self.rest = self.rest.split(b"\n")
        words = [line.split() for line in lines]
        self.points += [(int(float(at) * 1e6), int(count)) for at, count in words if at != b"start"]
        (first, before), *_, (last, after) = [one for one in self.points if begin <= one[0] <= end]
        return (after - before) * 1e9 / (last - first)


@pytest.fixture
def gpu(world: World, beside: Callable[..., Capped]) -> Iterator[Gpu]:
    server = Server()
    made = Gpu(world, beside, server)
    yield made
    server.close()
    for known in made.index.by_key.values():
        os.close(known.quota)


def points_off(rates: list[float], weights: list[int]) -> float:
    """How far the tenant that is farthest off is from its weight's part, in percentage points."""
    return max(100 * abs(rate / sum(rates) - one / sum(weights)) for rate, one in zip(rates, weights))


def test_four(gpu: Gpu) -> None:
    weights = [4, 2, 1, 1]
    for weight in weights:
        gpu.slice(weight)
    rates = gpu.rates(gpu.start_all())
    # By when each begins, between 0.04 and 3.75: their steps are as long as a part of a window.
    assert points_off(rates, weights) < 4, (points_off(rates, weights), rates)
    assert sum(rates) > 1.1 * NATIVE, rates


def test_one_that_goes_idle_and_comes_back(gpu: Gpu) -> None:
    """The other one has all of the GPU as long as it is alone."""
    heavy, light = gpu.slice(3), gpu.slice(1)
    tenants = [gpu.start(heavy, idle=4000), gpu.start(light)]
    assert points_off(gpu.rates(tenants, 2), [3, 1]) < 3
    gpu.run(0.5)
    assert gpu.rates(tenants[1:], 2)[0] == approx(ALONE, rel=0.02)
    again = [gpu.start(heavy), tenants[1]]
    assert points_off(gpu.rates(again), [3, 1]) < 3


def test_weights_that_change(gpu: Gpu) -> None:
    gpu.slice(1), gpu.slice(1)
    tenants = gpu.start_all()
    assert gpu.rates(tenants, 1) == approx([TWO, TWO], rel=0.01)
    gpu.weigh(1, 4)
    assert points_off(gpu.rates(tenants), [1, 4]) < 3
    gpu.weigh(1, 1)
    assert gpu.rates(tenants, 2, settle=0.5) == approx([TWO, TWO], rel=0.02)


def test_without_nvcd_nobody_is_held_back_for_long(gpu: Gpu, world: World) -> None:
    heavy, light = gpu.slice(3), gpu.slice(1)
    tenants = [gpu.start(heavy), gpu.start(light)]
    gpu.run(2)
    world.run(HOLDS / 1e9 + 0.1)
    begin = gpu.now
    world.run(1)
    assert [one.rate(begin, gpu.now) for one in tenants] == approx([TWO, TWO], rel=0.01)


def test_a_slice_that_lies_about_its_time(gpu: Gpu) -> None:
    """One that says it had nothing has what MPS gives it, and that is what the other one loses by it."""
    gpu.slice(3), gpu.slice(1)
    gpu.liars["1"] = lambda told: Budget()
    tenants = gpu.start_all()
    assert gpu.rates(tenants, 2) == approx([TWO, TWO], rel=0.01)
    gpu.liars = {"1": lambda told: told.replace(charged=gpu.world.now_ns)}  # and one that says it always had work
    assert points_off(gpu.rates(tenants), [3, 1]) < 2


def test_no_turn_is_given_while_the_policy_is_another(gpu: Gpu) -> None:
    """What nvcd said for `concurrent` does not hold under `native`."""
    heavy, light = gpu.slice(3), gpu.slice(1)
    tenants = [gpu.start(heavy), gpu.start(light)]
    gpu.run(2)
    light.cap(0, policy=layout.POLICY_NATIVE)
    (raw,) = gpu.index.by_key["1"].uuids
    before = gpu.pacer.paces[raw, "1"]
    assert before < 60 and gpu.rates(tenants, 1, settle=0.1) == approx([TWO, TWO], rel=0.02)


@pytest.mark.parametrize(
    ("ns", "batch"), [(1_000_000, 0), (100_000_000, 1), pytest.param(5_000, 0, marks=pytest.mark.nightly)]
)
def test_a_light_tenant_that_does_other_work(gpu: Gpu, ns: int, batch: int) -> None:
    """It never waits for its kernels, or they are long, or very short: the loop beside it has its part.

    What it has queued before it is measured goes on beside the loop: so it is seconds until that is so.
    """
    heavy, light = gpu.slice(3), gpu.slice(1)
    tenants = [gpu.start(heavy), gpu.start(light, ns=ns, batch=batch)]
    steps, kernels = gpu.rates(tenants, 3 if ns < 10_000 else 8, settle=3)
    had = kernels * ns / 1e9
    assert points_off([steps / ALONE, had], [3, 1]) < 4


@pytest.mark.parametrize(("ns", "batch"), [(1_000_000, 0), pytest.param(5_000, 0, marks=pytest.mark.nightly)])
def test_a_heavy_tenant_that_does_other_work(gpu: Gpu, ns: int, batch: int) -> None:
    """Of kernels of 5 us, the events by which they are measured take it a part."""
    heavy, light = gpu.slice(3), gpu.slice(1)
    tenants = [gpu.start(heavy, ns=ns, batch=batch), gpu.start(light)]
    kernels, steps = gpu.rates(tenants, 3 if ns < 10_000 else 8, settle=1.5 if ns < 10_000 else 3)
    had = kernels * ns / 1e9
    assert points_off([had, steps / ALONE], [3, 1]) < (10 if ns < 10_000 else 3)

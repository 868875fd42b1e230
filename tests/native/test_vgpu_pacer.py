"""Caps that the shim keeps by itself, of programs that mean well, on a simulated GPU in virtual time.

Nothing is measured: each test takes the same course each time. What is left of a bound is credit, of which a period
of 100 ms may be saved up at either end of the time that is looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from pytest import approx
from support import GIB
from support.builds import kept
from support.clocks import apart
from support.simdriver import SANITIZE
from support.vgpucap import FIXED, NATIVE, PERIOD, Capped, Shares, Worker, compile_work
from support.vgpushim import Slice
from support.virtual import World, device_time

from nvc.model.slices import layout

BESIDE = 0.006  # likewise of several processes, of which one begins while another one's end is not seen yet
POINTS = 0.003  # of ten seconds, at most a period and what a look at the device comes late
DAY = 86400
LONG = {"seconds": 10_000, "warm": 0}


@pytest.mark.parametrize("cap", [10, 50, 90])
def test_kernels_of_a_millisecond(world: World, capped: Callable[..., Capped], cap: int) -> None:
    slice_ = capped()
    slice_.cap(cap)
    slice_.worker(ns=1_000_000, batch=0, **LONG)
    got = Shares(world, slice_)
    assert got.total == approx(cap / 100, abs=POINTS)
    assert got.charged == approx(got.total, abs=POINTS)


@pytest.mark.parametrize("cap", [10, 90])
def test_what_waited_is_what_its_cap_held_back(world: World, capped: Callable[..., Capped], cap: int) -> None:
    """Not the time in which a program that never waits had enough work under way."""
    slice_ = capped()
    slice_.cap(cap)
    slice_.worker(ns=1_000_000, batch=0, **LONG)
    world.run(1)
    before = slice_.budget()[3]
    world.run(5)
    assert (slice_.budget()[3] - before) / 5e9 == approx(1 - cap / 100, abs=0.08)


@pytest.mark.parametrize("world", [0, 51 * 60, 400 * DAY], indirect=True)
def test_however_long_the_machine_is_up(world: World, capped: Callable[..., Capped]) -> None:
    """Credit begins with the first launch, not with the machine, and a later pause is of no use."""
    slice_ = capped()
    slice_.cap(25)
    first = slice_.worker(ns=1_000_000, batch=0, **LONG)
    world.run(10)
    assert device_time(slice_.root).total == approx(2.5, abs=0.5 * PERIOD)
    first.kill()
    before = device_time(slice_.root).total
    world.run(55 * 60)
    slice_.worker(ns=1_000_000, batch=0, **LONG)
    world.run(10)
    assert device_time(slice_.root).total - before == approx(2.5, abs=0.5 * PERIOD)


@pytest.mark.parametrize(
    ("cap", "kind"), [(50, "graph"), (25, "coop"), (50, "ex"), (75, "multi"), (50, "ptsz")]
)
def test_every_kind_of_launch(world: World, capped: Callable[..., Capped], cap: int, kind: str) -> None:
    slice_ = capped()
    slice_.cap(cap)
    slice_.worker(ns=200_000, kind=kind, nodes=5, batch=0, **LONG)
    assert Shares(world, slice_, 2).total == approx(cap / 100, abs=PERIOD / 2 * cap / 100)


@pytest.mark.parametrize("cap", [25, 50])
def test_long_kernels_make_debt(world: World, capped: Callable[..., Capped], cap: int) -> None:
    """Of 40 ms each: what is behind one waits until that is worked off."""
    slice_ = capped()
    slice_.cap(cap)
    slice_.worker(ns=40_000_000, batch=1, **LONG)
    assert Shares(world, slice_, 20).total == approx(cap / 100, abs=0.04 / 20)  # a kernel more or less


def test_processes_share_one_budget(world: World, capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(40)
    for _ in range(3):
        slice_.worker(ns=500_000, batch=2, **LONG)
    got = Shares(world, slice_)
    assert got.total == approx(0.4, abs=BESIDE)
    assert got.each == [approx(0.4 / 3, abs=BESIDE)] * 3


@pytest.mark.parametrize("ahead", [1000, -2])
def test_a_process_with_a_clock_of_its_own(world: World, capped: Callable[..., Capped], ahead: int) -> None:
    """In a time namespace (time_namespaces(7)): it neither makes credit nor takes it from others."""
    slice_ = capped()
    slice_.cap(40)
    slice_.worker(ns=500_000, batch=2, **LONG)
    first, *words = apart(ahead)
    other = Worker(first, slice_.environment(), *words, slice_.tool, time=world, ns=500_000, batch=2, **LONG)
    slice_.workers.append(other)
    got = Shares(world, slice_)
    assert got.total == approx(0.4, abs=BESIDE)
    assert 0.15 < got.each[0] < 0.25  # who goes on first after a wait may have a kernel more


def test_threads_and_streams_share_it_too(world: World, capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(50)
    # As wide as the GPU, so that kernels of different streams do not overlap.
    worker = slice_.worker(ns=200_000, grid=20000, threads=4, streams=4, batch=0, seconds=2, warm=0)
    got = Shares(world, slice_, 1, 0.5)
    assert 0.3 < got.total <= 0.5 + PERIOD * 0.5
    assert worker.started().result().longest < 200


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_kernels_of_two_lengths(world: World, capped: Callable[..., Capped], batch: int) -> None:
    """Of one shape, in turn: as where matrices of the same shape have another depth."""
    slice_ = capped()
    slice_.cap(20)
    slice_.worker(ns=100_000, mixed=4, batch=batch, **LONG)
    got = Shares(world, slice_)
    assert got.charged == approx(0.2, abs=POINTS)
    assert got.charged == approx(
        got.total, rel=0.09
    )  # samples: of three at a time, the long ones are half of the ends


def test_what_overlaps_is_charged_once(world: World, capped: Callable[..., Capped]) -> None:
    """Kernels of one block run beside each other: the device is busy for as long as one of them runs."""
    slice_ = capped()
    slice_.cap(50)
    worker = slice_.worker(ns=2_000_000, threads=1, streams=4, batch=0, seconds=11, warm=0)
    got = Shares(world, slice_, 9)
    assert got.total == approx(0.5, abs=0.005)  # the end of a stretch is seen a little late
    assert got.charged == approx(got.total, rel=0.02)  # of each wait, what it takes by itself is taken off
    assert worker.started().result().kernels * 0.002 > 11 * 0.5 * 1.25


def test_a_kernel_that_waits_for_the_next_one(world: World, capped: Callable[..., Capped]) -> None:
    """The gate opens for it, however little is left, so that both end; and none waits for longer each time."""
    slice_ = capped()
    slice_.cap(50)
    got = slice_.worker(kind="spin", streams=2, seconds=2, warm=0).started().result()
    assert got.kernels > 8
    assert got.longest < 250


def test_captures_beside_what_waits(world: World, capped: Callable[..., Capped]) -> None:
    """In the mode in which a call of any thread can break a capture: the shim's calls do not."""
    slice_ = capped()
    slice_.cap(20)
    slice_.worker(ns=500_000, batch=0, captures=1, **LONG)
    got = Shares(world, slice_, 1, 0.2)
    assert got.total == approx(0.2, abs=PERIOD * 0.2)


@pytest.mark.nightly
def test_under_sanitizers(sim_root: Callable[..., str], shims_sanitized: str) -> None:
    """In real time, with threads that do run at once: nothing is said of shares."""
    work = kept("vgpu_work-sanitized", lambda directory: compile_work(directory, "-O1", "-g", *SANITIZE))
    slice_ = Capped(sim_root(), shims_sanitized, work)
    slice_.workers = []
    slice_.cap(60)
    slice_.work(ns=20000, threads=4, streams=8, batch=3, churn=1, seconds=0.6)
    slice_.work(ns=20000, threads=8, streams=40, batch=3, churn=1, seconds=0.3)  # more than are known
    slice_.work(ns=50000, batch=0, captures=1, seconds=0.2)
    slice_.work(ns=20000, kind="graph", nodes=3, threads=2, batch=1, seconds=0.2)


def test_contexts_that_end(vgpu: Slice) -> None:
    """With launches that are not measured yet; another context may get the handle."""
    vgpu.limit(8 * GIB, 8 * GIB, cores=30, policy=FIXED)
    process = vgpu.process().do("init")
    for _ in range(3):
        process.do("context c 0", "stream s", "module m", *["launch m"] * 12, "dropcontext c")
        process.do("primary 0", "stream s", "module m", *["launch m"] * 12, "reset 0")


def test_a_cap_is_changed_while_it_runs(world: World, capped: Callable[..., Capped]) -> None:
    """What is in its queue is done first: four kernels."""
    slice_ = capped()
    slice_.cap(0, NATIVE)
    slice_.worker(ns=1_000_000, batch=4, **LONG)
    for cap in (20, 80, 20):
        slice_.cap(cap)
        assert Shares(world, slice_, 5, 0.1).total == approx(cap / 100, abs=PERIOD / 5)
    slice_.cap(0)
    assert Shares(world, slice_, 5, 0.1).total > 0.98


def test_a_killed_process_leaves_the_budget_in_order(world: World, capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(30)
    for ms in (20, 21, 22.5, 40):
        victim = slice_.worker(ns=1_000_000, threads=4, batch=0, **LONG)
        world.run(ms / 1e3)
        victim.kill()
    slice_.worker(ns=1_000_000, batch=0, **LONG)
    assert Shares(world, slice_).total == approx(0.3, abs=POINTS)


def test_nonsense_in_the_budget(world: World, capped: Callable[..., Capped]) -> None:
    """Whatever a process of the container writes there, launches go on, at the cap soon after."""
    slice_ = capped()
    slice_.cap(50)
    worker = slice_.worker(ns=500_000, threads=2, batch=1, seconds=3, warm=0)
    with open(slice_.path("nvc/ledger/ledger"), "r+b", buffering=0) as ledger:
        for byte in itertools.islice(itertools.cycle((0xFF, 0x00, 0x7F, 0x80, 0x01)), 1000):
            # Not the credit: a debt of 30 seconds would be believed.
            ledger.seek(layout.BUDGETS_OFFSET + 8)
            ledger.write(bytes([byte]) * (layout.BUDGET.size - 8))
            world.run(0.000531)
    got = Shares(world, slice_, 2, 0.1)
    assert got.charged == approx(0.5, abs=PERIOD / 2 * 0.5)
    assert 0.35 < got.total <= got.charged + POINTS  # of what overlaps, some is charged twice
    assert worker.started().result().longest < 1000


def test_kernels_of_5_us(world: World, capped: Callable[..., Capped]) -> None:
    """The event behind each takes 2 us of the device, which the slice pays for."""
    slice_ = capped()
    slice_.cap(10)
    slice_.worker(ns=5000, batch=0, **LONG)
    got = Shares(world, slice_, 1, 0.2)
    assert got.charged == approx(0.1, abs=0.01)
    assert 0.65 * got.charged < got.total < got.charged


def test_without_a_cap_nothing_is_measured(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    for cores, policy in ((0, NATIVE), (50, NATIVE), (100, 3), (0, 0)):
        slice_.cap(cores, policy)
        got = slice_.work(ns=100000, batch=4, seconds=0.1, warm=0.05)
        assert got.kernels > 0
    assert not any(slice_.budget())

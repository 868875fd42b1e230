"""Caps on a simulated GPU: fixed work per second beside what was asked.

Kernels of a simulated GPU take the time that they say. On a busy host, programs do not come to launch all that they
may: so a share is looked at from above alone, and what was given from both sides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from support import REPO, run
from support.measured import above, below, near, within
from support.simdriver import SANITIZE
from support.vgpucap import FIXED, NATIVE, PERIOD, Capped, Result, Worker, compile_work
from support.vgpushim import GIB, Slice

from nvc.vgpu import layout

POINTS = 0.02
MS = 1e-3


def check(slice_: Capped, cap: int, result: Result, work: float) -> None:
    """The process had its share, of kernels of `work` seconds, and no more."""
    given = slice_.given(result.seconds_in_all, result.kernels_in_all * work)
    near(given, cap / 100, POINTS, result)
    not_above(cap, result, work=work)


def not_above(cap: int, *results: Result, work: float = MS) -> None:
    """Processes of one budget had no more than their share, of kernels of `work` seconds, and what was saved up."""
    share = sum(result.rate for result in results) * work
    below(share, cap / 100 * (1 + PERIOD / results[0].seconds) + POINTS, results)


@pytest.mark.parametrize("cap", [10, 25, 50, 75, 90])
def test_kernels_of_a_millisecond(capped: Callable[..., Capped], cap: int) -> None:
    slice_ = capped()
    slice_.cap(cap)
    check(slice_, cap, slice_.work(ns=1000000, batch=0, seconds=0.6), MS)


@pytest.mark.parametrize("cap", [10, 50, 90])
def test_kernels_of_5_us(capped: Callable[..., Capped], cap: int) -> None:
    """Of which the host has 500 times as many to launch."""
    slice_ = capped()
    slice_.cap(cap)
    got = slice_.work(ns=5000, batch=0, seconds=0.5, warm=0.3)
    not_above(cap, got, work=5e-6)
    near(slice_.charged() / (got.kernels_in_all * 5e-6), 1, 0.05)  # events of ours are not charged


@pytest.mark.parametrize(
    ("cap", "kind"), [(50, "graph"), (25, "coop"), (50, "ex"), (75, "multi"), (50, "ptsz")]
)
def test_every_kind_of_launch(capped: Callable[..., Capped], cap: int, kind: str) -> None:
    slice_ = capped()
    slice_.cap(cap)
    check(slice_, cap, slice_.work(ns=200000, kind=kind, nodes=5, batch=0, seconds=0.4), 0.2 * MS)


@pytest.mark.parametrize("cap", [25, 50])
def test_long_kernels_make_debt(capped: Callable[..., Capped], cap: int) -> None:
    """Of 40 ms each: what is behind one waits until that is worked off."""
    slice_ = capped()
    slice_.cap(cap)
    got = slice_.work(ns=40000000, batch=1, seconds=1.2, warm=0.4)
    given = slice_.given(got.seconds_in_all, got.kernels_in_all * 40 * MS)
    near(given, cap / 100, 0.05)  # one kernel more or less is 0.025


def test_waiting_for_the_host_is_not_charged(capped: Callable[..., Capped]) -> None:
    """A program that launches and waits keeps the device busy for a part of the time: only that counts."""
    slice_ = capped()
    slice_.cap(90)
    got = slice_.work(ns=50000, batch=1, seconds=0.8, warm=0.2)
    near(slice_.charged() / (got.kernels_in_all * 0.05 * MS), 1, 0.1)


def test_processes_share_one_budget(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(40)
    workers = [slice_.worker(ns=500000, batch=2, seconds=0.8, warm=0.3) for _ in range(3)]
    results = [worker.started().result() for worker in workers]
    not_above(40, *results, work=0.5 * MS)
    above(min(result.rate for result in results) * 0.5 * MS, 0.04)


@pytest.mark.parametrize("ahead", [1000, -1000])
def test_a_process_with_a_clock_of_its_own(capped: Callable[..., Capped], ahead: int) -> None:
    """In a time namespace (time_namespaces(7)): it neither makes credit nor takes it from others."""
    slice_ = capped()
    slice_.cap(40)
    here = slice_.worker(ns=500000, batch=2, seconds=0.8, warm=0.3)
    words = ("--time", f"--monotonic={ahead}", "--fork", "--kill-child", slice_.tool)
    slice_.workers.append(
        Worker("unshare", slice_.environment(), *words, ns=500000, batch=2, seconds=0.8, warm=0.3)
    )
    results = [worker.started().result() for worker in (here, slice_.workers[-1])]
    not_above(40, *results, work=0.5 * MS)
    above(min(result.rate for result in results) * 0.5 * MS, 0.04)


def test_threads_and_streams_share_it_too(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(50)
    # As wide as the GPU, so that kernels of different streams do not overlap.
    got = slice_.work(ns=200000, grid=20000, threads=8, streams=8, batch=0, seconds=0.8, warm=0.4)
    not_above(50, got, work=0.2 * MS)
    above(got.rate * 0.2 * MS, 0.15)
    below(got.longest, 200)


def test_more_streams_than_are_known_at_once(capped: Callable[..., Capped]) -> None:
    """What is launched into the others is charged as estimated: nvcd holds use against the books."""
    slice_ = capped()
    slice_.cap(50)
    got = slice_.work(ns=1000000, grid=20000, threads=36, streams=64, batch=64, seconds=0.8, warm=0)
    not_above(50, got)
    above(slice_.charged(), 0.9 * got.kernels_in_all * MS)


@pytest.mark.parametrize("ns", [100000, 4096000])
def test_kernels_that_become_longer(capped: Callable[..., Capped], ns: int) -> None:
    """And are waited for, one by one: what they took before, in the same shape, says nothing of them."""
    slice_ = capped()
    slice_.cap(20)
    got = slice_.work(ns=ns, short=600, batch=1, seconds=0.6, warm=0.4)
    assert got.kernels
    not_above(20, got, work=ns * 1e-9)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_kernels_of_two_lengths(capped: Callable[..., Capped], batch: int) -> None:
    """Of one shape, in turn: as where matrices of the same shape have another depth."""
    slice_ = capped()
    slice_.cap(20)
    got = slice_.work(ns=100000, mixed=4, batch=batch, seconds=0.9, warm=0.3)
    near(slice_.charged() / (got.kernels_in_all * 2.5 * 0.1 * MS), 1, 0.15)  # of samples


def test_what_overlaps_is_charged_once(capped: Callable[..., Capped]) -> None:
    """Kernels of one block run beside each other: the device is busy for as long as one of them runs."""
    slice_ = capped()
    slice_.cap(50)
    got = slice_.work(ns=2000000, threads=1, streams=4, batch=0, seconds=0.8, warm=0.2)
    below(slice_.charged(), 0.8 * got.kernels_in_all * 2 * MS)


def test_a_kernel_that_waits_for_the_next_one(capped: Callable[..., Capped]) -> None:
    """The gate opens for it, however little is left, so that both end; and none waits for longer each time."""
    slice_ = capped()
    slice_.cap(50)
    got = slice_.work(kind="spin", streams=2, seconds=1.5, warm=0)
    assert got.kernels > 4
    below(got.longest, 400)


def test_captures_beside_what_waits(capped: Callable[..., Capped]) -> None:
    """In the mode in which a call of any thread can break a capture: the shim's calls do not."""
    slice_ = capped()
    slice_.cap(20)
    got = slice_.work(ns=500000, batch=0, captures=1, seconds=0.4)
    not_above(20, got, work=0.5 * MS)


def test_under_sanitizers(
    capped: Callable[..., Capped], shims_sanitized: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = str(tmp_path_factory.mktemp("sanitized"))
    slice_ = capped(shims_sanitized, compile_work(directory, "-O1", "-g", *SANITIZE))
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


def test_a_cap_is_changed_while_it_runs(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(0, NATIVE)
    worker = slice_.worker(ns=1000000, batch=4, seconds=60, trace=20).started()

    for cap, low, high in ((20, 0.05, 0.25), (80, 0.4, 0.86), (20, 0.05, 0.25), (0, 0.5, 1.05)):
        slice_.cap(cap)
        lines = [worker.progress()]
        while lines[-1][0] - lines[0][0] < 700:
            lines.append(worker.progress())
        late = [line for line in lines if line[0] - lines[0][0] >= 480]
        within((late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]), low, high, cap)
    worker.stop()


def test_pause_and_resume(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(0, NATIVE)
    worker = slice_.worker(ns=1000000, batch=1, seconds=60, trace=5).started()
    slice_.cap(0, NATIVE, flags=1)
    lines = [worker.progress()]
    while lines[-1][0] - lines[0][0] < 300:
        lines.append(worker.progress())
    below(next(at for at, kernels in lines if kernels == lines[-1][1]) - lines[0][0], 150)
    slice_.cap(50)
    start, kernels = worker.progress()
    while kernels == lines[-1][1]:
        at, kernels = worker.progress()
        below(at - start, 150)
    slice_.cap(50, flags=1)
    worker.kill()  # while it waits


def test_a_killed_process_leaves_the_budget_in_order(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    slice_.cap(30)
    for _ in range(4):
        victim = slice_.worker(ns=1000000, threads=4, batch=0, seconds=60, warm=0.02).started()
        victim.kill()
    got = slice_.work(ns=1000000, batch=0, seconds=0.6, warm=0.4)
    not_above(30, got)
    above(got.rate * MS, 0.15)


def test_nonsense_in_the_budget(capped: Callable[..., Capped]) -> None:
    """Whatever a process of the container writes there, launches go on, at the cap soon after."""
    slice_ = capped()
    slice_.cap(50)
    worker = slice_.worker(ns=500000, threads=2, batch=1, seconds=1.2, warm=0.4)
    ending = threading.Event()
    scribbler = threading.Thread(target=scribble, args=(slice_, ending))
    scribbler.start()
    worker.started()
    ending.set()
    scribbler.join()
    got = worker.result()
    above(got.rate * 0.5 * MS, 0.2)
    below(got.longest, 1000)


def scribble(slice_: Capped, ending: threading.Event) -> None:
    patterns = [b"\xff", b"\x00", b"\x7f", b"\x80", b"\x01"]
    with open(slice_.path("nvc/ledger/ledger"), "r+b", buffering=0) as ledger:
        for turn in range(1 << 30):
            if ending.is_set():
                break
            # Not the credit: a debt of 30 seconds would be believed.
            ledger.seek(layout.BUDGETS_OFFSET + 8)
            ledger.write(patterns[turn % len(patterns)] * (layout.BUDGET.size - 8))


def test_without_a_cap_nothing_is_metered(capped: Callable[..., Capped]) -> None:
    slice_ = capped()
    for cores, policy in ((0, NATIVE), (50, NATIVE), (100, 3), (0, 0)):
        slice_.cap(cores, policy)
        got = slice_.work(ns=100000, batch=4, seconds=0.1, warm=0.05)
        assert got.kernels > 0
    assert slice_.budget()[:8] == (0,) * 8


def test_events_take_what_they_do_on_an_h100(capped: Callable[..., Capped]) -> None:
    """On the simulated GPU, by the program that measures it on a real one."""
    slice_ = capped()
    program = slice_.path("vgpu_events")
    run("gcc", "-O2", "-D_GNU_SOURCE", "-o", program, os.path.join(REPO, "tests/gpu/vgpu_events.c"), "-ldl")
    variables = {**slice_.environment(), "LD_LIBRARY_PATH": slice_.real_directory()}
    plain, _, _, fourth, among, _ = map(float, run(program, env=variables, timeout=60).stdout.split())
    near(4 * (fourth - plain), 2.2, 0.3)
    near(among - plain, 2.2, 0.3)

"""Jobs that span two GPUs, with tensor parallelism and NCCL, under limits and beside each other.

Two GPUs that nobody else uses, and about 8 minutes. NVC_TWO_MINUTES (3) is how long the programs of
test_two_gpus_side_by_side run. Every figure is noted before any is judged. Contenders that are compared run
by turns, so that what drifts hits all alike.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import pytest
from support import GIB, STAGE, gpus, run, two_gpus
from support.honest import Honest, side_by_side, wrong
from support.nvcd import Place, ask
from support.realslice import program
from support.two_gpus import Job, Worked, ranks, slice_of_both, together

pytestmark = pytest.mark.gpu
Measured = Callable[[str, object], None]
MINUTES = float(os.environ.get("NVC_TWO_MINUTES", "3"))
MEMORY = "--memory=45%"
STOPPED = 30.0  # seconds that a job is stopped, in which no watchdog may fire
SIZES = [1 << power for power in range(10, 31, 2)]  # of tests/gpu/two_ranks.py


@pytest.fixture
def place() -> Iterator[Place]:
    """An nvcd of its own, with a log of its own."""
    assert len(gpus.all_uuids()) >= 2, "there is one GPU"
    scratch = tempfile.mkdtemp(prefix="two-", dir="/tmp")
    made = Place(STAGE, scratch)
    try:
        made.start(*([] if gpus.ROOT == "/" else [f"--root={gpus.ROOT}"]))
        yield made
    finally:
        made.end()
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """All that were started end with the test."""
    made: list[Job] = []
    yield made
    for one in made:
        one.kill()


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """Random weights of 8 layers as Llama 3 with 8B has them, in memory."""
    free = shutil.disk_usage("/dev/shm").free
    directory = tempfile.mkdtemp(prefix="two-", dir="/dev/shm" if free > 8 * GIB else "/var/tmp")
    run(program("python3"), two_gpus.PROGRAM, "make", directory, env=two_gpus.environment(), timeout=150)
    yield directory
    shutil.rmtree(directory)


def found_by(place: Place) -> list[str]:
    """What nvcd has found, which must be nothing."""
    return [f"nvcd: {one}" for one in wrong(ask(place))]


def by_turns(contenders: Sequence[Job], rounds: int, seconds: float) -> list[list[Worked]]:
    """What each did in each round, one after the other."""
    found: list[list[Worked]] = [[] for _ in contenders]
    for turn in range(rounds):
        for at in range(len(contenders)):
            one = (at + turn) % len(contenders)
            found[one].append(contenders[one].work(seconds))
    return found


def mean(found: Sequence[Worked]) -> float:
    return sum(one.rate() for one in found) / len(found)


def texts(values: Sequence[float], form: str = ".3f") -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def decoders(place: Place, jobs: list[Job], model: str, *more: str) -> dict[str, Job]:
    """Decode jobs in each way, ready."""
    cap, equal = (MEMORY, "--cores=50"), (MEMORY, "--weight=1")
    ways: dict[str, Sequence[str] | None] = {
        "driver": None, "driver 2": None, "no limits": ("--weight=1",), "memory": (MEMORY,),
        "cap 1": cap, "cap 2": cap, "equal 1": equal, "equal 2": equal,
    }  # fmt: skip
    made = {}
    for name, options in ways.items():
        named = f"{name.replace(' ', '-')}{'-graph' if more else ''}"
        before = [] if options is None else slice_of_both(place, named, *options)
        made[name] = Job(name, ranks("decode", model, *more), before)
        jobs.append(made[name])
    for job in made.values():
        job.ready()
    return made


def test_two_gpus_tensor_parallel(place: Place, jobs: list[Job], model: str, measured: Measured) -> None:
    two_gpus.policy(place, "weight")
    try:
        made = decoders(place, jobs, model, "--graph")
        measured("decode: CUDA graph; NCCL", f"yes; {made['driver'].begun['nccl']}")
    except AssertionError as error:
        measured("decode: CUDA graph", f"no: {' '.join(str(error)[-300:].split())}")
        for job in jobs:
            job.kill()
        made = decoders(place, jobs, model)
    measured("time is kept", two_gpus.kept(place))
    bad = []
    alone, *limited = by_turns([made[name] for name in ("driver", "no limits", "memory")], 6, 1.0)
    sums = {name: set().union(*(one.seen(name) for one in alone)) for name in ("tokens", "logits")}
    differ = alone[0].ranks[0]["different"][0]
    measured(
        "decode, the driver alone: steps/s of 8 sequences; tokens",
        f"{mean(alone):.1f}; {sorted(sums['tokens'])}",
    )
    measured("decode: sums of the last logits; different tokens", f"{sorted(sums['logits'])}; {differ}")
    if len(sums["tokens"]) != 1:
        bad.append("the driver alone has different tokens")

    def same(name: str, found: Sequence[Worked]) -> None:
        tokens = set().union(*(one.seen("tokens") for one in found))
        logits = set().union(*(one.seen("logits") for one in found))
        measured(
            f"decode, {name}: same tokens, same logits",
            f"{tokens == sums['tokens']}, {logits == sums['logits']}",
        )
        if tokens != sums["tokens"]:
            bad.append(f"{name}: {tokens}")

    for name, found in zip(("no limits", "memory of 45 %"), limited):
        part = mean(found) / mean(alone)
        each = [a.rate() / b.rate() for a, b in zip(found, alone)]
        measured(f"decode, {name}: steps/s, of the driver alone; each turn", f"{part:.3f}; {texts(each)}")
        same(name, found)
        if part < 0.97:
            bad.append(f"{name}: {part:.3f}")
    capped = made["cap 1"].work(4)
    measured("decode, cap of 50, alone: steps/s, of the driver alone", f"{capped.rate() / mean(alone):.3f}")
    same("cap of 50", [capped])
    for name, left, right in (
        ("the driver alone", "driver", "driver 2"),
        ("caps of 50", "cap 1", "cap 2"),
        ("weights 1", "equal 1", "equal 2"),
    ):  # fmt: skip
        before, begin = two_gpus.had(place), time.monotonic()
        two = together([made[left], made[right]], 5)
        seconds = time.monotonic() - begin
        account = [
            100 * (now - before.get(key, (0, 0))[0]) / seconds / 1e9
            for key, (now, _) in two_gpus.had(place).items()
        ]
        rates = [rate for _, rate in two]
        shares = [100 * rate / sum(rates) for rate in rates]
        measured(f"two decode jobs, {name}: shares, %", texts(shares, ".2f"))
        measured(
            f"two decode jobs, {name}: steps/s, of one alone", texts([rate / mean(alone) for rate in rates])
        )
        measured(
            f"two decode jobs, {name}: nvcd's account, % of a GPU",
            texts([one for one in account if one > 1], ".2f"),
        )
        same(f"two, {name}", [one for one, _ in two])
        if name != "the driver alone" and abs(shares[0] - 50) > 2:
            bad.append(f"two, {name}: {texts(shares, '.2f')}")
    assert bad + found_by(place) == []


def test_two_gpus_nccl(place: Place, jobs: list[Job], measured: Measured) -> None:
    """Two jobs of each kind. By how much the driver's two differ says what a difference is worth."""
    two_gpus.policy(place, "weight")
    limits: dict[str, Sequence[str] | None] = {
        "driver": None, "no limits": ("--weight=1",), "memory": (MEMORY,), "cap": (MEMORY, "--cores=50"),
    }  # fmt: skip
    for number in (1, 2):
        for name, options in limits.items():
            named = f"{name.replace(' ', '-')}-{number}"
            before = [] if options is None else slice_of_both(place, named, *options)
            jobs.append(Job(f"{name} {number}", ranks("sweep"), before))
    for job in jobs:
        job.ready()
    rounds: dict[str, list[list[float]]] = {}
    for job, found in zip(jobs, by_turns(jobs, 7, 0.05)):  # a turn is one round
        for name in (job.name, job.name[:-2]):
            for call in ("reduce", "send"):
                made = [one for worked in found for one in worked.ranks[0][call]]
                rounds.setdefault(f"{name} {call}", []).extend(made)
    middle = {name: [median(column) for column in zip(*found)] for name, found in rounds.items()}
    bad = []
    for call in ("reduce", "send"):
        for at, size in enumerate(f"{size >> 10} KiB" for size in SIZES):
            native = middle[f"driver {call}"][at]
            others = ("driver 1", "driver 2", *limits)
            parts = {name: middle[f"{name} {call}"][at] / native for name in others if name != "driver"}
            said = "; ".join(f"{name} {part:.3f}" for name, part in parts.items())
            measured(f"NCCL {call}, {size}: GB/s of the driver; of that", f"{native / 1e9:.4f}; {said}")
            least = min(0.97, parts["driver 1"], parts["driver 2"])
            bad += [
                f"{call}, {size}, {name}: {parts[name]:.3f}"
                for name in ("no limits", "memory")
                if parts[name] < least
            ]
    assert bad + found_by(place) == []


def test_two_gpus_peers(place: Place, jobs: list[Job], measured: Measured) -> None:
    """CUDA IPC and peer access between the two processes of a job."""
    jobs += [
        Job("driver", ranks("ipc")), Job("no limits", ranks("ipc"), slice_of_both(place, "free", "--weight=1")),
        Job("memory", ranks("ipc"), slice_of_both(place, "memory", MEMORY)),
    ]  # fmt: skip
    bad = []
    for job in jobs:
        job.ready()
    for job, (one,) in zip(jobs, by_turns(jobs, 1, 0.5)):
        owner, other = one.ranks
        rates = [max(other[name]) / 1e9 for name in ("read", "written")]
        peers, right = owner["peer"][0], {*owner["right"], *other["right"]}
        measured(
            f"IPC of 1 GiB, {job.name}: peers; right; GB/s read, written",
            f"{peers}; {right}; {texts(rates, '.1f')}",
        )
        if right != {True}:
            bad.append(f"{job.name}: wrong values")
        if job.quit():
            bad.append(f"{job.name}: {job.problem()}")
    assert bad + found_by(place) == []


def test_two_gpus_stop_and_start(place: Place, jobs: list[Job], measured: Measured) -> None:
    """A job of both GPUs is stopped on both, then on one; then it is `first` beside another."""
    two_gpus.policy(place, "first")
    jobs += [
        Job("pair", ranks("steps"), slice_of_both(place, "pair", MEMORY, "--policy=first")),
        Job("other", ranks("steps"), slice_of_both(place, "other", MEMORY, "--policy=weight")),
    ]
    pair, other = (job.ready() for job in jobs)
    bad: list[str] = []
    alone = pair.work(3).rate()
    for name, words, seconds in (
        ("both GPUs", (), STOPPED),
        ("one GPU", (f"--device={gpus.all_uuids()[1]}",), 5.0),
    ):
        pair.ask(seconds + 4)
        time.sleep(1)
        stop = two_gpus.order(place, "pause", "pair", *words)
        time.sleep(seconds)
        start = time.monotonic()  # the order takes effect before it is over
        two_gpus.order(place, "resume", "pair", *words)
        found = pair.told(10)
        lasts = [max(at for at in one["times"] if at < start) - stop for one in found.ranks]
        firsts = [
            min((at for at in one["times"] if at >= start), default=0.0) - start for one in found.ranks
        ]
        measured(f"stopped on {name}: last step of each rank after the order, s", texts(lasts))
        measured(
            f"stopped on {name} for {seconds:.0f} s: first step of each after the start, s", texts(firsts)
        )
        if max(lasts) > 0.5 or min(firsts) < 0 or max(firsts) > 1:
            bad.append(f"{name}: {texts(lasts)}; {texts(firsts)}")
    measured("steps/s after that, of before", f"{pair.work(2).rate() / alone:.3f}")
    (_, mine), (_, others) = together([pair, other], 4)
    measured("first beside weight, on both GPUs: steps/s, of alone", texts([mine / alone, others / alone]))
    if mine < 0.8 * alone:
        bad.append(f"first has {mine / alone:.3f}")
    bad += [f"{job.name}: {job.problem()}" for job in jobs if job.quit()]
    assert bad + found_by(place) == []


def test_two_gpus_killed_rank(place: Place, jobs: list[Job], measured: Measured) -> None:
    """The other rank says so as without nvc, nothing is left, and the next job starts."""
    words = ("steps", "--timeout=10")
    jobs += [
        Job("driver", ranks(*words, torchrun=False)),
        Job("slice", ranks(*words, torchrun=False), slice_of_both(place, "plain", MEMORY)),
        Job("torchrun", ranks("steps"), slice_of_both(place, "torchrun", MEMORY)),
    ]
    bad = []
    for job in jobs:
        job.ready().ask(60)
    time.sleep(1)
    begin = time.monotonic()
    for job in jobs:
        os.kill(job.begun["pids"][1], signal.SIGKILL)
    ended: dict[str, float] = {}
    while len(ended) < len(jobs) and time.monotonic() < begin + 45:
        for job in jobs:
            if job.process.poll() is not None:
                ended.setdefault(job.name, time.monotonic() - begin)
        time.sleep(0.05)
    for job in jobs:
        said = [" ".join(line.split()) for line in job.complaints()]
        after = f"{ended[job.name]:.1f} s" if job.name in ended else "it runs on"
        measured(f"rank 1 killed, {job.name}: the other ended after; status; said",
                 f"{after}; {job.process.poll()}; {' / '.join(said[:3])[:300]}")  # fmt: skip
        job.kill()
    if ("slice" in ended) != ("driver" in ended):
        bad.append(f"the other rank ended: {sorted(ended)}")
    if "torchrun" not in ended:
        bad.append("torchrun does not end the other rank")
    again = Job("again", ranks("steps"), slice_of_both(place, "again", MEMORY))
    jobs.append(again)
    begin = time.monotonic()
    rate = again.ready().work(2).rate()
    measured("the next start: s, steps/s", f"{time.monotonic() - begin - 2:.1f}, {rate:.1f}")
    if again.quit():
        bad.append(again.problem())
    assert bad + found_by(place) == []


def test_two_gpus_side_by_side(place: Place, model: str, measured: Measured) -> None:
    """Training, decode and a notebook on both GPUs: nothing is found, and nobody is stopped."""
    running: list[Honest] = []
    steady = {
        "training": ranks("train", "--steady"), "decode": ranks("decode", model, "--steady"),
        "notebook": [program("python3"), two_gpus.PROGRAM, "notebook"],
    }  # fmt: skip
    try:
        for name, words in steady.items():
            before = slice_of_both(place, name, "--memory=16GiB", "--weight=1")
            running.append(Honest(name, [*before, *words], two_gpus.environment()))
        said = side_by_side(place, running, 60 * MINUTES)
        for name, steps in said.items():
            measured(f"{name} on both, in {60 * MINUTES:.0f} s at the same time", steps)
        stopped = [at for _, at in two_gpus.had(place).values()]
        measured(
            "side by side: found by nvcd; stopped, s",
            f"{ask(place)['found']}; {texts([at / 1e9 for at in stopped])}",
        )
        log = place.daemon.said() if place.daemon else ""
        measured("side by side: nvcd's log", " / ".join(log.splitlines()[-5:])[:300])
        assert not any(stopped), stopped
        assert all(int(steps.split()[0]) > 0 for steps in said.values())
    finally:
        for one in running:
            one.process.send_signal(signal.SIGTERM)
            try:
                one.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
            one.kill()

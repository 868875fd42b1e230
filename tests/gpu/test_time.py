"""Time by the driver's own scheduler, judged by programs of PyTorch: shares, caps and latency.

Each figure is of one window of 10 s that all tenants share (tests/gpu/loads.py). One GPU, that nobody else uses.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from support import CLEAN_ENV, STAGE, gpus, run
from support.loads import Had, Tenant, together
from support.resident import NVCD, begin

pytestmark = pytest.mark.gpu
Measured = Callable[[str, object], None]
NVC = os.path.join(STAGE, "bin/nvc-cli")
WINDOW = float(os.environ.get("NVC_WINDOW", "10"))
#: Microseconds of a kernel, with the figure's name.
KERNELS = {"5 us": 5.0, "50 us": 50.0, "1 ms": 1000.0, "20 ms": 20_000.0}
CAPS = [10, 25, 50, 75, 90]
KILLS = int(os.environ.get("NVC_KILLS", "8"))


def state() -> dict:  # type: ignore[type-arg]
    """nvcd's whole state."""
    return dict(json.loads(run(NVCD, "--state", env=CLEAN_ENV).stdout))


def policy(name: str) -> None:
    """Of the GPU, once the slices of the test before are gone; "": each slice's own."""
    run(NVC, "vgpu", "rm", "--gone", env=CLEAN_ENV, check=False)
    run(NVC, "vgpu", "policy", gpus.uuid(), *([name] if name else ["--reset"]), env=CLEAN_ENV)


@functools.cache
def rate() -> float:
    """Rounds of a kernel in a microsecond, measured alone."""
    return together([Tenant("wait:1000")], 1)[0].rate


@functools.cache
def alone(kind: str) -> Had:
    """What a program does alone, without nvc."""
    return together([Tenant(kind, None, rate() if ":" in kind else 0.0)], WINDOW)[0]


def slices(kinds: Sequence[str], *options: Sequence[str], seconds: float = WINDOW) -> list[Had]:
    """Programs side by side, each in a slice with its options."""
    rates = [rate() if ":" in kind else 0.0 for kind in kinds]
    tenants = [
        Tenant(kind, (f"--device={gpus.uuid()}", *words), one)
        for kind, words, one in zip(kinds, options, rates)
    ]
    return together(tenants, seconds)


def plain(kinds: Sequence[str]) -> list[Had]:
    return together([Tenant(kind, None, rate() if ":" in kind else 0.0) for kind in kinds], WINDOW)


def shares(found: Sequence[Had]) -> list[float]:
    """Percent of what each does alone."""
    return [100 * one.a_second() / alone(one.kind).a_second() for one in found]


def words(found: Sequence[Had]) -> str:
    return "; ".join(f"{one.a_second():.1f} a second, p50 {one.p50:.2f}, p99 {one.p99:.2f} ms" for one in found)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_decode_loops_side_by_side(nvcd: object, count: int, measured: Measured) -> None:
    policy("weight")
    by_driver = plain(["decode"] * count)
    by_nvc = slices(["decode"] * count, *([["--weight=1"]] * count))
    measured("decode alone", words([alone("decode")]))
    measured(f"{count} decode loops, the driver alone", words(by_driver))
    measured(f"{count} decode loops, weight", words(by_nvc))
    gain = sum(one.steps for one in by_nvc) / sum(one.steps for one in by_driver)
    late = max(one.p99 for one in by_nvc) / max(one.p99 for one in by_driver)
    measured(f"{count} decode loops: steps and p99, of the driver's", f"{gain:.3f}, {late:.3f}")
    assert gain >= (1.05 if count == 2 else 1.0) and late <= 1.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weights", [(1, 1), (1, 3), (1, 9)], ids=str)
def test_weights(nvcd: object, weights: tuple[int, ...], kernel: str, measured: Measured) -> None:
    policy("weight")
    found = slices([f"queue:{KERNELS[kernel]}"] * len(weights), *([f"--weight={one}"] for one in weights))
    whole = sum(one.steps for one in found)
    got = [100 * one.steps / whole for one in found]
    measured(f"weights {weights}, kernels of {kernel}: %", ", ".join(f"{one:.2f}" for one in got))
    ideal = [100 * one / sum(weights) for one in weights]
    assert max(abs(a - b) for a, b in zip(got, ideal)) <= 0.5


def test_eight_weights(nvcd: object, measured: Measured) -> None:
    policy("weight")
    weights = range(1, 9)
    found = slices(["queue:1000"] * 8, *([f"--weight={one}"] for one in weights))
    whole = sum(one.steps for one in found)
    got = [100 * one.steps / whole for one in found]
    measured("weights 1 to 8, kernels of 1 ms: %", ", ".join(f"{one:.2f}" for one in got))
    measured("the same, together, of what one does alone", f"{whole / WINDOW / alone('queue:1000').a_second():.3f}")
    assert max(abs(a - 100 * b / 36) for a, b in zip(got, weights)) <= 0.5


def test_six_processes_in_a_slice(nvcd: object, measured: Measured) -> None:
    """They have together what the one process of another slice has."""
    policy("weight")
    option = f"--device={gpus.uuid()}", "--weight=1"
    six = Tenant("queue:1000", option, rate(), processes=6)
    found = together([six, Tenant("queue:1000", option, rate())], WINDOW)
    got = 100 * found[0].steps / sum(one.steps for one in found)
    measured("six processes in one slice, beside one, weights (1, 1): % of the six", f"{got:.2f}")
    assert abs(got - 50) <= 0.5


def processor(pid: int) -> dict[str, float]:
    """Seconds that a process and its children have had of a processor, by name."""
    found: dict[str, float] = {}
    rest = [f"/proc/{pid}"]
    while rest:
        place = rest.pop()
        name = pathlib.Path(place, "comm").read_text().strip()
        for thread in pathlib.Path(place, "task").iterdir():
            found[name] = found.get(name, 0.0) + int((thread / "schedstat").read_text().split()[0]) / 1e9
            rest += [f"/proc/{child}" for child in (thread / "children").read_text().split()]
    return found


def of_a_core(count: int, options: Callable[[int], str]) -> dict[str, float]:
    """Percent of a core that nvcd's processes take while so many slices queue kernels of 1 ms."""
    looks: list[tuple[dict[str, float], float]] = []

    def look() -> None:
        pid = int(state()["pid"])
        time.sleep(2)  # until the window begins
        for wait in (WINDOW, 0.0):
            looks.append((processor(pid), time.monotonic()))
            time.sleep(wait)

    words = [(f"--device={gpus.uuid()}", options(at)) for at in range(count)]
    together([Tenant("queue:1000", one, rate()) for one in words], WINDOW, look)
    (first, began), (last, ended) = looks
    return {name: 100 * (last[name] - first[name]) / (ended - began) for name in last}


def test_what_nvcd_takes(nvcd: object, measured: Measured) -> None:
    policy("weight")
    weights = of_a_core(16, lambda at: f"--weight={1 + at % 4}")
    measured("nvcd with 16 slices that always work, by weights: % of a core", parts(weights))
    policy("")
    caps = of_a_core(4, lambda at: "--cores=20")
    measured("nvcd with four slices at their caps of 20: % of a core", parts(caps))
    assert sum(weights.values()) < 1 and sum(caps.values()) < 1 + 4 * 1.2


def parts(percent: dict[str, float]) -> str:
    return ", ".join(f"{name} {one:.2f}" for name, one in sorted(percent.items()) if one >= 0.005)


@pytest.mark.parametrize("other", ["decode", "train", "queue:20000"])
def test_first(nvcd: object, other: str, measured: Measured) -> None:
    policy("first")
    found = slices(["decode", other], ["--policy=first"], ["--policy=weight"])
    kept, late = found[0].a_second() / alone("decode").a_second(), found[0].p99 / alone("decode").p99
    measured(f"decode first beside {other}: steps and p99, of alone", f"{kept:.3f}, {late:.3f}")
    measured(f"decode first beside {other}", words(found))
    assert kept >= 0.8 and late <= 1.25


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cap", CAPS)
def test_caps(nvcd: object, cap: int, kernel: str, beside: bool, measured: Measured) -> None:
    policy("")
    kind = f"queue:{KERNELS[kernel]}"
    kinds = [kind, "queue:1000"] if beside else [kind]
    found = slices(kinds, *[[f"--cores={cap}"], ["--weight=1"]][: len(kinds)])
    got = shares(found)
    each = [100 * one / alone(kind).a_second() for one in found[0].seconds]
    measured(
        f"cap {cap}, kernels of {kernel}, {'beside 1 ms' if beside else 'alone'}: %, least and most of a second",
        ", ".join(f"{one:.2f}" for one in [*got, min(each), max(each)]),
    )
    if kernel in ("5 us", "50 us", "1 ms"):  # of the others there are too few to count so finely
        assert abs(got[0] - cap) <= 0.2


@pytest.mark.parametrize("cap", CAPS)
def test_caps_of_kernels_of_3_s(nvcd: object, cap: int, measured: Measured) -> None:
    """Beside kernels of 1 ms. A window has hardly a whole one, so the driver's log says what the slice had."""
    policy("")
    looks: list[tuple[int, float]] = []

    def look() -> None:
        time.sleep(2)  # until the window begins
        for wait in (WINDOW, 0.0):
            (device,) = state()["devices"]
            (key,) = [one["key"] for one in device["tenants"] if one["cores"] == cap]
            (had,) = [one["hadNs"] for one in device["had"] if one["key"] == key]
            looks.append((had, time.monotonic()))
            time.sleep(wait)

    own = (f"--device={gpus.uuid()}", f"--cores={cap}"), (f"--device={gpus.uuid()}", "--weight=1")
    tenants = [Tenant("wait:3000000", own[0], rate()), Tenant("queue:1000", own[1], rate())]
    other = together(tenants, WINDOW, look, late=120)[1]
    (first, began), (last, ended) = looks
    got = (last - first) / (ended - began) / 1e7
    beside = shares([other])[0]
    measured(f"cap {cap}, kernels of 3 s, beside 1 ms: %; the neighbour", f"{got:.2f}; {beside:.2f}")
    assert abs(got - cap) <= 0.5 and beside >= 100 - cap - 1


#: Has the driver's own library loaded in the place of the shim, which lies beside it.
AROUND = """L=$(ldconfig -p | sed -n 's/.*libcuda.so.1 .*=> //p' | head -n 1)
export LD_PRELOAD="${L%/*}/nvc/real-libcuda.so.1"; test -e "$LD_PRELOAD"; exec "$@" """


@pytest.mark.parametrize("kind", ["queue:1000", "mix", "graph:1000", "wait:20000"])
def test_a_program_that_leaves_the_shim(nvcd: object, kind: str, measured: Measured) -> None:
    """It has its cap, and its neighbour the rest."""
    policy("")
    own = (f"--device={gpus.uuid()}", "--cores=10"), (f"--device={gpus.uuid()}", "--weight=1")
    around = Tenant(kind, own[0], rate(), ("sh", "-ec", AROUND, "sh"))
    found = together([around, Tenant("queue:1000", own[1], rate())], WINDOW)
    account = {one["key"]: one["hadNs"] for one in state()["devices"][0]["had"]}
    got = shares(found)
    text = ", ".join(f"{one:.2f}" for one in got)
    had = sorted(account.values())
    measured(f"{kind} around the shim, cap 10, beside 1 ms: %; nvcd's account", f"{text}; {had}")
    assert got[1] >= 88


def test_nvcd_is_killed(nvcd: subprocess.Popen[bytes], measured: Measured) -> None:
    """While a slice is at its cap, again and again: nobody stays stopped."""
    policy("")
    started: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        time.sleep(2)  # until the window begins
        for _ in range(KILLS):
            pid = int(state()["pid"])
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            started.append(begin())
            time.sleep(0.7)

    options = (f"--device={gpus.uuid()}", "--cores=30")
    (had,) = together([Tenant("wait:1000", options, rate())], 2 * KILLS, kill)
    each = f"{had.longest:.0f}; {had.seconds}"
    measured(f"nvcd killed {KILLS} times: longest step of 1 ms, ms; steps a second", each)
    run(NVCD, "--stop", env=CLEAN_ENV, check=False)
    assert had.longest < 2000

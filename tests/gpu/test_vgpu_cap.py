"""Caps on a real GPU: fixed work per second beside that without the shim.

The target is min(1, cap / u) of what the program does alone, u being the share of the time that it keeps the device
busy then. One GPU, that nobody else uses meanwhile. Rows C1 to C25 are those of the test matrix.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, STAGE, need
from support.vgpucap import FIXED, NATIVE, RealCapped, Result, compile_work, end_workers

pytestmark = pytest.mark.gpu
CAPS = (10, 25, 50, 75, 90)
Measured = Callable[[str, object], None]


class Load:
    """One kind of work, what it does alone, and how busy the device is then."""

    def __init__(self, slice_: Sliced, name: str, unit: int = 1, **arguments: object) -> None:
        self.slice, self.name, self.unit, self.arguments = slice_, name, unit, arguments
        rounds = slice_.rounds(int(str(arguments["ns"])))
        self.arguments["rounds"] = rounds
        self.alone = self.run_native().rate

    def run_native(self) -> Result:
        return self.slice.native(**{"seconds": 1.5, "warm": 0.3, **self.arguments}).started().result()

    def busy(self) -> float:
        """u: of the rate at which the device does nothing else, what the program reaches alone."""
        full = {**self.arguments, "batch": 0, "streams": 1, "threads": 1}
        if full == self.arguments:
            return 1.0
        saturated = self.slice.native(**{**full, "seconds": 1.5, "warm": 0.3}).started().result()
        return min(1.0, self.alone / saturated.rate)

    def capped(self, cap: int, **more: object) -> Result:
        self.slice.cap(cap)
        return self.slice.work(**{"seconds": 2, "warm": 0.5, **self.arguments, **more})


class Sliced(RealCapped):
    """Calibrates a kernel's loop once for each length."""

    known: dict[int, int]

    def rounds(self, ns: int) -> int:
        if ns not in self.known:
            self.known[ns] = self.native(ns=ns, seconds=0.05, warm=0.05).started().result().rounds
        return self.known[ns]


@pytest.fixture(scope="module")
def slice_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sliced]:
    directory = str(tmp_path_factory.mktemp("capped"))
    Sliced.known = {}
    made = Sliced(directory, os.path.join(STAGE, "lib/nvc/vgpu/current"), compile_work(directory, "-O2"))
    yield made
    end_workers([made])


def check(load: Load, caps: tuple[int, ...], points: float, measured: Measured, **more: object) -> None:
    """Measure a load under caps; all figures are noted before any is judged."""
    busy = load.busy()
    wrong = []
    for cap in caps:
        got = load.capped(cap, **more)
        share, target = 100 * got.rate / load.alone, min(100.0, cap / busy)
        error = share - target
        measured(
            f"{load.name}: cap, target, got, error in points, u, longest launch",
            f"{cap} %, {target:.1f} %, {share:.2f} %, {error:+.2f}, {busy:.3f}, {got.longest:.1f} ms",
        )
        if abs(error) > points:
            wrong.append((cap, target, share))
    assert wrong == []


def test_c1_kernels_of_a_millisecond(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "1 ms, queued", ns=1000000, batch=0), CAPS, 2, measured)


def test_c2_launch_and_wait(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "1 ms, each waited for", ns=1000000, batch=1), (10, 50, 90), 2, measured)


def test_c3_kernels_of_5_us_queued(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "5 us, queued", ns=5000, batch=0), CAPS, 2, measured)


def test_c3_kernels_of_5_us_waited_for(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "5 us, each waited for", ns=5000, batch=1), CAPS, 2, measured)


def test_c3_kernels_of_100_us(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "100 us, four at a time", ns=100000, batch=4), (25, 75), 2, measured)


def test_c4_kernels_of_half_a_second(slice_: Sliced, measured: Measured) -> None:
    seconds = float(os.environ.get("NVC_LONG_SECONDS", "12"))
    load = Load(slice_, "500 ms", ns=500000000, batch=1)
    load.alone = 2.0  # by its own length: a second and a half would be three kernels
    load.busy = lambda: 1.0  # type: ignore[method-assign]
    check(load, (25, 50), 5, measured, seconds=seconds, warm=2.5)


def test_c5_persistent_kernels(slice_: Sliced, measured: Measured) -> None:
    check(Load(slice_, "20 ms on all processors", ns=20000000, grid=132, batch=0), (25, 75), 3, measured)


def test_c6_a_huge_grid(slice_: Sliced, measured: Measured) -> None:
    slice_.cap(50)
    got = slice_.work(rounds=1, grid=1 << 28, batch=1, seconds=2, warm=1)
    measured("2^28 blocks at 50 %: longest launch, ms", f"{got.longest:.1f}")
    assert got.kernels > 0


@pytest.mark.parametrize("kind", ["ex", "coop"])
def test_c7_c8_every_kind_of_launch(slice_: Sliced, measured: Measured, kind: str) -> None:
    check(Load(slice_, f"1 ms, {kind}", ns=1000000, batch=0, kind=kind), (50,), 2, measured)


def test_c9_graphs(slice_: Sliced, measured: Measured) -> None:
    load = Load(slice_, "graph of 1000 kernels of 5 us", ns=5000, kind="graph", nodes=1000, batch=0)
    check(load, CAPS, 2, measured)
    load = Load(slice_, "graph of 20 kernels of 5 us, waited for", ns=5000, kind="graph", nodes=20, batch=1)
    check(load, (25, 50), 3, measured)


def test_c11_captures_while_throttled(slice_: Sliced, measured: Measured) -> None:
    load = Load(slice_, "1 ms, beside captures", ns=1000000, batch=0)
    check(load, (25,), 2, measured, captures=1)


def test_c12_threads_and_streams(slice_: Sliced, measured: Measured) -> None:
    """What overlaps alone overlaps less under a cap: so the share is an upper bound, and nobody starves."""
    load = Load(
        slice_, "8 threads of 8 streams, 1 ms", ns=1000000, grid=132 * 64, threads=8, streams=8, batch=8
    )
    slice_.cap(50)
    got = load.capped(50)
    measured(
        "8 threads of 8 streams at 50 %: share, longest launch",
        f"{100 * got.rate / load.alone:.1f} %, {got.longest:.0f} ms",
    )
    assert 0.05 < got.rate / load.alone < 0.55 and got.longest < 400


def test_c15_beside_a_stranger(slice_: Sliced, measured: Measured) -> None:
    """Without nvcd, a cap is an upper bound: a process without the shim works beside it."""
    load = Load(slice_, "1 ms", ns=1000000, batch=0)
    stranger = slice_.native(
        ns=1000000, rounds=slice_.rounds(1000000), batch=0, seconds=60, warm=0.3
    ).started()
    got = load.capped(25)
    stranger.stop()
    measured("25 % beside a process without the shim: share", f"{100 * got.rate / load.alone:.1f} %")
    assert got.rate / load.alone < 0.28


def test_processes_share_a_cap(slice_: Sliced, measured: Measured) -> None:
    load = Load(slice_, "1 ms", ns=1000000, batch=0)
    slice_.cap(50)
    words = {"ns": 1000000, "rounds": slice_.rounds(1000000), "batch": 0, "seconds": 3, "warm": 1}
    workers = [slice_.worker(**words) for _ in range(3)]
    shares = [worker.started().result().rate / load.alone for worker in workers]
    measured("three processes at 50 %: shares", ", ".join(f"{100 * share:.1f} %" for share in shares))
    assert sum(shares) < 0.53  # waiting for each other's time slices is charged too


def test_c18_live_changes(slice_: Sliced, measured: Measured) -> None:
    load = Load(slice_, "1 ms", ns=1000000, batch=0)
    slice_.cap(20)
    worker = slice_.worker(**load.arguments, seconds=60, trace=10).started()
    for cap in (80, 20, 50):
        slice_.cap(cap)
        lines = [worker.progress()]
        while lines[-1][0] - lines[0][0] < 1500:
            lines.append(worker.progress())
        windows = [
            (lines[i + 10][1] - lines[i][1]) / (lines[i + 10][0] - lines[i][0]) / load.alone * 1e5
            for i in range(0, len(lines) - 10, 10)
        ]
        measured(
            f"to {cap} %: shares in windows of 100 ms", ", ".join(f"{share:.0f}" for share in windows[:8])
        )
        late = windows[5:]
        assert abs(statistics.mean(late) - cap) < 4
    worker.stop()


def test_c19_pause_and_resume(slice_: Sliced, measured: Measured) -> None:
    slice_.cap(0, NATIVE)
    worker = slice_.worker(ns=1000000, rounds=slice_.rounds(1000000), batch=1, seconds=60, trace=1).started()
    for flags in (1, 0):
        slice_.cap(0, NATIVE, flags=flags)
        lines = [worker.progress()]
        while lines[-1][0] - lines[0][0] < 200:
            lines.append(worker.progress())
        if flags:
            took = next(at for at, kernels in lines if kernels == lines[-1][1]) - lines[0][0]
        else:
            took = next(at for at, kernels in lines if kernels > lines[0][1]) - lines[0][0]
        measured("paused after, ms" if flags else "resumed after, ms", f"{took:.0f}")
        assert took < 50
    worker.stop()


def test_cost_of_a_launch(slice_: Sliced, measured: Measured) -> None:
    """Of an empty kernel, beside the real library: pure host time."""
    words = {"rounds": 1, "cost": 60}
    native = statistics.median(float(word) for word in slice_.native(**words).line())
    found = {}
    for name, cap, policy in (
        ("native", 0, NATIVE),
        ("100 %", 100, FIXED),
        ("99 %", 99, FIXED),
        ("50 %", 50, FIXED),
    ):
        slice_.cap(cap, policy)
        found[name] = statistics.median(slice_.cost(**words))
    text = ", ".join(f"{name} {ns - native:+.0f}" for name, ns in found.items())
    measured("launch: ns beside those without the shim", f"{native:.0f}; {text}")
    assert found["native"] - native < 100


PYTORCH = """
import sys, time, torch
torch.manual_seed(0)
width, seconds = int(sys.argv[1]), float(sys.argv[2])
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data, target = torch.randn(256, width, device="cuda"), torch.randn(256, width, device="cuda")
def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
    return loss.item()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    step()
start, steps = time.monotonic(), 0
while time.monotonic() < start + seconds:
    step()
    steps += 1
print(steps / (time.monotonic() - start))
"""


def steps(variables: dict[str, str], width: int, seconds: float) -> float:
    """Training steps a second. Each waits for its loss, so the host and the device take turns."""
    words = [need("python3"), "-c", PYTORCH, str(width), str(seconds)]
    done = subprocess.run(
        words, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.split()[-1])


@pytest.mark.parametrize("width", [1024, 8192])
def test_pytorch_training(slice_: Sliced, measured: Measured, width: int) -> None:
    assert shutil.which("python3", path=CLEAN_ENV["PATH"])
    environment = {name: slice_.environment()[name] for name in ("LD_LIBRARY_PATH", "NVC_VGPU_LOG")}
    slice_.cap(0, NATIVE)
    before = dict(os.environ)
    alone = steps({}, width, 2)
    shim = steps(environment, width, 2)
    assert dict(os.environ) == before
    # How busy the device is: by what the shim charges for a run that it does not hold back.
    slice_.cap(99)
    charged = slice_.charged()
    rate = steps(environment, width, 3)
    kernels_busy = (slice_.charged() - charged) / 4.5
    wrong = []
    measured(
        f"PyTorch {width}: steps/s alone, with the shim, charged at 99 %",
        f"{alone:.1f}, {shim:.1f}, {kernels_busy:.3f}",
    )
    for cap in (25, 50, 75):
        slice_.cap(cap)
        share = 100 * steps(environment, width, 3) / alone
        target = min(100.0, cap / kernels_busy * rate / alone)
        measured(
            f"PyTorch {width}: cap, target, got, error in points",
            f"{cap} %, {target:.1f} %, {share:.1f} %, {share - target:+.1f}",
        )
        if abs(share - target) > 5:
            wrong.append((cap, target, share))
    assert wrong == []

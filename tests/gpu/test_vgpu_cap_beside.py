"""Caps on a real GPU, beside others: captures, threads, streams, processes, strangers, and changes while it runs.

One GPU, that nobody else uses meanwhile.
"""

from __future__ import annotations

import os
import statistics
import subprocess

import pytest
from support.gpucap import Load, Measured, Sliced, check
from support.realslice import plain_environment, program
from support.vgpucap import NATIVE

pytestmark = pytest.mark.gpu


def test_c11_captures_while_throttled(sliced: Sliced, measured: Measured) -> None:
    load = Load(sliced, "1 ms, beside captures", ns=1000000, batch=0)
    check(load, (25,), 2, measured, captures=1)


def test_c12_threads_and_streams(sliced: Sliced, measured: Measured) -> None:
    """What overlaps alone overlaps less under a cap: so the share is an upper bound, and nobody starves."""
    load = Load(
        sliced, "8 threads of 8 streams, 1 ms", ns=1000000, grid=132 * 64, threads=8, streams=8, batch=8
    )
    sliced.cap(50)
    got = load.capped(50)
    measured(
        "8 threads of 8 streams at 50 %: share, longest launch",
        f"{100 * got.rate / load.alone:.1f} %, {got.longest:.0f} ms",
    )
    assert 0.05 < got.rate / load.alone < 0.55 and got.longest < 400


def test_c15_beside_a_stranger(sliced: Sliced, measured: Measured) -> None:
    """Without nvcd, a cap is an upper bound: a process without the shim works beside it."""
    load = Load(sliced, "1 ms", ns=1000000, batch=0)
    stranger = sliced.native(
        ns=1000000, rounds=sliced.rounds(1000000), batch=0, seconds=60, warm=0.3
    ).started()
    got = load.capped(25)
    stranger.stop()
    measured("25 % beside a process without the shim: share", f"{100 * got.rate / load.alone:.1f} %")
    assert got.rate / load.alone < 0.28


def test_processes_share_a_cap(sliced: Sliced, measured: Measured) -> None:
    load = Load(sliced, "1 ms", ns=1000000, batch=0)
    sliced.cap(50)
    words = {"ns": 1000000, "rounds": sliced.rounds(1000000), "batch": 0, "seconds": 3, "warm": 1}
    workers = [sliced.worker(**words) for _ in range(3)]
    shares = [worker.started().result().rate / load.alone for worker in workers]
    measured("three processes at 50 %: shares", ", ".join(f"{100 * share:.1f} %" for share in shares))
    assert sum(shares) < 0.53  # waiting for each other's time slices is charged too


def test_c18_live_changes(sliced: Sliced, measured: Measured) -> None:
    load = Load(sliced, "1 ms", ns=1000000, batch=0)
    sliced.cap(20)
    worker = sliced.worker(**load.arguments, seconds=60, trace=10).started()
    for cap in (80, 20, 50):
        sliced.cap(cap)
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


def test_c19_pause_and_resume(sliced: Sliced, measured: Measured) -> None:
    sliced.cap(0, NATIVE)
    worker = sliced.worker(ns=1000000, rounds=sliced.rounds(1000000), batch=1, seconds=60, trace=1).started()
    for flags in (1, 0):
        sliced.cap(0, NATIVE, flags=flags)
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


PYTORCH = """
import sys, time, torch
wait = sys.argv[1] == "1"
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8192, 8192), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data, target = torch.randn(256, 8192, device="cuda"), torch.randn(256, 8192, device="cuda")
def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data), target)
    loss.backward()
    optimizer.step()
    return loss.item() if wait else loss
end = time.monotonic() + 1
while time.monotonic() < end:
    step()
torch.cuda.synchronize()
start, steps = time.monotonic(), 0
while time.monotonic() < start + 2:
    step()
    steps += 1
torch.cuda.synchronize()
print(steps / (time.monotonic() - start))
"""


def steps(variables: dict[str, str], wait: bool = True) -> float:
    """Training steps a second. Each waits for its loss, or the last one alone."""
    words = [program("python3"), "-c", PYTORCH, str(int(wait))]
    environment = plain_environment(**variables)
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def test_pytorch_training(sliced: Sliced, measured: Measured) -> None:
    shim = {"LD_LIBRARY_PATH": f"{sliced.libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    alone, queued = steps({}), steps({}, wait=False)
    busy = min(1.0, alone / queued)
    wrong = []
    measured("PyTorch: steps/s alone, never waiting, u", f"{alone:.1f}, {queued:.1f}, {busy:.3f}")
    for cap in (25, 75):
        sliced.cap(cap)
        share = 100 * steps(shim) / alone
        target = min(100.0, cap / busy)
        measured(
            "PyTorch: cap, target, got, error in points",
            f"{cap} %, {target:.1f} %, {share:.1f} %, {share - target:+.1f}",
        )
        if abs(share - target) > 2:
            wrong.append((cap, target, share))
    assert wrong == []

"""What tenants do on a GPU, a process each, with PyTorch; prints a JSON line of a window that all of them share.

    loads.py KIND --go FILE [--seconds S] [--rate ROUNDS_PER_US] [--processes N]

KIND: `decode` (a CUDA graph of 24 layers that the host waits for, as a language model's token), `train` (steps of
six layers of 4096, the host one step ahead), `queue:US` (kernels of so many microseconds, always some waiting),
`wait:US` (each is waited for), `mix` (short kernels, then one of 200 ms), `graph:NODES` (graphs of 5 us kernels).

It prints `ready RATE` and waits until FILE holds a moment of CLOCK_MONOTONIC in nanoseconds, from which the window
of S seconds counts; work begins one second before that. `RATE` is the rounds of a kernel's loop in a microsecond,
measured alone: it is given back by `--rate` to a program that runs beside others. The line has `steps` in the
window, `p50`, `p99` and `longest` (milliseconds of a step), and `seconds` (steps in each second of the window).
With --processes, N processes do that work; the line has the sums of their steps, and the longest of their times.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 rounds)
{
.reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;
ld.param.u64 %n, [rounds];
mov.u64 %i, 0;
mov.u32 %x, 1;
L:
st.volatile.shared.u32 [s], %x;
ld.volatile.shared.u32 %x, [s];
add.u64 %i, %i, 1;
setp.lt.u64 %p, %i, %n;
@%p bra L;
ret;
}
"""
LONG = ":3000000"  # at a cap of 10 % each takes half a minute
LEAD = 1_000_000_000  # nanoseconds of work before the window


class Kernel:
    """A kernel whose length is a number of rounds, so that it does fixed work however often it is interrupted."""

    def __init__(self, rate: float) -> None:
        import torch

        self.torch = torch
        torch.zeros(1, device="cuda")
        self.cuda = ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self._must(self.cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        self._must(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin"))
        self.rate = rate or self._measure()

    @staticmethod
    def _must(code: int) -> None:
        if code:
            raise OSError(f"libcuda: error {code}")

    def launch(self, us: float) -> None:
        """On PyTorch's stream."""
        rounds = ctypes.c_uint64(max(1, round(us * self.rate)))
        words = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        self._must(self.cuda.cuLaunchKernel(self.function, 1, 1, 1, 32, 1, 1, 0, stream, words, None))

    def _measure(self) -> float:
        self.rate, found = 1.0, 0.0
        for rounds in (1000, 1_000_000, 1_000_000):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.launch(rounds)
            end.record()
            end.synchronize()
            found = rounds / (begin.elapsed_time(end) * 1000)
        return found


def graph_of(work: Callable[[], object]) -> Any:
    """A CUDA graph of what `work` launches."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    torch.cuda.synchronize()
    return graph


def decoder(count: int = 24) -> tuple[Any, Callable[[], Any]]:
    """What so many layers begin with, and what they make of it."""
    import torch

    sizes = {"device": "cuda", "dtype": torch.bfloat16}
    up, down = (4096, 16384), (16384, 4096)
    layers = [(torch.randn(up, **sizes) / 64, torch.randn(down, **sizes) / 128) for _ in range(count)]
    x = torch.randn(8, 4096, **sizes)

    def step() -> Any:
        y = x
        for up, down in layers:
            y = y + torch.nn.functional.silu(y @ up) @ down
            y = torch.nn.functional.layer_norm(y, (4096,))
        return y

    return x, step


def decode() -> Callable[[], object]:
    graph = graph_of(decoder()[1])
    return lambda: graph.replay()


def train() -> Callable[[], object]:
    import torch

    layers: list[Any] = []
    for _ in range(6):
        layers += [torch.nn.Linear(4096, 4096), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    x = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def work_of(kind: str, rate: float) -> tuple[Callable[[], object], int, int, float]:
    """What one step launches, how many steps the host is ahead, what a step counts for, and the rate."""
    name, _, number = kind.partition(":")
    if name == "decode":
        return decode(), 0, 1, 0.0
    if name == "train":
        return train(), 1, 1, 0.0
    kernel = Kernel(rate)
    if name == "wait":
        return lambda: kernel.launch(float(number)), 0, 1, kernel.rate
    if name == "graph":
        nodes = int(number)
        graph = graph_of(lambda: [kernel.launch(5) for _ in range(nodes)])
        return graph.replay, 2, nodes, kernel.rate
    if name == "mix":
        turns = iter(range(1 << 62))
        return lambda: kernel.launch(200_000 if next(turns) % 500 == 499 else 100), 2, 1, kernel.rate
    us = float(number)
    batch = max(1, round(2000 / us))  # about 2 ms of work in one step
    if batch == 1:
        return lambda: kernel.launch(us), 2, 1, kernel.rate
    graph = graph_of(lambda: [kernel.launch(us) for _ in range(batch)])
    return graph.replay, 2, batch, kernel.rate


def steps(step: Callable[[], object], ahead: int, until: int) -> Iterator[tuple[int, int]]:
    """When each step began and ended, nanoseconds; the host is `ahead` steps ahead of the GPU."""
    import torch

    waiting: list[tuple[int, Any]] = []
    while time.monotonic_ns() < until:
        begin = time.monotonic_ns()
        step()
        event = torch.cuda.Event(blocking=True)
        event.record()
        waiting.append((begin, event))
        if len(waiting) > ahead:
            began, first = waiting.pop(0)
            first.synchronize()
            yield began, time.monotonic_ns()


def crowd(words: list[str], processes: int) -> None:
    """Start so many processes of the same work, and print what they say as one."""
    own = [sys.executable, __file__, *words]
    running = [subprocess.Popen(own, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    lines = [one.stdout.readline() for one in running if one.stdout]
    print(lines[0].strip(), flush=True)
    found = [json.loads(one.stdout.readline()) for one in running if one.stdout]
    whole = {name: max(one[name] for one in found) for name in ("kind", "p50", "p99", "longest")}
    whole["steps"] = sum(one["steps"] for one in found)
    whole["seconds"] = [sum(each) for each in zip(*(one["seconds"] for one in found))]
    print(json.dumps(whole), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--go", required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    if args.processes > 1:
        words = [args.kind, f"--go={args.go}", f"--seconds={args.seconds}", f"--rate={args.rate}"]
        crowd(words, args.processes)
        return
    step, ahead, counts, rate = work_of(args.kind, args.rate)
    for _ in range(0 if args.kind.endswith(LONG) else 3):
        step()
    import torch

    torch.cuda.synchronize()
    print("ready", rate, flush=True)
    while not (text := open(args.go).read() if os.path.exists(args.go) else ""):
        time.sleep(0.01)
    begin = int(text)
    end = begin + round(args.seconds * 1e9)
    while time.monotonic_ns() < begin - LEAD:
        time.sleep(0.001)
    found: list[float] = []
    seconds = [0] * max(1, round(args.seconds))
    last = 0
    for began, ended in steps(step, ahead, end):
        if begin <= ended < end:
            found.append((ended - (last if ahead and last else began)) / 1e6)
            seconds[min(len(seconds) - 1, int((ended - begin) / 1e9))] += counts
        last = ended
    ranked = sorted(found) or [0.0]
    print(
        json.dumps(
            {
                "kind": args.kind,
                "steps": len(found) * counts,
                "p50": ranked[len(ranked) // 2],
                "p99": ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))],
                "longest": ranked[-1],
                "seconds": seconds,
            }
        ),
        flush=True,
    )
    os._exit(0)  # what still runs is nobody's


if __name__ == "__main__":
    main()

"""Tenants of a GPU that do fixed work, and what each gets of what the same work gets alone and without nvc."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

TRACE_MS = 50
PATIENCE = 60.0  # seconds until a program has begun
Points = list[tuple[float, float]]  # milliseconds of CLOCK_MONOTONIC, kernels so far
Work = dict[str, object]  # arguments of tests/native/vgpu_work.c
MILLISECOND: Work = {"ns": 1000000, "batch": 0}
#: Blocks enough to fill 132 multiprocessors eight times over, each with 32 of them at a time. An MPS server that
#: gives a part of the multiprocessors holds such a kernel back; one of a single block it does not.
FULL: Work = {"ns": 1000000, "batch": 0, "grid": 132 * 32 * 8}
DEVICE = os.environ.get("NVC_BENCH_DEVICE", "")  # where no option names one


class Gpu:
    """The GPU that is measured, and how nvc-cli is called for it."""

    def __init__(self, nvc: str, root: str, wanted: str) -> None:
        self.root = root
        self.nvc = [nvc, f"--root={root}"]
        found = json.loads(self.call("info", "--format", "json"))["gpus"]
        wanted = wanted or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        fitting = [gpu for gpu in found if wanted in (str(gpu["index"]), gpu["uuid"])]
        if not fitting:
            raise SystemExit(f"bench: no GPU {wanted} among {[gpu['uuid'] for gpu in found]}")
        self.uuid = str(fitting[0]["uuid"])
        self.index = str(fitting[0]["index"])
        self.name = str(fitting[0]["model"])

    def call(self, *words: str) -> str:
        """What nvc-cli prints; it must succeed."""
        done = subprocess.run([*self.nvc, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(words)}: {done.stderr}")
        return done.stdout

    @property
    def nvcd(self) -> list[str]:
        """How the daemon is called; it lies beside nvc-cli."""
        return [os.path.join(os.path.dirname(self.nvc[0]), "nvcd"), *self.nvc[1:]]

    def slice(self, *options: str, memory: str = "8GiB") -> list[str]:
        """The words before a program that is to have a slice of it."""
        return [*self.nvc, "vgpu", "run", f"--device={self.uuid}", f"--memory={memory}", *options, "--"]

    def clock(self) -> str:
        """What it runs at: work that heats the GPU runs faster in the pauses of a cap."""
        query = [
            "nvidia-smi",
            f"--id={self.uuid}",
            "--query-gpu=clocks.sm,power.draw",
            "--format=csv,noheader",
        ]
        try:
            return subprocess.run(query, capture_output=True, text=True).stdout.strip()
        except FileNotFoundError:
            return ""

    def environment(self, **more: str) -> dict[str, str]:
        """With or without a slice, a program sees this GPU alone."""
        found = {**os.environ, "CUDA_VISIBLE_DEVICES": self.uuid, **more}
        if self.root != "/":
            found["LD_LIBRARY_PATH"] = f"{self.root}/usr/lib/{os.uname().machine}-linux-gnu"
        return found


@contextlib.contextmanager
def daemon(gpus: list[Gpu], policy: str) -> Iterator[None]:
    """nvcd with a policy for some GPUs. It ends with the scenario, however that ends."""
    words = gpus[0].nvcd
    process = subprocess.Popen(words, stdout=sys.stderr)
    try:
        end = time.monotonic() + PATIENCE
        while (asked := subprocess.run([words[0], "--state"], capture_output=True, text=True)).returncode:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"bench: nvcd does not start: {asked.stderr}")
            time.sleep(0.02)
        for gpu in gpus:
            gpu.call("vgpu", "policy", gpu.uuid, policy)
        yield
    finally:
        for gpu in gpus:  # what is laid down outlives the daemon
            gpu.call("vgpu", "policy", gpu.uuid, "--reset")
        process.terminate()
        process.wait(PATIENCE)


class Tenant:
    """One program that works; `prefix` are the words before it, none for a program without nvc."""

    def __init__(
        self, gpu: Gpu, program: str, name: str, prefix: list[str], work: Work, **variables: str
    ) -> None:
        self.name = name
        self.points: Points = []
        words = {"seconds": 3600, "warm": 0, "trace": TRACE_MS} | work
        argv = [*prefix, program, *(f"{key}={value}" for key, value in words.items())]
        self.process = subprocess.Popen(
            argv, env=gpu.environment(**variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().split() if ready else []
        if not line or line[0] != "start":
            self.process.kill()
            _, error = self.process.communicate()
            raise SystemExit(f"bench: {' '.join(argv)}: {line or 'nothing was said'} {error}")
        self.rounds = int(line[1])
        # A pipe that nobody reads would stop a long trace.
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for words in map(str.split, self.process.stdout):
            if len(words) == 2:
                self.points.append((float(words[0]), float(words[1])))

    def stop(self) -> None:
        """End it, when all that it has written is kept."""
        assert self.process.stdin is not None and self.process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self.process.stdin.write("\n")
            self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.reader.join()
        if not self.points:
            raise SystemExit(f"bench: {self.name}: nothing was done\n{self.process.stderr.read()}")

    def rate(self, since: float, until: float) -> float:
        """Kernels a second between two moments, in milliseconds."""
        inside = [point for point in self.points if since <= point[0] <= until]
        if len(inside) < 2:
            return 0.0
        (first, before), (last, after) = inside[0], inside[-1]
        return 1000 * (after - before) / (last - first)

    def whole_rate(self) -> float:
        """Kernels a second but for the beginning, in which a queue fills."""
        return self.rate(self.points[0][0] + 200, self.points[-1][0])

    def rate_between_kernels(self) -> float:
        """Kernels a second, from when one was launched to when another was: for few and long ones."""
        pairs = zip(self.points, self.points[1:])
        changes = [after for before, after in pairs if after[1] > before[1]]
        if len(changes) < 2:
            return 0.0
        (first, before), (last, after) = changes[0], changes[-1]
        return 1000 * (after - before) / (last - first)

    def reaches(self, rate: float, since: float, window: float = 100.0) -> float:
        """Milliseconds after `since` until a window of `window` has that rate; infinite: never."""
        for at, _ in self.points:
            if at >= since and self.rate(at, at + window) >= rate:
                return at - since
        return float("inf")


class Bench:
    """What all scenarios need."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.gpu = Gpu(os.path.join(options.bin, "nvc-cli"), options.root, options.device)
        self.work = options.work
        self.seconds: float = options.seconds
        self.pairs: int = options.pairs
        self.long_seconds: float = options.long_seconds
        self.long_caps = [int(cap) for cap in options.long_caps.split(",")]
        self.rounds: dict[tuple[object, object], int] = {}
        self.alone: dict[str, float] = {}
        self.tenants: list[Tenant] = []

    def tenant(self, name: str, options: list[str] | None, work: Work, **variables: str) -> Tenant:
        """A program with a slice, or without nvc where `options` is None; all do the same work."""
        prefix = [] if options is None else self.gpu.slice(*options)
        kind = work["ns"], work.get("grid")
        known = {"rounds": self.rounds[kind]} if kind in self.rounds else {}
        made = Tenant(self.gpu, self.work, name, prefix, {**work, **known}, **variables)
        self.rounds.setdefault(kind, made.rounds)
        self.tenants.append(made)
        return made

    def end(self) -> None:
        """No program outlives its scenario."""
        for tenant in self.tenants:
            if tenant.process.poll() is None:
                tenant.process.kill()
                tenant.process.wait()
        self.tenants.clear()

    def measured(self, name: str, options: list[str] | None, work: Work, seconds: float) -> Tenant:
        """One that has run alone for so long."""
        made = self.tenant(name, options, work)
        time.sleep(seconds)
        made.stop()
        return made

    def native(self, work: Work) -> float:
        """What the program reaches alone, without nvc."""
        name = str(work)
        if name not in self.alone:
            self.alone[name] = self.measured("native", None, work, self.seconds).whole_rate()
        return self.alone[name]

    def newest(self) -> str:
        """The name of the slice that was made last."""
        listed = json.loads(self.gpu.call("vgpu", "ls", "--format", "json"))
        slices = listed["slices"] if isinstance(listed, dict) else listed
        return str(
            max((item for item in slices if item["running"]), key=lambda item: item["created"])["name"]
        )

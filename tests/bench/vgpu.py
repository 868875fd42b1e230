"""What the shim of slices costs, and how well caps hold, beside the real library and another shim, in the same run.

    python3 tests/bench/vgpu.py [--device ID] [--peer-shim /path/libvgpu.so] [--seconds S]

A driver that is there is used, on its first GPU or the one that is named; else a simulated one. The other shim is
preloaded and set up by the variables of HAMi-core: CUDA_DEVICE_MEMORY_LIMIT, CUDA_DEVICE_SM_LIMIT,
CUDA_DEVICE_MEMORY_SHARED_CACHE. How busy a program keeps the GPU alone, u, is its rate beside that of a queue of
the same kernels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.dirname(sys.path[0]))

from support import STAGE, gpus, run
from support.gpucap import CAPS, FULL_SPEED
from support.vgpucap import FIXED, NATIVE, Capped, RealCapped, compile_work

LOADS: dict[str, dict[str, object]] = {
    "1 ms, queued": {"ns": 1000000, "batch": 0},
    "5 us, queued": {"ns": 5000, "batch": 0},
    "5 us, each waited for": {"ns": 5000, "batch": 1},
}


class Contender:
    """How programs run: with the real library, with the shim, or with another one before the real library."""

    def __init__(self, slice_: Capped, name: str, peer: str = "") -> None:
        self.slice, self.name, self.peer = slice_, name, peer

    def environment(self, cap: int) -> dict[str, str]:
        variables = self.slice.environment()
        if self.name == "shim":
            # 100 is no cap, but not the policy `native` either.
            self.slice.cap(cap, FIXED)
            return variables
        variables["LD_LIBRARY_PATH"] = self.slice.real_directory()
        if self.peer:
            cache = os.path.join(self.slice.root, "peer.cache")
            if os.path.exists(cache):
                os.unlink(cache)
            variables["LD_PRELOAD"] = self.peer
            if "CUDA_VISIBLE_DEVICES" in variables:  # it knows no UUIDs
                variables.update(CUDA_VISIBLE_DEVICES=gpus.smi("index"), CUDA_DEVICE_ORDER="PCI_BUS_ID")
            variables["CUDA_DEVICE_MEMORY_LIMIT"] = "8g"
            variables["CUDA_DEVICE_SM_LIMIT"] = str(cap)
            variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = cache
        return variables

    def output(self, cap: int, **arguments: object) -> list[str]:
        """The words of the program's last line."""
        words = [f"{name}={value}" for name, value in arguments.items()]
        done = subprocess.run(
            [self.slice.tool, *words], env=self.environment(cap), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"bench: {self.name}: {words}: exit {done.returncode}\n{done.stderr}")
        return done.stdout.splitlines()[-1].split()

    def rate(self, cap: int, **arguments: object) -> float:
        """Kernels a second."""
        return float(self.output(cap, **arguments)[3])


def spread(values: list[float]) -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def show(name: str, unit: str, contenders: list[Contender], values: list[list[float]]) -> None:
    """One line for each contender, as a part of the first."""
    print(f"\n{name}, {unit}: median (least to most)")
    base = statistics.median(values[0])
    for contender, found in zip(contenders, values):
        print(f"  {contender.name:<12}{spread(found):>34}   {statistics.median(found) / base:.3f}")


def costs(contenders: list[Contender]) -> None:
    """What calls cost the host. Contenders take turns, so that all see the same machine."""
    for name, unit, arguments, each in (
        ("cuInit and a context", "us", {"probe": "start"}, 9),
        ("cuMemAlloc and cuMemFree of 1 KiB", "ns", {"probe": "small"}, 5),
        ("cuMemAlloc and cuMemFree of 64 MiB", "ns", {"probe": "large"}, 5),
        ("resident memory of a process with a context", "KiB", {"probe": "resident"}, 3),
        ("threads of a process with a context", "threads", {"probe": "threads"}, 3),
    ):
        values: list[list[float]] = [[] for _ in contenders]
        for _ in range(each):
            for found, contender in zip(values, contenders):
                found += [float(word) for word in contender.output(100, **arguments)]
        show(name, unit, contenders, values)
    for cap in (100, 99, 50):
        values = [[float(word) for word in each.output(cap, rounds=1, cost=60)] for each in contenders]
        show(f"a launch at {cap} %", "ns", contenders, values)


def shares(contenders: list[Contender], rounds: dict[int, int], seconds: float) -> None:
    """Shares of what the program reaches alone, for the target min(1, cap / u)."""
    for name, load in LOADS.items():
        words = {**load, "rounds": rounds[int(str(load["ns"]))], "seconds": seconds, "warm": 0.5}
        alone = contenders[0].rate(100, **words)
        queued = load["batch"] == FULL_SPEED["batch"]
        busy = 1.0 if queued else min(1.0, alone / contenders[0].rate(100, **{**words, **FULL_SPEED}))
        print(f"\n{name}: alone {alone:.0f} a second, busy {busy:.3f} of the time")
        for contender in contenders[1:]:
            for cap in CAPS:
                share, target = 100 * contender.rate(cap, **words) / alone, min(100.0, cap / busy)
                error = share - target
                print(
                    f"  {contender.name:<12}{cap:>4} %  target {target:5.1f}  got {share:6.2f}  {error:+6.2f}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="", help="index or UUID; else NVC_BENCH_DEVICE, or the first")
    parser.add_argument("--peer-shim", default=os.environ.get("PEER_SHIM", ""))
    parser.add_argument("--shims", default=os.path.join(STAGE, "lib/nvc/vgpu/current"))
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.device:
        os.environ["NVC_BENCH_DEVICE"] = options.device
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    program = compile_work(directory, "-O2")
    root = os.path.join(directory, "root")
    made: Capped
    if os.path.exists("/proc/driver/nvidia/version") or gpus.simulated():
        os.mkdir(root)
        made = RealCapped(root, options.shims, program)
    else:
        run(os.path.join(STAGE, "bin/nvc-cli"), "sim", "create", root)
        made = Capped(root, options.shims, program)
        made.workers = []
    made.cap(0, NATIVE)
    rounds = {}
    for ns in {int(str(load["ns"])) for load in LOADS.values()}:
        worker = made.native(ns=ns, seconds=0.05, warm=0.05).started()
        rounds[ns] = worker.result().rounds
    contenders = [Contender(made, "native"), Contender(made, "shim")]
    if options.peer_shim:
        contenders.append(Contender(made, "other shim", options.peer_shim))
    costs(contenders)
    shares(contenders, rounds, options.seconds)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()

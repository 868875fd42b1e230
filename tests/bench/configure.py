"""Times `configure`, the part of nvc that a container start waits for.

Every run gets a fresh target. Contenders alternate within one run of this program, since times move between
machines and hours: compare ratios. `make bench` uses a simulated driver; on a machine with a real one:

    make bench PEER=/usr/bin/nvidia-container-cli BENCH="--root /"
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import CLEAN_ENV, REPO, STAGE, run
from support.rootfs import make_rootfs
from target import Targets

TRACE = re.compile(r"^trace: (.+) (\d+)$", re.MULTILINE)


def forget() -> None:
    """Make the next start of nvc a first one."""
    for path in glob.glob("/run/nvc/inventory*"):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def timed(argv: list[str], log: str, env: dict[str, str] = CLEAN_ENV) -> float:
    """Milliseconds from the start of a process to its end; it must succeed. Its output goes to `log`."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, out, 2),
    ]
    start = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    taken = (time.perf_counter_ns() - start) / 1e6
    os.close(out)
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as text:
            raise SystemExit(f"bench: {' '.join(argv)}: failed\n{text.read()}")
    return taken


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[round(fraction * (len(ordered) - 1))]


class Bench:
    """The contenders on one driver root."""

    def __init__(self, options: argparse.Namespace, directory: str, root: str) -> None:
        self.log = os.path.join(directory, "log")
        self.root = root
        self.targets = Targets(directory, make_rootfs(os.path.join(directory, "lower")))
        self.prefix = options.prefix
        self.nvc = os.path.join(options.prefix, "bin/nvc-cli")
        self.peer = options.peer
        self.wanted = [
            f"--device={options.device}",
            *(f"--{name}" for name in options.capabilities.split(",")),
        ]
        self.wanted += ["--no-cgroups"] if options.no_cgroups else []

    def argv(self, program: str, pid: int) -> list[str]:
        """The same call for both; nvc accepts --ldconfig and has no use for it. `@`: the host's own."""
        where = [] if self.root == "/" else [f"--root={self.root}"]
        ldconfig = next(name for name in ("/sbin/ldconfig.real", "/sbin/ldconfig") if os.path.exists(name))
        call = ["configure", f"--ldconfig=@{ldconfig}", f"--pid={pid}", *self.wanted, self.targets.rootfs]
        return [program, *where, *call]

    def first(self) -> float:
        """nvc without anything remembered."""
        forget()
        return self.again()

    def again(self) -> float:
        """nvc with what an earlier start found."""
        with self.targets.fresh() as pid:
            return timed(self.argv(self.nvc, pid), self.log)

    def other(self) -> float:
        """The peer."""
        with self.targets.fresh() as pid:
            return timed(self.argv(self.peer, pid), self.log)

    def interpreter(self) -> float:
        """The interpreter alone: what no Python program can be faster than."""
        with open(os.path.join(self.prefix, "lib/nvc/launch.conf"), encoding="ascii") as conf:
            return timed([conf.readline().split()[1], "-I", "-S", "-c", "pass"], self.log)

    def steps(self, first: bool) -> dict[str, float]:
        """Milliseconds of each step that nvc reports of itself with NVC_TRACE=1."""
        if first:
            forget()
        with self.targets.fresh() as pid:
            timed(self.argv(self.nvc, pid), self.log, {**CLEAN_ENV, "NVC_TRACE": "1"})
        with open(self.log, encoding="utf-8") as log:
            return {name: int(taken) / 1000 for name, taken in TRACE.findall(log.read())}


def simulated_root(options: argparse.Namespace, directory: str) -> str:
    root = os.path.join(directory, "driver")
    layout = f"{options.mig}x1g.10gb" if options.mig.isdigit() else options.mig
    mig = ["--mig", layout] if layout else []
    sim = ["sim", "create", root, "--gpus", str(options.gpus), "--model", options.model, *mig]
    run(os.path.join(options.prefix, "bin/nvc-cli"), *sim)
    return root


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times `nvc-cli configure`, beside a peer if one is named.")
    parser.add_argument("--peer", default="", help="path of nvidia-container-cli")
    parser.add_argument(
        "--prefix", default=STAGE, help="installation of nvc (default: NVC_STAGE, else the stage)"
    )
    parser.add_argument("--root", default="", help="driver root (default: a simulated one is made)")
    parser.add_argument("--gpus", type=int, default=2, help="of the simulated driver (default 2)")
    parser.add_argument("--mig", default="", help="MIG layout of each simulated GPU: `7` is 7x1g.10gb")
    parser.add_argument("--model", default="h100")
    parser.add_argument("--device", default="all")
    parser.add_argument("--capabilities", default="compute,utility")
    parser.add_argument("--no-cgroups", action="store_true", help="leave the device cgroup alone, both")
    parser.add_argument("--runs", type=int, default=40, help="of each contender (default 40)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all times, in milliseconds")
    return parser.parse_args()


def report(times: dict[str, list[float]], peer: str) -> None:
    """One line a contender; the ratio says how many times the peer's median it takes."""
    print(f"{'ms':<28}{'median':>9}{'p10':>9}{'p90':>9}{'ratio':>9}")
    base = quantile(times[peer], 0.5) if peer in times else 0.0
    for name, values in times.items():
        median = quantile(values, 0.5)
        ratio = f"{median / base:9.2f}" if base else ""
        print(f"{name:<28}{median:9.2f}{quantile(values, 0.1):9.2f}{quantile(values, 0.9):9.2f}{ratio}")


def report_steps(title: str, samples: list[dict[str, float]]) -> None:
    if not any(samples):
        return
    print(f"\n{title}, median of each step in ms")
    for name in samples[0]:
        values = [sample[name] for sample in samples if name in sample]
        print(f"  {name:<26}{quantile(values, 0.5):9.3f}")


def main() -> None:
    options = arguments()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        root = options.root or simulated_root(options, directory)
        bench = Bench(options, directory, root)
        contenders = {
            "python3 -I -S -c pass": bench.interpreter,
            "nvc configure, first": bench.first,
            "nvc configure, again": bench.again,
        }
        if options.peer:
            contenders["peer configure"] = bench.other
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for contender in contenders.values():
            contender()  # the page cache is warm before anything counts
        for _ in range(options.runs):
            for name, contender in contenders.items():
                times[name].append(contender())
        print(
            f"Linux {os.uname().release}, {os.uname().machine}, {os.cpu_count()} CPUs, {options.runs} runs"
        )
        print(f"driver root {'simulated' if not options.root else root}: {' '.join(bench.wanted)}\n")
        report(times, "peer configure")
        report_steps("first start", [bench.steps(first=True) for _ in range(5)])
        report_steps("repeated start", [bench.steps(first=False) for _ in range(5)])
        if options.json:
            with open(options.json, "w", encoding="utf-8") as out:
                json.dump(times, out, indent=1)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

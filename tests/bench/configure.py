"""Times `configure`, the part of nvc that a container start waits for.

Every run gets a fresh target. Contenders alternate within one run of this program, since times move between
machines and hours: compare ratios. `make bench` uses a simulated driver; on a machine with a real one:

    make bench PEER=/usr/bin/nvidia-container-cli BENCH="--root /"
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import CLEAN_ENV, REPO
from support.rootfs import make_rootfs
from target import Targets
from times import driver_root, forget, in_turn, interpreter, median, save, table, timed
from times import options as shared_options

TRACE = re.compile(r"^trace: (.+) (\d+)$", re.MULTILINE)


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
        return timed(interpreter(self.prefix), self.log)

    def steps(self, first: bool) -> dict[str, float]:
        """Milliseconds of each step that nvc reports of itself with NVC_TRACE=1."""
        if first:
            forget()
        with self.targets.fresh() as pid:
            timed(self.argv(self.nvc, pid), self.log, {**CLEAN_ENV, "NVC_TRACE": "1"})
        with open(self.log, encoding="utf-8") as log:
            return {name: int(taken) / 1000 for name, taken in TRACE.findall(log.read())}


def arguments() -> argparse.Namespace:
    parser = shared_options(
        "Times `nvc-cli configure`, beside a peer if one is named.", "nvidia-container-cli"
    )
    parser.add_argument("--mig", default="", help="MIG layout of each simulated GPU: `7` is 7x1g.10gb")
    parser.add_argument("--model", default="h100")
    parser.add_argument("--device", default="all")
    parser.add_argument("--capabilities", default="compute,utility")
    parser.add_argument("--no-cgroups", action="store_true", help="leave the device cgroup alone, both")
    return parser.parse_args()


def report_steps(title: str, samples: list[dict[str, float]]) -> None:
    if not any(samples):
        return
    print(f"\n{title}, median of each step in ms")
    for name in samples[0]:
        values = [sample[name] for sample in samples if name in sample]
        print(f"  {name:<26}{median(values):9.3f}")


def main() -> None:
    options = arguments()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        layout = f"{options.mig}x1g.10gb" if options.mig.isdigit() else options.mig
        mig = ["--mig", layout] if layout else []
        root = driver_root(options, directory, "--model", options.model, *mig)
        bench = Bench(options, directory, root)
        contenders = {
            "python3 -I -S -c pass": bench.interpreter,
            "nvc configure, first": bench.first,
            "nvc configure, again": bench.again,
        }
        if options.peer:
            contenders["peer configure"] = bench.other
        times = in_turn(contenders, options.runs)
        print(
            f"Linux {os.uname().release}, {os.uname().machine}, {os.cpu_count()} CPUs, {options.runs} runs"
        )
        print(f"driver root {'simulated' if not options.root else root}: {' '.join(bench.wanted)}")
        table(times, "ratio", "peer configure")
        report_steps("first start", [bench.steps(first=True) for _ in range(5)])
        report_steps("repeated start, by Python", [bench.steps(first=False) for _ in range(5)])
        save(times, options.json)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

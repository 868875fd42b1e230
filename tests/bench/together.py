"""Tenants of one GPU side by side: steps a second, latency, energy, in each way to share it, by turns in one run.

    python3 tests/bench/together.py [--bin DIR] [--root DRIVER_ROOT] [--device ID] [--only GROUP ...]
        [--seconds 5] [--rounds 3] [--minutes 30] [--peer-shim /path/libvgpu.so] [--report FILE]
        [-o json]

As root. The tenants are programs of our own (tests/native/vgpu_steps.c): decode loops whose step of 2 ms is a
CUDA graph, the same launched one by one (`eager`), training steps of 15 ms (`train`), and a mix of all. The ways:
the driver's time slices without nvc (`native`), nvc's policies, slices of memory alone (`slices`), one MPS server
that is started here (`mps`), and another shim (`peer`), set up by the variables of HAMi-core, with equal caps.

Groups run in their order, most important first, until the minutes are over. The report, in Markdown, is written
anew after each run, and ends with what did not run. A run that hangs is ended and reported. Without a GPU, only the
first group runs, on a simulated one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.dirname(sys.path[0]))

from support import REPO, STAGE
from support.together import EIGHT, TENANTS_OF_NVCD, Case, Sample, equal, goals, report, rows
from tenants import Gpu
from together_run import Failed, Machine

APART = "NVC_BENCH_APART"
START = 3.0  # seconds until all tenants of a run have begun, about
WAYS = ("native", "mps", "concurrent", "weight")  # of most groups
POLICIES = ("slices", "fixed", "first", "fair", "soft")


def plan() -> dict[str, list[Case]]:
    """The cases of each group, most important first."""

    def alone(*loads: str) -> list[Case]:
        return [equal("native", 1, load) for load in loads]

    def each(count: int, load: str, ways: tuple[str, ...] = WAYS) -> list[Case]:
        return [equal(way, count, load) for way in ways]

    uncapped = [way for way in POLICIES if way != "fixed"]  # which wants a cap
    uneven = ("concurrent", "weight")
    kinds = ("decode", "train", "eager")
    return {
        "two": [*alone("decode"), *each(2, "decode")],
        "four": [*alone("decode"), *each(4, "decode")],
        "weights": [
            *each(2, "decode", ("native", "concurrent")),
            *(Case("decode", way, (3, 1)) for way in uneven),
            *(Case("decode", way, EIGHT) for way in uneven),
        ],
        "nvcd": [equal("weight", TENANTS_OF_NVCD)],
        "mix": [*alone(*kinds), *each(2, "mix"), *each(4, "mix")],
        "train": [*alone("train"), *each(2, "train"), *each(4, "train")],
        "eager": [*alone("eager"), *each(2, "eager"), *each(4, "eager")],
        "eight": [*alone(*kinds), *each(8, "decode"), *each(8, "mix")],
        "policies": [*alone("decode"), *each(2, "decode", ("native", *POLICIES))],
        "one": [*alone("decode"), *each(1, "decode", (*WAYS[1:], *uncapped))],
        "peer": [*alone("decode"), *each(2, "decode", ("native", "peer")), *each(4, "decode", ("native", "peer"))],
    }  # fmt: skip


class Run:
    """All that has been measured, and the report of it."""

    def __init__(self, machine: Machine, options: argparse.Namespace) -> None:
        self.machine, self.options = machine, options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.samples: dict[Case, list[Sample]] = {}
        self.not_run: dict[str, str] = {}
        self.head: list[tuple[str, str]] = []

    def over(self) -> bool:
        """Whether another run would end after the time is over."""
        needed: float = self.options.seconds + self.options.warm + START
        return bool(time.monotonic() + needed > self.deadline)

    def group(self, cases: list[Case]) -> None:
        """All of its cases, by turns. What fails is tried once more."""
        failed: dict[Case, int] = {}
        for turn in range(self.options.rounds):
            for case in cases:
                why = self.machine.lacks(case.way) or ("the time was over" if self.over() else "")
                if failed.get(case, 0) > 1:
                    continue
                if why:
                    self.leave(f"{case}" + (f", run {turn + 1}" if turn else ""), why)
                    continue
                try:
                    sample = self.machine.measure(case, self.options.seconds, self.options.warm)
                except Failed as error:
                    failed[case] = failed.get(case, 0) + 1
                    self.leave(f"{case}, run {turn + 1}", f"failed: {' '.join(str(error).split())}")
                    continue
                self.samples.setdefault(case, []).append(sample)
                (one,) = rows({case: [sample]}).values()
                print(
                    f"{case}: {one.total:.1f} a second, p50 {one.p50:.2f} ms, p99 {one.p99:.2f} ms",
                    file=sys.stderr,
                )
                self.write()

    def leave(self, name: str, why: str) -> None:
        """Say that something did not run."""
        self.not_run[name] = why
        print(f"{name}: {why}", file=sys.stderr)
        self.write()

    def about(self) -> list[tuple[str, str]]:
        """What the figures depend on."""
        query = [
            "nvidia-smi",
            f"--id={self.machine.gpu.uuid}",
            "--query-gpu=driver_version",
            "--format=csv,noheader",
        ]
        try:
            driver = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip() or "-"
        except (FileNotFoundError, subprocess.TimeoutExpired):
            driver = "-"
        return [
            ("GPU", self.machine.gpu.name),
            ("driver", driver),
            ("kernel", platform.release()),
            ("processors", str(os.cpu_count())),
            ("date", time.strftime("%Y-%m-%d", time.gmtime())),
            ("command", f"together {' '.join(sys.argv[1:])}"),
            ("rounds of a kernel", ", ".join(f"{kind} {n}" for kind, n in self.machine.rounds.items())),
        ]

    def text(self) -> str:
        """The report, in Markdown."""
        return report(self.head, rows(self.samples), list(self.not_run.items()))

    def write(self) -> None:
        """Keep what there is: a run that is ended from outside loses nothing but its last case."""
        if self.options.report:
            with open(f"{self.options.report}.new", "w", encoding="utf-8") as out:
                out.write(self.text())
            os.replace(f"{self.options.report}.new", self.options.report)

    def json(self) -> dict[str, object]:
        """The same, for programs."""
        return {
            "about": dict(self.head),
            "rows": [
                {"load": one.case.load, "way": one.case.way, "weights": one.case.weights, "runs": one.runs,
                 "stepsPerSecond": round(one.total, 3), "rates": [round(rate, 3) for rate in one.rates],
                 "ofAlone": one.speed and round(one.speed, 4), "p50Ms": one.p50, "p99Ms": one.p99,
                 "joulesPerStep": one.joules, "nvcdPercentOfCore": one.nvcd}
                for one in rows(self.samples).values()
            ],
            "goals": [
                {"goal": goal.text, "wanted": goal.bound, "got": goal.value, "kept": goal.kept}
                for goal in goals(rows(self.samples))
            ],
            "notRun": self.not_run,
        }  # fmt: skip

    def all(self) -> None:
        """Every group that is asked for."""
        groups = plan()
        self.machine.calibrate()
        self.head = self.about()
        for name, cases in groups.items():
            if self.options.only and name not in self.options.only:
                self.not_run[f"group `{name}`"] = "not asked for"
            elif name == "peer" and self.machine.lacks(name):
                self.not_run["group `peer`"] = self.machine.lacks(name)
            else:
                self.group(cases)
        self.write()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    root = os.environ.get("NVC_BENCH_ROOT", "/")
    parser.add_argument("--bin", default=os.path.join(STAGE, "bin"), help="where nvc-cli and nvcd are")
    parser.add_argument("--root", default=root, help="driver root, also a simulated one")
    parser.add_argument(
        "--device", default=os.environ.get("NVC_BENCH_DEVICE", ""), help="index or UUID of the GPU"
    )
    parser.add_argument("--only", action="append", help="groups, by name and with commas; else all")
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument("--warm", type=float, default=2, help="seconds before that")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    parser.add_argument("--minutes", type=float, default=30, help="no run begins afterwards")
    parser.add_argument(
        "--peer-shim", default=os.environ.get("PEER_SHIM", ""), help="another shim to preload"
    )
    parser.add_argument("--report", default="", help="keep the report in this file, in Markdown")
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown")
    options = parser.parse_args()
    options.only = [name for words in options.only or () for name in words.split(",")]
    unknown = set(options.only) - set(plan())
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))} among {', '.join(plan())}")
    return options


def apart() -> None:
    """Go on in a mount namespace with a /run/nvc of its own, so that the host's slices are not disturbed."""
    if os.environ.get(APART) != "yes":
        os.environ[APART] = "yes"
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvp("unshare", words)
    os.makedirs("/run/nvc", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "none", "/run/nvc"], check=True)


def main() -> None:
    options = arguments()
    if options.report:
        options.report = os.path.abspath(options.report)
    apart()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing outlives it
    scratch = tempfile.mkdtemp(prefix="nvc-bench-")
    os.chmod(scratch, 0o755)
    try:
        program = os.path.join(scratch, "vgpu_steps")
        source = os.path.join(REPO, "tests/native/vgpu_steps.c")
        subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", "-o", program, source, "-ldl"], check=True)
        nvc = os.path.join(options.bin, "nvc-cli")
        if options.root == "/" and not os.path.exists("/proc/driver/nvidia/version"):
            options.root, options.only = f"{scratch}/driver", options.only or ["two"]
            subprocess.run([nvc, "sim", "create", options.root], check=True, stdout=sys.stderr)
        gpu = Gpu(nvc, options.root, options.device)
        machine = Machine(gpu, program, options.peer_shim, scratch, "(simulated)" in gpu.name)
        run = Run(machine, options)
        try:
            run.all()
        except Failed as error:
            raise SystemExit(f"bench: {error}") from None
        print(json.dumps(run.json()) if options.output == "json" else run.text())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

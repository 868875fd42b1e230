"""Runs the fault harness in processes of its own.

    python -m support.faults_run PREFIX [--jobs N] [--fresh] [--every N]     everything, as `make faults` does
    python -m support.faults_run PREFIX SCENARIO FIRST:LAST:STRIDE TOOL DRIVER DIRECTORY     a part, in this process

PREFIX is an installation. The whole takes a while; what is done is kept in build/faults, and gone on with the next
time. Exit 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from nvc.testing.sim import SimSpec, create
from support import REPO
from support.faults import SCENARIOS, World, build_tool

CHUNK = 150  # faults that one process tries


def work(prefix: str, scenario: str, numbers: str, tool: str, driver_root: str, directory: str) -> int:
    """Try the faults with these numbers and print a line for each that is wrong; how many were."""
    world = World(SCENARIOS[scenario], directory, tool, prefix, driver_root)
    faults = world.faults()
    first, last, stride = map(int, numbers.split(":"))
    chosen = range(first, min(last or len(faults), len(faults)), stride)
    wrong = 0
    for number in chosen:
        found = world.attempt(faults[number])
        if found:
            wrong += 1
            print(f"{scenario} {number} {faults[number]}", *found, sep="\n    ", flush=True)
    print(
        f"{scenario}: {len(chosen)} of {len(faults)} faults at {len(world.calls)} calls tried, {wrong} wrong"
    )
    shutil.rmtree(world.directory)
    return wrong


class Everything:
    """All faults of all scenarios, or each n-th of them, a chunk at a time."""

    def __init__(self, prefix: str, directory: str, every: int = 1) -> None:
        self.directory = directory
        self.every = every
        #: Without a space, which options of mounts do not stand.
        self.place = tempfile.mkdtemp(prefix="nvc-faults-")
        self.driver_root = os.path.join(self.place, "driver")
        self.start = [sys.executable, "-m", "support.faults_run", prefix]
        self.wrong = self.tried = 0
        os.makedirs(directory, exist_ok=True)
        self.tool = build_tool(self.place)
        create(self.driver_root, SimSpec(gpus=2))

    def part(self, scenario: str, numbers: str) -> subprocess.CompletedProcess[str]:
        """One process's part."""
        words = [scenario, numbers, self.tool, self.driver_root, self.place]
        path = f"{REPO}:{REPO}/tests"
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run([*self.start, *words], env=env, capture_output=True, text=True, check=False)

    def chunk(self, scenario: str, first: int) -> None:
        """Try a chunk, unless that was done."""
        name = os.path.join(self.directory, f"{scenario}-{first}-{self.every}.txt")
        if not os.path.exists(name):
            done = self.part(scenario, f"{first}:{first + CHUNK * self.every}:{self.every}")
            text = done.stdout + done.stderr
            if done.returncode not in (0, 1):
                print(text, flush=True)
                self.wrong += 1
                return
            with open(name + ".new", "w", encoding="utf-8") as out:
                out.write(text)
            os.rename(name + ".new", name)
        with open(name, encoding="utf-8") as lines:
            *found, last = lines
        self.tried += int(last.split()[1])
        self.wrong += int(last.split()[-2])
        print(*found, sep="", end="", flush=True)

    def run(self, jobs: int) -> None:
        """Try everything."""
        with ThreadPoolExecutor(jobs) as pool:
            for scenario in SCENARIOS:
                done = self.part(scenario, "0:1:1")
                print(
                    done.stdout.replace(": 1 of", ":").replace("tried, 0 wrong", "made"), end="", flush=True
                )
                assert done.returncode in (0, 1), done.stderr
                total = int(done.stdout.split()[3])
                firsts = range(0, total, CHUNK * self.every)
                list(pool.map(lambda first: self.chunk(scenario, first), firsts))  # noqa: B023


def main() -> int:
    """Exit status."""
    if len(sys.argv) == 7:
        return 1 if work(*sys.argv[1:]) else 0
    parser = argparse.ArgumentParser(description="Tries every fault of a container start.")
    parser.add_argument("prefix")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each N-th fault alone")
    options = parser.parse_args()
    directory = os.path.join(REPO, "build/faults")
    if options.fresh:
        shutil.rmtree(directory, ignore_errors=True)
    began = time.monotonic()
    everything = Everything(options.prefix, directory, options.every)
    try:
        everything.run(options.jobs)
    finally:
        shutil.rmtree(everything.place, ignore_errors=True)
    print(f"{everything.tried} faults, {everything.wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if everything.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""What programs that time container starts have in common: contenders in turn, and one table of what they took."""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import CLEAN_ENV, STAGE, run

#: Seconds between starts of whole containers. What the last one leaves is taken down after its end, which makes a
#: start that comes at once up to 20 ms slower (docs/measurements/reports/2026-11-23-starts.md).
REST = 0.3


def options(description: str, peer: str, runs: int = 40) -> argparse.ArgumentParser:
    """The options that they share. `peer` says whose path --peer names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peer", default="", help=f"path of {peer}")
    parser.add_argument(
        "--prefix", default=STAGE, help="installation of nvc (default: NVC_STAGE, else the stage)"
    )
    parser.add_argument("--root", default="", help="driver root (default: a simulated one is made)")
    parser.add_argument("--gpus", type=int, default=2, help="of the simulated driver (default 2)")
    parser.add_argument("--runs", type=int, default=runs, help=f"of each contender (default {runs})")
    parser.add_argument("--json", default="", metavar="FILE", help="write all times, in milliseconds")
    return parser


def driver_root(options: argparse.Namespace, directory: str, *words: str) -> str:
    """The root that was named, else a simulated one below `directory`, made with more options of `sim create`."""
    if options.root:
        return str(options.root)
    root = os.path.join(directory, "driver")
    sim = ["sim", "create", root, "--gpus", str(options.gpus), *words]
    run(os.path.join(options.prefix, "bin/nvc-cli"), *sim)
    return root


def forget() -> None:
    """Make the next start of nvc a first one."""
    for path in glob.glob("/run/nvc/inventory*") + glob.glob("/run/nvc/replay-*"):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def timed(argv: list[str], log: str, env: dict[str, str] = CLEAN_ENV, stdin: str = "/dev/null") -> float:
    """Milliseconds from the start of a process to its end; it must succeed. Its output goes to `log`."""
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, create, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    start = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    taken = (time.perf_counter_ns() - start) / 1e6
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as text:
            raise SystemExit(f"bench: {' '.join(argv)}: failed\n{text.read()}")
    return taken


def interpreter(prefix: str) -> list[str]:
    """The interpreter of an installation alone: what no Python program can be faster than."""
    with open(os.path.join(prefix, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        return [conf.readline().split()[1], "-I", "-S", "-c", "pass"]


def in_turn(
    contenders: Mapping[str, Callable[[], float]], runs: int, rest: float = 0.0
) -> dict[str, list[float]]:
    """Milliseconds of each contender, `runs` times, one after the other, with `rest` seconds after each.

    They alternate, since times move between machines and hours. The first of each only warms what is kept.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(runs + 1):
        for name, contender in contenders.items():
            taken = contender()
            if turn:
                times[name].append(taken)
            time.sleep(rest)
    return times


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[round(fraction * (len(ordered) - 1))]


def median(values: list[float]) -> float:
    return quantile(values, 0.5)


def table(times: dict[str, list[float]], column: str = "", base: str = "") -> None:
    """A line for each contender. `column` is "ratio" or "more": to the median of the contender `base`."""
    width = max(map(len, times)) + 2
    compared = column if base in times else ""
    print(f"\n{'ms':<{width}}{'median':>9}{'p10':>9}{'p90':>9}{compared:>9}")
    for name, values in times.items():
        row = "".join(f"{quantile(values, part):9.2f}" for part in (0.5, 0.1, 0.9))
        if compared:
            whole = median(times[base])
            row += f"{median(values) / whole if column == 'ratio' else median(values) - whole:9.2f}"
        print(f"{name:<{width}}{row}")


def save(times: dict[str, list[float]], path: str) -> None:
    """Write all times as JSON, if a path is named."""
    if path:
        with open(path, "w", encoding="utf-8") as out:
            json.dump(times, out, indent=1)

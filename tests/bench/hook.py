"""Times `nvc-hook prestart`, the whole process, beside the bare interpreter in the same run.

Every run gets a fresh target with a bundle around it; contenders alternate. A peer is a program that takes the
same call, such as NVIDIA's hook with its own command line tool and `config.toml`:

    make bench HOOK_PEER=/usr/bin/nvidia-container-runtime-hook
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from configure import forget, quantile
from support import CLEAN_ENV, REPO, STAGE, run
from support.bundle import default_config
from support.rootfs import make_rootfs
from target import Targets

#: Times the bare interpreter.
TARGET = 2.5


class Bench:
    """The contenders."""

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.directory = directory
        self.targets = Targets(directory, make_rootfs(os.path.join(directory, "lower")))
        self.peer = options.peer
        self.prefix = options.prefix
        self.hook = os.path.join(options.prefix, "bin/nvc-hook")
        root = options.root
        if not root:
            root = os.path.join(directory, "driver")
            run(
                os.path.join(options.prefix, "bin/nvc-cli"),
                "sim",
                "create",
                root,
                "--gpus",
                str(options.gpus),
            )
        self.config = os.path.join(directory, "config.toml")
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(f'[nvidia-container-cli]\nroot = "{root}"\n')
            out.writelines(f"{setting}\n" for setting in options.setting)
        self.bundles = [self._bundle("asks", "NVIDIA_VISIBLE_DEVICES=all"), self._bundle("asks-not")]

    def _bundle(self, name: str, *variables: str) -> str:
        bundle = os.path.join(self.directory, name)
        os.makedirs(bundle)
        config = default_config(self.targets.rootfs)
        config["process"]["env"] += variables
        with open(os.path.join(bundle, "config.json"), "w", encoding="utf-8") as out:
            json.dump(config, out)
        return bundle

    def timed(self, argv: list[str], bundle: str = "", pid: int = 0) -> float:
        """Milliseconds from the start of a process to its end; it must succeed."""
        state = os.path.join(self.directory, "state.json")
        with open(state, "w", encoding="utf-8") as out:
            json.dump(
                {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": pid, "bundle": bundle}, out
            )
        log = os.path.join(self.directory, "log")
        create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, state, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, create, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, log, create, 0o600),
        ]
        start = time.perf_counter_ns()
        child = os.posix_spawn(argv[0], argv, CLEAN_ENV, file_actions=actions)
        _, status = os.waitpid(child, 0)
        taken = (time.perf_counter_ns() - start) / 1e6
        if status != 0:
            with open(log, encoding="utf-8", errors="replace") as text:
                raise SystemExit(f"bench: {' '.join(argv)}: failed\n{text.read()}")
        return taken

    def interpreter(self) -> float:
        """The interpreter alone: what no Python program can be faster than."""
        with open(os.path.join(self.prefix, "lib/nvc/launch.conf"), encoding="ascii") as conf:
            return self.timed([conf.readline().split()[1], "-I", "-S", "-c", "pass"])

    def again(self, program: str = "") -> float:
        """The hook with what an earlier start found."""
        with self.targets.fresh() as pid:
            return self.timed(
                [program or self.hook, "-config", self.config, "prestart"], self.bundles[0], pid
            )

    def first(self) -> float:
        """The hook without anything remembered."""
        forget()
        return self.again()

    def idle(self) -> float:
        """The hook for a container that asks for no GPU."""
        return self.timed([self.hook, "-config", self.config, "prestart"], self.bundles[1], os.getpid())

    def other(self) -> float:
        """The peer."""
        return self.again(self.peer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times `nvc-hook prestart`, beside a peer if one is named.")
    parser.add_argument("--peer", default="", help="path of nvidia-container-runtime-hook")
    parser.add_argument(
        "--setting", action="append", default=[], help="line of [nvidia-container-cli] for both, repeatable"
    )
    parser.add_argument("--prefix", default=STAGE, help="installation of nvc (default: the stage)")
    parser.add_argument("--root", default="", help="driver root (default: a simulated one is made)")
    parser.add_argument("--gpus", type=int, default=2, help="of the simulated driver (default 2)")
    parser.add_argument("--runs", type=int, default=40, help="of each contender (default 40)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all times, in milliseconds")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        bench = Bench(options, directory)
        contenders = {
            "python3 -I -S -c pass": bench.interpreter,
            "nvc-hook, no GPU asked for": bench.idle,
            "nvc-hook, valid inventory": bench.again,
        }
        if options.peer:
            contenders["peer hook"] = bench.other
        times: dict[str, list[float]] = {name: [] for name in contenders}
        bench.first()
        for turn in range(options.runs + 1):
            for name, contender in contenders.items():
                taken = contender()
                if turn:  # the first of each only warms the page cache
                    times[name].append(taken)
        times["nvc-hook, first"] = [bench.first() for _ in range(options.runs // 4)]
    finally:
        shutil.rmtree(directory)
    base = quantile(times["python3 -I -S -c pass"], 0.5)
    print(f"\n{'ms':<30}{'median':>9}{'p10':>9}{'p90':>9}{'ratio':>9}")
    for name, values in times.items():
        median = quantile(values, 0.5)
        print(
            f"{name:<30}{median:9.2f}{quantile(values, 0.1):9.2f}{quantile(values, 0.9):9.2f}{median / base:9.2f}"
        )
    reached = quantile(times["nvc-hook, valid inventory"], 0.5) / base
    print(f"valid inventory: {reached:.2f} times the bare interpreter, wanted less than {TARGET}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(times, out, indent=1)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

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

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import REPO
from support.bundle import default_config
from support.rootfs import make_rootfs
from target import Targets
from times import driver_root, forget, in_turn, interpreter, median, save, table, timed
from times import options as shared_options

#: Times the bare interpreter.
TARGET = 2.5


class Bench:
    """The contenders."""

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.directory = directory
        self.log = os.path.join(directory, "log")
        self.targets = Targets(directory, make_rootfs(os.path.join(directory, "lower")))
        self.peer = options.peer
        self.prefix = options.prefix
        self.hook = os.path.join(options.prefix, "bin/nvc-hook")
        root = driver_root(options, directory)
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

    def hooked(self, program: str, bundle: str, pid: int, *words: str) -> float:
        """Milliseconds of a hook that gets the state of a container."""
        state = os.path.join(self.directory, "state.json")
        with open(state, "w", encoding="utf-8") as out:
            json.dump(
                {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": pid, "bundle": bundle}, out
            )
        return timed([program, *words, "prestart"], self.log, stdin=state)

    def interpreter(self) -> float:
        return timed(interpreter(self.prefix), self.log)

    def again(self, program: str = "") -> float:
        """The hook with what an earlier start found."""
        with self.targets.fresh() as pid:
            return self.hooked(program or self.hook, self.bundles[0], pid, "-config", self.config)

    def first(self) -> float:
        """The hook without anything remembered."""
        forget()
        return self.again()

    def idle(self) -> float:
        """The hook for a container that asks for no GPU, with the host's own settings, as engines call it."""
        return self.hooked(self.hook, self.bundles[1], os.getpid())

    def other(self) -> float:
        """The peer."""
        return self.again(self.peer)


def main() -> None:
    parser = shared_options(
        "Times `nvc-hook prestart`, beside a peer if one is named.", "nvidia-container-runtime-hook"
    )
    parser.add_argument(
        "--setting", action="append", default=[], help="line of [nvidia-container-cli] for both, repeatable"
    )
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
        bench.first()
        times = in_turn(contenders, options.runs)
        times["nvc-hook, first"] = [bench.first() for _ in range(options.runs // 4)]
    finally:
        shutil.rmtree(directory)
    table(times, "ratio", "python3 -I -S -c pass")
    reached = median(times["nvc-hook, valid inventory"]) / median(times["python3 -I -S -c pass"])
    print(f"valid inventory: {reached:.2f} times the bare interpreter, wanted less than {TARGET}")
    save(times, options.json)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

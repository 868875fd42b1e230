"""Times `configure` from the package beside `configure` from the tree, in one run.

The tree is what `make install` makes; the package is unpacked and settled as its scripts do it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from support import STAGE, need, run
from support.packages import build, deb
from support.rootfs import make_rootfs
from target import Targets
from times import forget, in_turn, median, table, timed

#: Times the tree's median.
TARGET = 1.1


def unpack(directory: str) -> str:
    """The prefix of the unpacked package."""
    run(need("dpkg-deb"), "-x", deb(build(os.path.dirname(directory))), directory)
    run(os.path.join(directory, "usr/lib/nvc/settle"))
    return os.path.join(directory, "usr")


def measure(prefixes: dict[str, str], directory: str, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each start, by contender."""
    root, log = os.path.join(directory, "driver"), os.path.join(directory, "log")
    run(os.path.join(prefixes["tree"], "bin/nvc-cli"), "sim", "create", root, "--gpus", "2")
    targets = Targets(directory, make_rootfs(os.path.join(directory, "lower")))
    words = [f"--root={root}", "configure", "--device=all", "--compute", "--utility"]

    def start(prefix: str) -> float:
        with targets.fresh() as pid:
            argv = [os.path.join(prefix, "bin/nvc-cli"), *words, f"--pid={pid}", targets.rootfs]
            return timed(argv, log)

    forget()
    contenders = {f"configure, {name}": partial(start, prefix) for name, prefix in prefixes.items()}
    return in_turn(contenders, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times `configure` from the package and from the tree.")
    parser.add_argument("--prefix", default=STAGE, help="the tree (default: NVC_STAGE, else the stage)")
    parser.add_argument("--runs", type=int, default=40, help="of each (default 40)")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    os.chmod(directory, 0o755)
    try:
        prefixes = {"tree": options.prefix, "package": unpack(os.path.join(directory, "package"))}
        times = measure(prefixes, directory, options.runs)
    finally:
        shutil.rmtree(directory)
    table(times)
    ratio = median(times["configure, package"]) / median(times["configure, tree"])
    print(f"the package takes {ratio:.2f} times what the tree takes, wanted at most {TARGET}")


if __name__ == "__main__":
    main()

"""Times `configure` from the package beside `configure` from the tree, in one run.

The tree is what `make install` makes; the package is unpacked and settled as its scripts do it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from configure import forget, quantile, timed
from support import STAGE, need, run
from support.packages import build, deb
from support.rootfs import make_rootfs
from target import Targets

#: Times the tree's median.
TARGET = 1.1


def unpack(directory: str) -> str:
    """The prefix of the unpacked package."""
    run(need("dpkg-deb"), "-x", deb(build()), directory)
    run(os.path.join(directory, "usr/lib/nvc/settle"))
    return os.path.join(directory, "usr")


def measure(prefixes: dict[str, str], directory: str, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each start, by contender."""
    root, log = os.path.join(directory, "driver"), os.path.join(directory, "log")
    run(os.path.join(prefixes["tree"], "bin/nvc-cli"), "sim", "create", root, "--gpus", "2")
    targets = Targets(directory, make_rootfs(os.path.join(directory, "lower")))
    words = [f"--root={root}", "configure", "--device=all", "--compute", "--utility"]
    times: dict[str, list[float]] = {name: [] for name in prefixes}
    forget()
    for turn in range(runs + 1):
        for name, prefix in prefixes.items():
            with targets.fresh() as pid:
                argv = [os.path.join(prefix, "bin/nvc-cli"), *words, f"--pid={pid}", targets.rootfs]
                taken = timed(argv, log)
            if turn:  # the first of each only warms the page cache and the inventory
                times[name].append(taken)
    return times


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
    print(f"\n{'ms':<28}{'median':>9}{'p10':>9}{'p90':>9}")
    for name, values in times.items():
        row = "".join(f"{quantile(values, part):9.2f}" for part in (0.5, 0.1, 0.9))
        print(f"configure, {name:<17}{row}")
    ratio = quantile(times["package"], 0.5) / quantile(times["tree"], 0.5)
    print(f"the package takes {ratio:.2f} times what the tree takes, wanted at most {TARGET}")


if __name__ == "__main__":
    main()

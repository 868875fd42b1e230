"""What a claim adds to a container's start on its node, in processor time, which other work changes little.

    python tests/bench/claims.py [--runs 20]

As root, on a simulated driver, with an installation's hook (`make install PREFIX=... DESTDIR=`, and --prefix). The
plugin and nvcd are the stage's; kubelet and API server are the tests' own. What is measured is `runc run` of
/bin/true with its hooks, and what the plugin's two processes need to prepare and unprepare a claim.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(sys.path[0]))

from support import CLEAN_ENV, REPO, STAGE
from support.apiserver import claim, result
from support.bundle import Bundle
from support.claimed import ClaimNode, edit, node
from support.kubelet import children
from support.rootfs import make_rootfs
from times import driver_root, in_turn, options, save, table

CLAIMS = 40
STEP = "slice-memory"


def used(pid: int) -> float:
    """Milliseconds of processor time of the threads that a process has."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as text:
            total += int(text.read().split()[0])
    return total / 1e6


def started(words: list[str], taken: list[float]) -> float:
    """Milliseconds of processor time of a program and of the processes that it waited for; it must succeed.

    To `taken` those are added that have passed meanwhile.
    """
    begin = time.monotonic()
    pid = os.posix_spawnp(words[0], words, CLEAN_ENV)
    _, status, usage = os.wait4(pid, 0)
    taken.append(1000 * (time.monotonic() - begin))
    if status:
        raise SystemExit(f"bench: {' '.join(words)}: failed")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def without_simulation(config: dict[str, Any]) -> None:
    """Take out of the hooks what is made for simulated drivers alone."""
    hooks = config.get("hooks", {}).get("createContainer", [])
    for hook in hooks:
        if hook["args"][1] == "simulate-proc":
            end = hook["args"].index(STEP) if STEP in hook["args"] else len(hook["args"])
            del hook["args"][1:end]
    hooks[:] = [hook for hook in hooks if len(hook["args"]) > 1]


def bundles(made: ClaimNode, directory: str, names: dict[str, str]) -> dict[str, Bundle]:
    """A bundle for each CDI device, and for parts of the slice's hooks."""
    lower = make_rootfs(f"{directory}/lower")
    found: dict[str, Bundle] = {}

    def add(name: str, config: dict[str, Any] | None = None) -> Bundle:
        place = f"{directory}/bundle{len(found)}"
        bundle = Bundle(place, shutil.copytree(lower, f"{place}/rootfs", symlinks=True))
        bundle.before = tuple(made.place.enter())
        if config is not None:
            bundle.config = {**config, "root": bundle.config["root"]}
        bundle.config["process"]["args"] = ["/bin/true"]
        found[name] = bundle
        return bundle

    for name, device in names.items():
        without_simulation(edit(made.plugin, add(name), *([device] if device else [])).config)
    whole = found["slice"].config
    for name, wanted in {
        "slice, without hooks": None,
        "slice, that hook alone": True,
        "slice, others alone": False,
    }.items():
        config = copy.deepcopy(whole)
        (hook,) = config["hooks"]["createContainer"]
        end = next(place for place, word in enumerate(hook["args"][2:], 2) if not word.startswith("--"))
        assert hook["args"][1] == STEP
        if wanted is None:
            del config["hooks"]
        else:
            del hook["args"][slice(end, None) if wanted else slice(1, end)]
        add(name, config)
    for bundle in found.values():
        bundle.write()
    return found


def main() -> None:
    asked = options("Measures what a claim adds to a container's start.", "", 20).parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-", dir="/var/tmp")
    os.chmod(directory, 0o755)
    try:
        root = driver_root(asked, directory)
        with node(STAGE, directory, root, f"--hook-path={asked.prefix}/bin/nvc-cdi-hook") as made:
            whole, part = (
                claim("whole", [result("gpu", "gpu-1")]),
                claim("part", [result("gpu", "gpu-0", "4Gi", "10")]),
            )
            first, second = made.give(whole, part)
            contenders = {}
            taken: dict[str, list[float]] = {}
            for name, bundle in bundles(
                made, directory, {"no GPU": "", "whole GPU": first, "slice": second}
            ).items():
                words = [
                    *bundle.command("runc"),
                    "run",
                    "--bundle",
                    bundle.directory,
                    f"bench-{os.getpid()}",
                ]
                contenders[name] = partial(started, words, taken.setdefault(name, []))
            times = in_turn(contenders, asked.runs)
            assert made.plugin.process is not None
            pids = [made.plugin.process.pid, *children(made.plugin.process.pid)]
            before = sum(map(used, pids))
            made.kubelet.unprepare(part)
            for number in range(CLAIMS):
                one = claim(f"one{number}", [result("gpu", "gpu-0", "4Gi", "10")])
                made.give(one)
                made.kubelet.unprepare(one)
            prepared = (sum(map(used, pids)) - before) / CLAIMS
            made.take_back(whole)
    finally:
        shutil.rmtree(directory)
    print("processor time")
    table(times, "more", "no GPU")
    print("\ntime that passed")
    table({name: found[-asked.runs :] for name, found in taken.items()}, "more", "no GPU")
    print(f"\nthe plugin, to prepare and unprepare a slice: {prepared:.1f} ms")
    save(times, asked.json)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

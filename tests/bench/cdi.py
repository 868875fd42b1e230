"""Times the start of a container with CDI devices and without, by runc alone.

The edits of all devices of a specification are put into the configuration beforehand, as an engine does it; what is
timed is `runc run` of /bin/true, hooks included. A peer is another generator of specifications:

    make bench CTK_PEER=/usr/bin/nvidia-ctk
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(sys.path[0]))

from configure import quantile, timed
from support import CLEAN_ENV, REPO, STAGE, need, run
from support.bundle import Bundle
from support.rootfs import make_rootfs

from nvc.runtime.spec import Spec, apply_edits

#: Milliseconds that all GPUs may add to a container's start.
TARGET = 7.0
#: The peer looks into /proc/driver, which a simulated root has a copy of.
PEER = (
    '[ ! -d "$1/proc/driver" ] || mount --bind "$1/proc/driver" /proc/driver; exec "$2" cdi generate'
    ' --format=json --driver-root="$1" --nvidia-cdi-hook-path="$(dirname "$2")/nvidia-cdi-hook"'
)


def own_specification(prefix: str, root: str, directory: str) -> Any:
    """What nvc's generator says of the driver in `root`; written to a file, too, as on a host."""
    path = os.path.join(directory, "nvidia.json")
    run(os.path.join(prefix, "bin/nvc-cli"), f"--root={root}", "cdi", "generate", f"--output={path}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def peers_specification(peer: str, root: str) -> Any:
    return json.loads(run(need("unshare"), "--mount", "sh", "-c", PEER, "sh", root, peer).stdout)


def numbered(edits: dict[str, Any]) -> dict[str, Any]:
    """The edits, each node with type and numbers, which engines ask the host for."""
    nodes = []
    for node in edits.get("deviceNodes", ()):
        status = os.stat(node.get("hostPath", node["path"]))
        numbers = {"type": "c", "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        nodes.append({**node, **numbers})
    return {**edits, "deviceNodes": nodes}


def bundle(directory: str, rootfs: str, document: Any = None) -> Bundle:
    """A bundle whose container has all devices of the document."""
    made = Bundle(directory, rootfs)
    if document is not None:
        spec = Spec(made.config)
        everything = next(one for one in document["devices"] if one["name"] == "all")
        for edits in (document["containerEdits"], everything["containerEdits"]):
            apply_edits(spec, numbered(edits))
        # Made for simulated drivers alone.
        hooks = made.config["hooks"]
        hooks["createContainer"] = [one for one in hooks["createContainer"] if "simulate-proc" not in one["args"]]
    made.config["process"]["args"] = ["/bin/true"]
    made.write()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Times container starts with CDI devices and without.")
    parser.add_argument("--peer", default="", help="path of nvidia-ctk, with nvidia-cdi-hook beside it")
    parser.add_argument("--prefix", default=STAGE, help="installation of nvc (default: the stage)")
    parser.add_argument("--root", default="", help="driver root (default: a simulated one is made)")
    parser.add_argument("--gpus", type=int, default=2, help="of the simulated driver (default 2)")
    parser.add_argument("--runtime", default="runc", help="OCI runtime (default runc)")
    parser.add_argument("--runs", type=int, default=40, help="of each contender (default 40)")
    parser.add_argument("--json", default="", metavar="FILE", help="write all times, in milliseconds")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        root = options.root
        if not root:
            root = os.path.join(directory, "driver")
            nvc = os.path.join(options.prefix, "bin/nvc-cli")
            run(nvc, "sim", "create", root, "--gpus", str(options.gpus))
        documents = {"no GPU": None, "nvc": own_specification(options.prefix, root, directory)}
        if options.peer:
            documents["peer"] = peers_specification(options.peer, root)
        lower = make_rootfs(os.path.join(directory, "lower"))
        contenders = {}
        for place, (name, document) in enumerate(documents.items()):
            rootfs = shutil.copytree(lower, os.path.join(directory, f"rootfs{place}"), symlinks=True)
            contenders[name] = bundle(os.path.join(directory, f"bundle{place}"), rootfs, document)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        log = os.path.join(directory, "log")
        for turn in range(options.runs + 1):
            for name, made in contenders.items():
                words = [*made.command(options.runtime), "run", "--bundle", made.directory, f"bench-{os.getpid()}"]
                taken = timed(words, log, CLEAN_ENV)
                if turn:  # the first of each only warms the page cache
                    times[name].append(taken)
    finally:
        shutil.rmtree(directory)
    version = subprocess.run([need(options.runtime), "--version"], check=True, capture_output=True, text=True)
    print(version.stdout.splitlines()[0], "on a simulated driver" if not options.root else f"on {root}")
    base = quantile(times["no GPU"], 0.5)
    print(f"\n{'ms':<20}{'median':>9}{'p10':>9}{'p90':>9}{'more':>9}")
    for name, values in times.items():
        median = quantile(values, 0.5)
        row = f"{median:9.2f}{quantile(values, 0.1):9.2f}{quantile(values, 0.9):9.2f}{median - base:9.2f}"
        print(f"{name:<20}{row}")
    more = quantile(times["nvc"], 0.5) - base
    print(f"all GPUs take {more:.1f} ms more; the target is at most {TARGET:.0f} ms")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(times, out, indent=1)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

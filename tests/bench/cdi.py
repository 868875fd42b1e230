"""Times the start of a container with CDI devices and without, by runc alone.

The edits of all devices of a specification are put into the configuration beforehand, as an engine does it; what is
timed is `runc run` of /bin/true, hooks included. A peer is another generator of specifications:

    make bench CTK_PEER=/usr/bin/nvidia-ctk
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(sys.path[0]))

from support import REPO, need, run
from support.bundle import Bundle
from support.rootfs import make_rootfs
from times import REST, driver_root, in_turn, median, options, save, table, timed

from nvc.frontends.runtime.spec import Spec, apply_edits

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
        hooks["createContainer"] = [
            one for one in hooks["createContainer"] if "simulate-proc" not in one["args"]
        ]
    made.config["process"]["args"] = ["/bin/true"]
    made.write()
    return made


def main() -> None:
    parser = options(
        "Times container starts with CDI devices and without.", "nvidia-ctk, with nvidia-cdi-hook beside it"
    )
    parser.add_argument("--runtime", default="runc", help="OCI runtime (default runc)")
    asked = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-bench-")
    try:
        root = driver_root(asked, directory)
        documents = {"no GPU": None, "nvc": own_specification(asked.prefix, root, directory)}
        if asked.peer:
            documents["peer"] = peers_specification(asked.peer, root)
        lower = make_rootfs(os.path.join(directory, "lower"))
        log = os.path.join(directory, "log")
        contenders: dict[str, Callable[[], float]] = {}
        for place, (name, document) in enumerate(documents.items()):
            rootfs = shutil.copytree(lower, os.path.join(directory, f"rootfs{place}"), symlinks=True)
            made = bundle(os.path.join(directory, f"bundle{place}"), rootfs, document)
            words = [*made.command(asked.runtime), "run", "--bundle", made.directory, f"bench-{os.getpid()}"]
            contenders[name] = partial(timed, words, log)
        times = in_turn(contenders, asked.runs, REST)
    finally:
        shutil.rmtree(directory)
    version = subprocess.run([need(asked.runtime), "--version"], check=True, capture_output=True, text=True)
    print(version.stdout.splitlines()[0], "on a simulated driver" if not asked.root else f"on {root}")
    table(times, "more", "no GPU")
    more = median(times["nvc"]) - median(times["no GPU"])
    print(f"all GPUs take {more:.1f} ms more; the target is at most {TARGET:.0f} ms")
    save(times, asked.json)


if __name__ == "__main__":
    os.chdir(REPO)
    main()

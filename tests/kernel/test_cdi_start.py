"""What a hook of a specification may load: every module costs each container start."""

from __future__ import annotations

import json
import os
from typing import Any

from support import REPO, run
from support.rootfs import multiarch

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
#: What Python itself, or nvc's C core, brings along, or has in C.
PERMITTED = "_cffi_backend _json errno fcntl gc marshal os posix stat struct time"
#: Runs the hook as the launcher does, and tells what was loaded at its end.
RECORD = """
import sys
sys.path += {path!r}
import posix
leave = posix._exit
def record(code):
    posix.write(1, ",".join(sorted(sys.modules)).encode())
    leave(code)
posix._exit = record
from nvc_hooks.boot import main
main("nvc-cdi-hook")
"""
NAMESPACE = 'mount --bind "$1" "$1" && mount --bind "$2" "$1$3" && shift 3 && exec "$@"'


def test_a_hook_of_all_steps_loads_nothing_heavy(
    stage: str, rootfs: Any, sim_root: Any, scratch: str
) -> None:
    path = rootfs()
    library = f"{LIBS}/libcuda.so.{VERSION}"
    with open(path + library, "wb"):
        pass
    with open(f"{scratch}/config.json", "w", encoding="ascii") as out:
        json.dump({"ociVersion": "1.0.2", "process": {}, "root": {"path": path}}, out)
    with open(os.path.join(stage, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        interpreter, site = (line.rstrip("\n").partition(" ")[2] for line in conf)
    python = [interpreter, "-I", "-S", "-B", "-c"]
    code = RECORD.format(path=[os.path.join(stage, "lib/nvc/python"), site])
    words = [
        "slice-memory", "--driver-root=/",
        "create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so",
        "enable-cuda-compat", f"--host-driver-version={VERSION}",
        "update-ldcache", f"--folder={LIBS}", "disable-device-node-modification",
        "create-device-links", "--link=../card1::/dev/dri/by-path/pci-0000:01:00.0-card",
        "update-application-profile",
    ]  # fmt: skip
    inside = ["unshare", "--mount", "/bin/sh", "-c", NAMESPACE, "sh", path, sim_root() + library, library]
    state = json.dumps({"bundle": scratch})
    loaded = set(run(*inside, *python, code, *words, stdin=None, input=state).stdout.split(","))
    assert os.readlink(f"{path}{LIBS}/libcuda.so") == "libcuda.so.1"
    imports = f"import sys; sys.path.append({site!r}); import {', '.join(PERMITTED.split())}"
    bare = run(*python, f"from __future__ import annotations; {imports}; print(*sys.modules)").stdout.split()
    foreign = {name for name in loaded - set(bare) if name.partition(".")[0] not in ("nvc", "nvc_hooks")}
    assert foreign == set() and "os" not in loaded
    unneeded = (
        "nvc.apply.cgroup.",
        "nvc.discovery.find",
        "nvc.discovery.full",
        "nvc.plan.build",
        "nvc.plan.listing",
        "nvc.frontends.cdi.sliced",
        "nvc.slices.",
    )
    assert not [name for name in loaded if name.startswith(unneeded)]
    # Others an installation looks for one by one, and Python's own `__future__` with each of them.
    with open(os.path.join(REPO, "packaging/archive/modules.txt"), encoding="ascii") as lines:
        archived = {*lines.read().split(), "nvc._syscalls", "nvc._syscalls.lib"}
    assert {name for name in loaded if name.partition(".")[0] in ("nvc", "nvc_hooks")} - archived == set()

"""What the editing of a bundle loads: a container that asks for nothing must not wait for what others need."""

from __future__ import annotations

import json
import os

from support import CLEAN_ENV, REPO, run

CODE = """
import sys
sys.path += {path!r}
sys.argv = ["nvc-runtime", {bundle!r}, {bundle!r} + "/config.json"]
import posix
def record(code):
    posix.write(1, (",".join(sorted(set(sys.modules) - {{"__main__"}})) + " %d" % code).encode())
    posix.kill(posix.getpid(), 9)
posix._exit = record
from nvc_hooks.runtime import main
main("nvc-runtime")
"""
HEAVY = {
    "json",
    "re",
    "typing",
    "dataclasses",
    "enum",
    "collections",
    "contextlib",
    "subprocess",
    "ctypes",
}


def loaded(stage: str, bundle: str) -> set[str]:
    """The modules that a run on `bundle` has loaded at its end; it must succeed."""
    with open(os.path.join(stage, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        interpreter, site = (line.rstrip("\n").partition(" ")[2] for line in conf)
    code = CODE.format(path=[os.path.join(stage, "lib/nvc/python"), site], bundle=bundle)
    modules, status = run(
        interpreter, "-I", "-S", "-B", "-c", code, env=CLEAN_ENV, check=False
    ).stdout.split()
    assert status == "0"
    return set(modules.split(","))


def test_a_container_that_asks_for_nothing(stage: str, scratch: str) -> None:
    config = {"ociVersion": "1.0.2", "process": {"env": ["A=1"]}, "root": {"path": "rootfs"}}
    with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out)
    modules = loaded(stage, scratch)
    assert not HEAVY & modules
    stages = {name for name in modules if name.startswith(("nvc.plan", "nvc.apply", "nvc.discovery."))}
    assert stages <= {"nvc.discovery.inventory"}  # keeps what was parsed of the configuration, too
    assert "nvc.kernel" not in modules, (
        "the compiled module is not needed to see that there is nothing to do"
    )


def test_the_archive_has_its_modules(stage: str, scratch: str) -> None:
    """Also those for a container that asks for GPUs, which waits for the same ones."""
    config = {"ociVersion": "1.0.2", "process": {"env": ["A=1"]}, "root": {"path": "rootfs"}}
    with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out)
    with open(os.path.join(REPO, "packaging/archive/modules.txt"), encoding="ascii") as lines:
        archived = lines.read().split()
    needed = {name for name in loaded(stage, scratch) if name.split(".")[0] in ("nvc", "nvc_hooks")}
    files = os.listdir(os.path.join(REPO, "nvc/frontends/runtime"))
    needed |= {f"nvc.frontends.runtime.{name[:-3]}" for name in files if name[0] != "_"}
    assert needed - {*archived} == set()

"""What a container start may load: every module costs time, the heavy ones more than the work itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from support import CLEAN_ENV, run

FORBIDDEN = {
    "argparse",
    "asyncio",
    "cffi",
    "click",
    "collections",
    "contextlib",
    "ctypes",
    "dataclasses",
    "elftools",
    "enum",
    "functools",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "prctl",
    "pyroute2",
    "random",
    "re",
    "shutil",
    "signal",
    "site",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "traceback",
    "typing",
    "warnings",
    "weakref",
}

#: Runs a `boot` module as the launcher does, and prints the loaded modules when it ends.
RECORD = """
import sys
sys.path += {path!r}
import posix
own, leave = posix.getpid(), posix._exit
def record(code):
    if posix.getpid() == own:
        text = ",".join(sorted(set(sys.modules) - {{"__main__"}}))
        posix.write({out}, text.encode())
    leave(code)
posix._exit = record
from {package}.boot import main
try:
    main("{name}")
except SystemExit as end:
    record(end.code or 0)
"""


def loaded(stage: str, package: str, name: str, *argv: str, **options: object) -> set[str]:
    """The modules that a run of one program has loaded at its end; the run must succeed."""
    with open(os.path.join(stage, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        interpreter, site = (line.split()[1] for line in conf)
    read, write = os.pipe()
    path = [os.path.join(stage, "lib/nvc/python"), site]
    code = RECORD.format(path=path, out=write, package=package, name=name)
    command = [interpreter, "-I", "-S", "-B", "-c", code, *argv]
    run(*command, pass_fds=[write], env=CLEAN_ENV, **options)  # type: ignore[arg-type]
    os.close(write)
    with os.fdopen(read) as reply:
        return set(reply.read().split(","))


def test_configure_loads_nothing_heavy(
    stage: str, sim_root: Callable[..., str], runc_bundle: Callable[..., object]
) -> None:
    root = sim_root(gpus=2, model="h100")
    bundle = runc_bundle()
    with bundle.created("runc") as container:  # type: ignore[attr-defined]
        selection = ["--device", "all", "--compute", "--utility"]
        command = [
            "--root",
            root,
            "configure",
            "--pid",
            str(container.pid),
            *selection,
            container.bundle.rootfs,
        ]
        for _ in range(2):  # the first start looks at everything, the second has an inventory
            modules = loaded(stage, "nvc_cli", "nvc-cli", *command)
            assert modules & FORBIDDEN == set()
            assert "nvc.apply.executor" in modules
        assert not {"nvc.discovery.nvml", "nvc.discovery.probe"} & modules, "the inventory was not used"


def test_a_hook_loads_nothing_heavy(stage: str, runc_bundle: Callable[..., object]) -> None:
    """A container that asks for no GPU pays as little as can be."""
    bundle = runc_bundle()
    with bundle.created("runc") as container:  # type: ignore[attr-defined]
        state = json.dumps({**container.state, "status": "creating"})
        modules = loaded(stage, "nvc_hooks", "nvc-hook", "prestart", stdin=None, input=state)
        assert modules & FORBIDDEN == set()
        assert not {name for name in modules if name.startswith(("nvc.plan", "nvc.apply", "nvc.discovery"))}

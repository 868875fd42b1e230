"""What a container start may load: every module costs time, the heavy ones more than the work itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from support import CLEAN_ENV, REPO, run
from support.bundle import Bundle
from support.hook import Hook, ask

#: What a start may import beside nvc itself: compiled into the interpreter, frozen, or a single shared library.
PERMITTED = "_cffi_backend _json _struct errno fcntl gc marshal os posix select stat struct time"

#: Runs a module as the launcher does, and prints the loaded modules when it ends.
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
from {module} import main
try:
    main("{name}")
except SystemExit as end:
    record(end.code or 0)
"""


def loaded(stage: str, module: str, name: str, *argv: str, **options: object) -> set[str]:
    """The modules that a run of one program has loaded at its end; the run must succeed."""
    with open(os.path.join(stage, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        interpreter, site = (line.rstrip("\n").partition(" ")[2] for line in conf)
    read, write = os.pipe()
    path = [os.path.join(stage, "lib/nvc/python"), site]
    code = RECORD.format(path=path, out=write, module=module, name=name)
    command = [interpreter, "-I", "-S", "-B", "-c", code, *argv]
    run(*command, pass_fds=[write], env=CLEAN_ENV, **options)  # type: ignore[arg-type]
    os.close(write)
    with os.fdopen(read) as reply:
        return set(reply.read().split(","))


def foreign(stage: str, modules: set[str]) -> set[str]:
    """Those of `modules` that are neither nvc's nor come with the permitted ones."""
    with open(os.path.join(stage, "lib/nvc/launch.conf"), encoding="ascii") as conf:
        interpreter, site = (line.rstrip("\n").partition(" ")[2] for line in conf)
    imports = f"import sys; sys.path.append({site!r}); import {', '.join(PERMITTED.split())}"
    code = f"from __future__ import annotations; {imports}; print(*sys.modules)"
    permitted = run(interpreter, "-I", "-S", "-B", "-c", code).stdout.split()
    return {
        name
        for name in modules - set(permitted)
        if name.split(".")[0] not in ("nvc", "nvc_cli", "nvc_hooks")
    }


def unarchived(modules: set[str]) -> set[str]:
    """Those of nvc that an installation would look for one by one, which takes longer than to run them."""
    with open(os.path.join(REPO, "packaging/archive/modules.txt"), encoding="ascii") as lines:
        archived = {*lines.read().split(), "nvc._syscalls", "nvc._syscalls.lib"}
    return {name for name in modules if name.split(".")[0] in ("nvc", "nvc_cli", "nvc_hooks")} - archived


def test_configure_loads_nothing_heavy(
    stage: str, sim_root: Callable[..., str], runc_bundle: Callable[..., Bundle]
) -> None:
    root = sim_root(gpus=2, model="h100")
    with runc_bundle().created("runc") as container:
        wanted = ["--pid", str(container.pid), "--device", "all", "--compute", "--utility"]
        command = ["--root", root, "configure", *wanted, container.bundle.rootfs]
        first, again = (loaded(stage, "nvc_cli.boot", "nvc-cli", *command) for _ in range(2))
    for modules in (first, again):
        assert foreign(stage, modules) == set()
        assert "nvc.apply.executor" in modules
    for command in ("list", "info"):
        assert unarchived(loaded(stage, "nvc_cli.boot", "nvc-cli", "--root", root, command)) == set()
    # The first start looks at everything; the second one has the inventory, and does without `os` and `struct`.
    assert unarchived(again) == set() and not {"os", "struct"} & again
    assert {"nvc.discovery.full", "nvc.kernel.probe"} <= first
    assert not {"nvc.discovery.full", "nvc.discovery.driver.elf", "nvc.kernel.probe"} & again


def test_a_slice_loads_nothing_heavy(
    stage: str, sim_root: Callable[..., str], runc_bundle: Callable[..., Bundle]
) -> None:
    root = sim_root(gpus=2)
    with runc_bundle().created("runc") as container:
        wanted = ["--pid", str(container.pid), "--device", "all", "--compute", "--vgpu-memory", "1g,25%"]
        command = ["--root", root, "configure", *wanted, container.bundle.rootfs]
        loaded(stage, "nvc_cli.boot", "nvc-cli", *command)
        modules = loaded(stage, "nvc_cli.boot", "nvc-cli", *command)
    assert foreign(stage, modules) == set() and "nvc.slices.store.registry" in modules
    assert (
        not {"nvc.slices.store.liveness", "nvc.slices.store.status", "nvc.discovery.driver.libraries", "os"}
        & modules
    )
    assert unarchived(modules) == set()


def test_a_hook_that_injects_loads_nothing_heavy(
    stage: str, scratch: str, sim_root: Callable[..., str], runc_bundle: Callable[..., Bundle]
) -> None:
    """Also with a configuration file: what was parsed of it is kept."""
    hook = Hook(stage, scratch, sim_root(gpus=2))
    bundle = runc_bundle()
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all")
    with bundle.created("runc") as container:
        words = ["-config", hook.config, "prestart"]
        state = json.dumps({**container.state, "status": "creating"})
        hook.call(container.state)  # the log's own modules are not what this is about
        with open(hook.config, "r+", encoding="utf-8") as config:
            text = config.read().replace("log =", "# log =")
            config.seek(0)
            config.truncate()
            config.write(text)
        runs = [loaded(stage, "nvc_hooks.boot", "nvc-hook", *words, stdin=None, input=state) for _ in range(2)]
    assert foreign(stage, runs[1]) == set()
    assert "tomllib" in runs[0] or "tomli" in runs[0]
    assert "nvc.apply.executor" in runs[1] and "nvc.request.config.file" not in runs[1]
    assert not {"nvc.discovery.full", "nvc.kernel.probe", "json", "os", "struct"} & runs[1]
    assert unarchived(runs[1]) == set()


def test_a_hook_loads_nothing_heavy(stage: str, runc_bundle: Callable[..., Bundle]) -> None:
    """A container that asks for no GPU pays as little as can be."""
    with runc_bundle().created("runc") as container:
        state = json.dumps({**container.state, "status": "creating"})
        modules = loaded(stage, "nvc_hooks.boot", "nvc-hook", "prestart", stdin=None, input=state)
    assert foreign(stage, modules) == set()
    stages = {name for name in modules if name.startswith(("nvc.plan", "nvc.apply", "nvc.discovery."))}
    assert stages <= {"nvc.discovery.inventory"}  # keeps what was parsed of the configuration, too
    assert unarchived(modules) == set() and "os" not in modules


def test_a_bundle_that_asks_for_nothing(stage: str, scratch: str) -> None:
    """Its start waits for no module that others need; the archive has these, and those for GPUs."""
    path = os.path.join(scratch, "config.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"ociVersion": "1.0.2", "process": {"env": ["A=1"]}, "root": {"path": "rootfs"}}, out)
    modules = loaded(stage, "nvc_hooks.runtime", "nvc-runtime", scratch, path)
    heavy = "json re typing dataclasses enum collections contextlib subprocess ctypes nvc.kernel"
    assert not {*heavy.split()} & modules
    stages = {name for name in modules if name.startswith(("nvc.plan", "nvc.apply", "nvc.discovery."))}
    assert stages <= {"nvc.discovery.inventory"}  # keeps what was parsed of the configuration, too
    files = os.listdir(os.path.join(REPO, "nvc/frontends/runtime"))
    more = {f"nvc.frontends.runtime.{name[:-3]}" for name in files if name[0] != "_"}
    assert unarchived(modules | more) == set()

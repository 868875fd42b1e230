"""The hooks that a document names: what the engine calls once the container's mounts are there.

Every entry has an environment of its own. Without one, runc gives a hook that of the container, and an image
that sets LD_PRELOAD would run its code on the host (CVE-2025-23266).
"""

from __future__ import annotations

from nvc.base.types import Any
from nvc.base.value import Value

PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
#: How a document's own hooks remember what it was made from; see `nvc.frontends.cdi.stamp`.
STAMP = "NVC_CDI_STAMP"
#: The program that takes several steps in one call: each process costs a container start 10 ms.
CHAINING = "nvc-cdi-hook"

#: The hook that limits what a container takes of its devices, and its option that names a device and a limit.
STEP, OPTION = "slice-memory", "slice"
COMPAT = "enable-cuda-compat"
#: Links to device nodes, and the profile of EGL and Vulkan: both for the GPUs that the container has.
LINKS, PROFILE = "create-device-links", "update-application-profile"
#: The hook that has the driver limit a container's cgroup: outside of the container, where the host's paths are.
LIMIT_STEP = "limit-memory"
#: Hooks of common edits, in the order in which they are to run.
NAMES = (
    STEP, "create-symlinks", LINKS, COMPAT, "update-ldcache", "disable-device-node-modification", PROFILE,
)  # fmt: skip


class Step(Value):
    """One hook by name, with its arguments."""

    name: str
    arguments: tuple[str, ...] = ()


def disabled_hooks(names: tuple[str, ...], compat: bool) -> tuple[str, ...]:
    """The hooks to leave out: those that a configuration names, or `all`, and COMPAT without `compat`.

    Never the one that limits a container: what an operator says of NVIDIA's hooks does not lift limits.
    """
    wanted = (name for name in NAMES if "all" in names or name in names or name == COMPAT and not compat)
    return tuple(name for name in wanted if name != STEP)


def program_of(path: str, own: bool) -> str:
    """What the hook at `path` is called; `own`: it is CHAINING under any name."""
    return CHAINING if own else path[path.rindex("/") + 1 :]


def hook_entries(path: str, steps: tuple[Step, ...], stamp: str, own: bool = False) -> list[dict[str, Any]]:
    """The entries for `steps`, all of them createContainer hooks: one for ours, one each for another program."""
    program = program_of(path, own)
    if program != CHAINING:
        words = [program, "hook"] if program == "nvidia-ctk" else [program]
        return [_entry(path, [*words, step.name, *step.arguments], stamp) for step in steps]
    if not steps:
        return []
    words = [word for step in steps for word in (step.name, *step.arguments)]
    return [_entry(path, [program, *words], stamp)]


def outside_entry(path: str, step: Step, stamp: str, own: bool = False) -> dict[str, Any]:
    """The entry of a hook that runs in the runtime's namespaces."""
    return _entry(path, [program_of(path, own), step.name, *step.arguments], stamp, "createRuntime")


def _entry(path: str, args: list[str], stamp: str, kind: str = "createContainer") -> dict[str, Any]:
    return {"hookName": kind, "path": path, "args": args, "env": [PATH, f"{STAMP}={stamp}"]}

"""nvc-cdi-hook: the hooks that specifications of the Container Device Interface name."""

from __future__ import annotations

from nvc.base.errors import one_line
from nvc.base.program import say, tell
from nvc.frontends.cdi.hooks.arguments import parse_arguments

USAGE = """Usage: nvc-cdi-hook [--quiet] [--debug] HOOK [OPTION...] [HOOK [OPTION...]]...
       nvc-cdi-hook --version

An OCI runtime calls it as a createContainer hook (limit-memory: createRuntime),
with the container's state on standard input. It can also be called
nvidia-cdi-hook, or nvidia-ctk hook. Unknown hooks are skipped with a warning.

Hooks, whose options docs/cdi.md has:

  create-symlinks         create links, such as libcuda.so
  create-device-links     create links to the container's device nodes
  update-application-profile
                          write an application profile for the container's GPUs
  update-ldcache          add the driver's libraries to the loader cache
  create-soname-symlinks  the same: SONAME links come with the cache
  enable-cuda-compat      prefer the image's forward-compatibility libraries
  chmod                   set permission bits of the container's files
  disable-device-node-modification
                          keep the driver from changing device nodes
  simulate-proc           show /proc/driver/nvidia of a simulated driver
  slice-memory            make the container's slices: quota, ledger and shim
  limit-memory            have the driver limit the memory of the cgroup

  --quiet                 no warnings
  --debug                 print the plan to standard error
  --container-spec FILE   read the container's state from FILE
"""
PROGRAM = "nvc-cdi-hook"


def main(argv: list[str]) -> int:
    """Run what the words behind the program's name say: the exit code. Raises NvcError."""
    call = parse_arguments(argv)
    if call.show == "version":
        import nvc

        tell(1, f"{PROGRAM} version {nvc.__version__}\n")
        return 0
    if call.show or not (call.steps or call.unknown):
        tell(1, USAGE)
        return 0  # as NVIDIA's program: a container starts without a hook that nobody names
    warnings = tuple(f"hook {name} is not known and left out" for name in call.unknown)
    if call.steps:
        from nvc.frontends.cdi.hookspec import LIMIT_STEP

        if any(step.name == LIMIT_STEP for step in call.steps):
            from nvc.frontends.cdi.hooks.limit import limit_memory

            limit_memory(call)
        else:
            from nvc.frontends.cdi.hooks.run import run_steps

            warnings += run_steps(call, lambda text: tell(2, text))
    if not call.quiet:
        for warning in warnings:
            say(PROGRAM, f"warning: {one_line(warning)}")
    return 0

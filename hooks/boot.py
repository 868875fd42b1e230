"""Entry point of the hooks. A container start waits for it, so modules are imported only when needed."""

from __future__ import annotations

import gc
import sys

from nvc.base.errors import InternalError, UsageError
from nvc.base.program import guarded, leave, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvc_hooks.prestart import Options

CDI = "nvc-cdi-hook"
WORKING = ("prestart", "createRuntime", "createContainer")
IDLE = ("poststart", "poststop")  # nothing is left to do
USAGE = f"""Usage: nvc-hook [-debug] [-config FILE] COMMAND
       nvc-hook -version

Gives a container the GPUs that its variables ask for. An OCI runtime calls
it with the container's state on standard input. It can also be called
nvidia-container-runtime-hook.

Commands: {", ".join(WORKING)};
          {" and ".join(IDLE)} do nothing
  -config FILE   read this file instead of /etc/nvc/config.toml
  -debug         log to standard error
  -version       show the version
"""
MISUSED = 2


def main(program: str = "nvc-hook") -> NoReturn:
    """Run the command of `sys.argv`, and end the process."""
    gc.disable()  # the process ends before a cycle would matter
    leave(run(program, sys.argv[1:]))


def run(program: str, argv: list[str]) -> int:
    """Run one call and return its exit code. A failure is one line on standard error: engines show no more."""
    code = guarded(program, lambda: _dispatch(program, argv))
    return 1 if code == InternalError.exit_code else code


def _dispatch(program: str, argv: list[str]) -> int:
    if program == CDI:
        from nvc_hooks import cdi

        return cdi.main(argv)
    try:
        return _run(argv)
    except UsageError as error:
        tell(2, f"{program}: {error.line()}\n{USAGE}")
        return MISUSED


def _run(argv: list[str]) -> int:
    call, rest = _options(argv)
    if call is None:
        return 0
    if not rest:
        raise UsageError("no command")
    command = rest[0]
    more, superfluous = _options(rest[1:])
    if command not in WORKING + IDLE:
        raise UsageError("unknown command", cause=command)
    if superfluous or more != ("", False):
        raise UsageError("too many arguments", cause=rest[1])
    if command in WORKING:
        from nvc_hooks.prestart import run as inject

        inject(command, call)
    return 0


def _options(argv: list[str]) -> tuple[Options | None, list[str]]:
    """The options before the command, with one or two dashes as in Go, and the remaining words.

    None instead of options: -version or -help was answered.
    """
    config, debug = "", False
    while argv and argv[0].startswith("-") and argv[0] != "-":
        name, equals, value = argv[0].lstrip("-").partition("=")
        argv = argv[1:]
        if name == "config":
            if not equals:
                if not argv:
                    raise UsageError("flag needs an argument: -config")
                value, argv = argv[0], argv[1:]
            if not value.startswith("/"):
                raise UsageError("-config", value, "want an absolute path")
            config = value
        elif name == "debug":
            debug = _bool(name, value) if equals else True
        elif name in ("version", "help", "h"):
            if name == "version":
                import nvc

                tell(1, f"nvc-hook version {nvc.__version__}\n")
            else:
                tell(1, USAGE)
            return None, []
        else:
            raise UsageError("flag provided but not defined", cause=name)
    return (config, debug), argv


def _bool(name: str, value: str) -> bool:
    if value.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise UsageError(f"-{name}", value, "want true or false")
    return value.lower() in ("true", "t", "1")

"""`nvcd`: the daemon of slices, in the foreground."""

from __future__ import annotations

import sys
from typing import NoReturn

from nvc.base.errors import InputError
from nvc.base.program import guarded
from nvc_cli.boot import configuration
from nvc_cli.resident import answered, parsed

STATE_TIME = 5.0  # seconds
PATHS = ("config", "root")

USAGE = """Usage: nvcd [--config FILE] [--root DIR] [--wait]
       nvcd --state
       nvcd --stop

Schedules the time of shared GPUs, and checks the use of slices against their
limits. Runs in the foreground, as root; SIGTERM ends it. See docs/daemon.md.

  --config FILE  settings; default: the first of /etc/nvc/config.toml and
                 /etc/nvidia-container-runtime/config.toml
  --root DIR     driver root; default: as configured
  --wait         if another nvcd runs, wait until it ends
  --state        print the state of the running nvcd, as JSON
  --stop         end the running nvcd, and wait until it has ended; slices go on
  --version      print the version
  -h, --help     print this
"""


def main(program: str = "nvcd") -> NoReturn:
    """Run until a signal ends it; the exit code is 0 then."""
    sys.exit(guarded(program, lambda: _run(program, sys.argv[1:])))


def _run(program: str, words: list[str]) -> int:
    if answered(words, USAGE):
        return 0
    values = parsed(program, words, PATHS, PATHS, flags=("state", "stop", "wait"))
    for name in ("state", "stop"):
        if name in values and len(words) > 1:
            cause = "cannot be combined with other options"
            raise InputError(f"--{name}", cause=cause, hint="`nvcd --help` lists the options")
    if "state" in values:
        from nvc_cli.output import write

        write(_state())
        return 0
    if "stop" in values:
        _stop(program)
        return 0
    from nvc.base.program import show_as
    from nvc.daemon.main import run

    show_as(program, words)
    run(configuration(values.get("config", ""), values.get("root", "")), "wait" in values)
    return 0


def _state() -> str:
    """What the daemon answers. Raises PermissionDenied but for root, InitializationError where none does."""
    import os

    from nvc.base.errors import PermissionDenied
    from nvc.slices.client.nvcd import ask
    from nvc_cli.output import json_text

    if os.geteuid() != 0:
        raise PermissionDenied("ask nvcd", cause="only root can")
    return json_text(ask("state", STATE_TIME))


def _stop(program: str) -> None:
    """End the daemon. Raises PermissionDenied but for root, InitializationError where none ends."""
    import os

    from nvc.base.errors import PermissionDenied
    from nvc.daemon.stop import stop
    from nvc_cli.output import say

    if os.geteuid() != 0:
        raise PermissionDenied("stop nvcd", cause="only root can")
    say(program, f"process {stop()} has ended")

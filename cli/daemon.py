"""`nvcd`: the daemon of slices, in the foreground."""

from __future__ import annotations

import sys

from nvc.errors import InputError
from nvc_cli.boot import configuration, guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

STATE_TIME = 5.0  # seconds

USAGE = """Usage: nvcd [--config FILE] [--root DIR] [--wait]
       nvcd --state

Schedules the time of shared GPUs, and checks the use of slices against their
limits. Runs in the foreground, as root; SIGTERM ends it. See docs/daemon.md.

  --config FILE  settings; default: the first of /etc/nvc/config.toml and
                 /etc/nvidia-container-runtime/config.toml
  --root DIR     driver root; default: as configured
  --wait         if another nvcd runs, wait until it ends
  --state        print the state of the running nvcd, as JSON
  --version      print the version
  -h, --help     print this
"""


def main(program: str = "nvcd") -> NoReturn:
    """Run until a signal ends it; the exit code is 0 then."""
    sys.exit(guarded(program, lambda: _run(sys.argv[1:])))


def _run(words: list[str]) -> int:
    from nvc_cli.output import write

    values = {"config": "", "root": ""}
    wait = False
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "-?", "--help"):
            write(USAGE)
            return 0
        if name == "--state":
            if rest or equals or len(words) > 1:
                raise InputError("--state", cause="stands alone", hint="`nvcd --help` lists the options")
            write(_state())
            return 0
        if name == "--version":
            from nvc_cli.version import version_text

            write(version_text())
            return 0
        if name == "--wait" and not equals:
            wait = True
            continue
        if name not in ("--config", "--root"):
            raise InputError("unknown argument", cause=name, hint="`nvcd --help` lists the options")
        if not equals:
            if not rest:
                raise InputError(name, cause="wants a value")
            value = rest.pop(0)
        if not value.startswith("/"):
            raise InputError(name, value, "want an absolute path")
        values[name[2:]] = value
    from nvc.daemon.main import run

    run(configuration(values["config"], values["root"]), wait)
    return 0


def _state() -> str:
    """What the daemon answers. Raises PermissionDenied but for root, InitializationError where none does."""
    import os

    from nvc.errors import PermissionDenied
    from nvc.slices.client.nvcd import ask
    from nvc_cli.output import json_text

    if os.geteuid() != 0:
        raise PermissionDenied("ask nvcd", cause="only root can")
    return json_text(ask("state", STATE_TIME))

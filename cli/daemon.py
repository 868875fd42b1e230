"""`nvcd`: the daemon of slices, in the foreground."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from nvc.base.errors import InputError, PermissionDenied
from nvc.base.program import say, show_as
from nvc.request.config import Config
from nvc_cli.boot import configuration
from nvc_cli.resident import stay

STATE_TIME = 5.0  # seconds
PATHS, FLAGS = ("config", "root"), ("state", "stop", "wait", "web")
WEB = "127.0.0.1:9395"

USAGE = """Usage: nvcd [--config FILE] [--root DIR] [--wait] [--web [ADDR]]
       nvcd --state
       nvcd --stop

Schedules the time of shared GPUs, and checks the use of slices against their
limits. Runs in the foreground, as root; SIGTERM ends it. See docs/daemon.md.

  --config FILE  settings; default: the first of /etc/nvc/config.toml and
                 /etc/nvidia-container-runtime/config.toml
  --root DIR     driver root; default: as configured
  --wait         if another nvcd runs, wait until it ends
  --web [ADDR]   show GPUs, slices and processes to a browser that has the
                 token, at 127.0.0.1:9395 or another address:port
  --state        print the state of the running nvcd, as JSON
  --stop         end the running nvcd, and wait until it has ended; slices go on
  --version      print the version
  -h, --help     print this
"""


def main(program: str = "nvcd") -> NoReturn:
    """Run until a signal ends it; the exit code is 0 then."""
    stay(program, USAGE, ((*PATHS, "web"), PATHS, FLAGS), lambda values: _run(program, values))


def _run(program: str, values: dict[str, str]) -> None:
    for name in ("state", "stop"):
        if name in values and len(values) > 1:
            cause = "cannot be combined with other options"
            raise InputError(f"--{name}", cause=cause, hint="`nvcd --help` lists the options")
    if "state" in values:
        from nvc.slices.client.nvcd import ask
        from nvc_cli.output import json_text, write

        _check_root("ask nvcd")
        write(json_text(ask("state", STATE_TIME)))
    elif "stop" in values:
        from nvc.daemon.stop import stop

        _check_root("stop nvcd")
        say(program, f"process {stop()} has ended")
    else:
        from nvc.daemon.main import run

        show_as(program, sys.argv[1:])
        run(_configured(values), "wait" in values)


def _configured(values: dict[str, str]) -> Config:
    """The settings. Raises ConfigError, InputError."""
    from nvc.request.config.file import is_address

    config = configuration(values.get("config", ""), values.get("root", ""))
    web = values.get("web", config.nvcd_web)
    if web == "yes":
        web = WEB
    elif web and not is_address(web):
        raise InputError("--web", web, "want address:port", f"the default is {WEB}")
    return config.replace(nvcd_web=web)


def _check_root(step: str) -> None:
    if os.geteuid() != 0:
        raise PermissionDenied(step, cause="only root can")

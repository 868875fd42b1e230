"""What nvc-runtime runs in a child of its own before it becomes the low-level runtime: the editing of a bundle.

The static program has found the bundle and passes two absolute paths: its directory, and that of its configuration.
A third word is the mode of a name such as nvidia-container-runtime.cdi, in place of the configuration's.
Standard error goes to that program, which puts the one line of a failure where engines look for it.
"""

from __future__ import annotations

import gc
import posix
import sys

import nvc
from nvc.base.errors import InternalError, NvcError, one_line
from nvc.base.types import NoReturn
from nvc.frontends.runtime.edit import edit
from nvc.request.config import load
from nvc_hooks.boot import print_out, say
from nvc_hooks.log import open_log

PYTHON = "/lib/nvc/python"


def main(program: str = "nvc-runtime") -> NoReturn:
    """Edit the bundle of `sys.argv`, or print nvc's version, and end the process.

    The exit code is 0, or 1 after one line on standard error.
    """
    gc.disable()  # the process ends before a cycle would matter
    try:
        if sys.argv[1:] == ["--version"]:  # after the low-level runtime's, in the form of its `spec:` line
            print_out(f"nvc: {nvc.__version__}\n")
        else:
            run(*sys.argv[1:])
        code = 0
    except Exception as error:
        if not isinstance(error, NvcError):
            error = InternalError("edit bundle", type(error).__name__, error)
        say(f"{program}: {error.line()}\n")
        code = 1
    posix._exit(code)


def run(bundle: str, path: str, mode: str = "") -> None:
    """Edit the configuration `path` of `bundle`. Raises NvcError; nothing of it has changed then."""
    config = load()
    if mode:
        config = config.replace(mode=mode)
    log = open_log(config.runtime_debug or config.log)
    try:
        log.step(f"{path} with {config.path or 'the default configuration'}")
        edit(config, bundle, path, programs(), log)
    except Exception as error:
        log.error(one_line(error))
        raise


def programs() -> str:
    """The directory of this installation's programs. Raises InternalError."""
    for entry in sys.path:
        if entry.endswith(PYTHON):
            return entry[: -len(PYTHON)] + "/bin"
    raise InternalError("find programs", one_line(sys.path), "no installation around this code")

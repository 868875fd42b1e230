"""What nvc-runtime runs in a child of its own before it becomes the low-level runtime: the editing of a bundle.

The static program has found the bundle and passes absolute paths: of its directory, its configuration and the
low-level runtime. A fourth word is the mode of a name such as nvidia-container-runtime.cdi; it beats the file's.
Standard error goes to that program, which puts the one line of a failure where engines look for it.
"""

from __future__ import annotations

import gc
import sys

import nvc
from nvc.base.errors import one_line
from nvc.base.program import guarded, leave, programs, tell
from nvc.base.types import NoReturn
from nvc.frontends.runtime.edit import edit, is_gvisor
from nvc.request.config import load
from nvc_hooks.log import open_log


def main(program: str = "nvc-runtime") -> NoReturn:
    """Edit the bundle of `sys.argv`, or print nvc's version, and end the process.

    The exit code is 0, or another one after a line on standard error.
    """
    gc.disable()  # the process ends before a cycle would matter
    leave(guarded(program, lambda: run(*sys.argv[1:])))


def run(bundle: str, path: str = "", runtime: str = "", mode: str = "") -> int:
    """Edit the configuration `path` of `bundle`; 0. Raises NvcError; nothing of it has changed then."""
    if bundle == "--version":  # after the low-level runtime's, in the form of its `spec:` line
        tell(1, f"nvc: {nvc.__version__}\n")
        return 0
    config = load()
    if mode:
        config = config.replace(mode=mode)
    log = open_log(config.runtime_debug or config.log)
    try:
        log.step(f"{path} with {config.path or 'the default configuration'}")
        edit(config, bundle, path, programs(), log, is_gvisor(runtime))
        return 0
    except Exception as error:
        log.error(one_line(error))
        raise

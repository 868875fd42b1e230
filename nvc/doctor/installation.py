"""This installation: its programs, and the archive of modules that makes container starts fast."""

from __future__ import annotations

import os
from importlib.util import MAGIC_NUMBER

from nvc.doctor import Check, failed, ok, unknown, warning
from nvc.doctor.context import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime")
_ARCHIVE = "lib/nvc/hot.bin"
_HEADER = 8  # bytes: packaging/archive/build.py has the format
REINSTALL = "install nvc again: `make install`, or the package"


def programs(context: Context) -> Iterator[Finding]:
    """Whether every program is there that engines are told to run."""
    if not context.programs:
        yield unknown("this code is not installed anywhere: there are no programs beside it")
        return
    for name in PROGRAMS:
        path = f"{context.programs}/{name}"
        if not os.access(path, os.X_OK):
            yield failed(f"{path} is not a program: the installation is incomplete", advice=REINSTALL)
    yield ok(f"programs are in {context.programs}")


def archive(context: Context) -> Iterator[Finding]:
    """Whether the archive of modules is of the Python that runs it."""
    path = os.path.join(os.path.dirname(context.programs), _ARCHIVE)
    head = read_file(path, _HEADER) if context.programs else None
    if head is None:
        yield ok("this installation has no archive of modules")
    elif head[4:] != MAGIC_NUMBER:
        yield warning(
            f"{path} was made for another version of Python: it is not used, and container starts are slower",
            advice=REINSTALL,
        )


CHECKS = (
    Check("install.programs", "the programs of this installation", programs),
    Check("install.archive", "the archive of modules, and its version of Python", archive),
)

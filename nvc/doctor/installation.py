"""This installation: its programs, and the archive of modules that makes container starts fast."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER

from nvc.containers.files import read_bytes
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row
from nvc.doctor.context import Context

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime")
REINSTALL = "install nvc again: `make install`, or the package"
_ARCHIVE = "lib/nvc/hot.bin"
_HEADER = 8  # bytes: packaging/archive/build.py has the format


def _programs(context: Context) -> Iterator[Fact]:
    for name in PROGRAMS if context.programs else ():
        path = f"{context.programs}/{name}"
        yield Fact(directory=context.programs, missing="" if os.access(path, os.X_OK) else path)
    if not context.programs:
        yield Fact()


def _archive(context: Context) -> Iterator[Fact]:
    path = os.path.join(os.path.dirname(context.programs), _ARCHIVE)
    head = read_bytes(path)[:_HEADER] if context.programs else b""
    if head and head[4:] != MAGIC_NUMBER:
        yield Fact(path=path)


CHECKS = (
    Check("install.programs", "the programs of this installation", _programs, (
        Row(UNKNOWN, "this code is not installed anywhere: there are no programs beside it",
            lambda it: not it.directory),
        Row(FAILED, "{missing} is not a program: the installation is incomplete", lambda it: it.missing,
            advice=REINSTALL),
        Row(OK, "programs are in {directory}"),
    )),
    Check("install.archive", "the archive of modules, and its version of Python", _archive, (
        Row(WARNING, "{path} was made for another version of Python: it is not used, and container starts are "
            "slower", advice=REINSTALL),
    )),
)  # fmt: skip

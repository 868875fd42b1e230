"""The programs of this installation."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvc.doctor import FAILED, OK, UNKNOWN, Check, Fact, Row
from nvc.doctor.context import Context

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime")
REINSTALL = "install nvc again: `make install`, or the package"


def _programs(context: Context) -> Iterator[Fact]:
    for name in PROGRAMS if context.programs else ():
        path = f"{context.programs}/{name}"
        yield Fact(directory=context.programs, missing="" if os.access(path, os.X_OK) else path)
    if not context.programs:
        yield Fact()


CHECKS = (
    Check("install.programs", "the programs of this installation", _programs, (
        Row(UNKNOWN, "this code is not installed anywhere: there are no programs beside it",
            lambda it: not it.directory),
        Row(FAILED, "{missing} is not a program: the installation is incomplete", "missing", advice=REINSTALL),
        Row(OK, "programs are in {directory}"),
    )),
)  # fmt: skip

"""The control daemon of MPS as a program of a simulated driver: what it does is in mps_control.py."""

from __future__ import annotations

import os

from . import run
from .builds import kept
from .simdriver import SOURCES, WARN

MARK = b"mps-settings"
SIZE = 4096  # of what is written there


def build(directory: str) -> str:
    """tests/native/mps_control.c as a program that knows no script yet."""
    program = os.path.join(directory, "mps_control")
    run("gcc", *WARN, "-O1", "-o", program, os.path.join(SOURCES, "mps_control.c"))
    return program


def compile_control(program: str, script: str, **variables: str) -> None:
    """Put it where the driver's own is; it runs the script with these variables."""
    words = [script, *(word for pair in variables.items() for word in pair)]
    settings = b"".join(os.fsencode(word) + b"\0" for word in words)
    assert len(settings) < SIZE
    with open(kept("mps_control", build), "rb") as file:
        code = file.read()
    assert code.count(MARK) == 1
    os.unlink(program)
    with open(program, "wb", opener=lambda name, flags: os.open(name, flags, 0o755)) as out:
        out.write(code.replace(MARK.ljust(len(settings), b"\0"), settings))

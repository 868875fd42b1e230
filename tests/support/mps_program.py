"""The control daemon of MPS as a program of a simulated driver: what it does is in mps_control.py."""

from __future__ import annotations

import os
import tempfile

from . import run

#: A program of the driver is an ELF file; the one that is meant is in Python.
START = """
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    %s
    char *words[] = {"python3", "%s", argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL, NULL};
    return execv("/usr/bin/python3", words);
}
"""


def compile_control(program: str, script: str, **variables: str) -> None:
    """Put it where the driver's own is; it runs the script with these variables."""
    code = "".join(f'setenv("{name}", "{value}", 1);' for name, value in variables.items())
    with tempfile.TemporaryDirectory(prefix="nvc-mps-") as directory:
        source = os.path.join(directory, "control.c")
        with open(source, "w", encoding="ascii") as out:
            out.write(START % (code, script))
        os.unlink(program)
        run("gcc", "-o", program, source)

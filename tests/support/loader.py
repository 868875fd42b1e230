"""This machine's own loader, asked where it looks; and a program that it loads with libcuda."""

from __future__ import annotations

import os
import re

from . import CLEAN_ENV, need, run


def places(library_path: str) -> list[str]:
    """The directories in which it looks first with this LD_LIBRARY_PATH, whether they exist or not."""
    said = run("/bin/true", env={**CLEAN_ENV, "LD_DEBUG": "libs", "LD_LIBRARY_PATH": library_path}).stderr
    found = re.search(r"search path=(\S+)\s+\(LD_LIBRARY_PATH\)", said)
    assert found is not None, said
    return found[1].split(":")


def needing_libcuda(directory: str) -> tuple[str, str]:
    """A program that needs libcuda.so.1, and an empty library of that name: their paths below `directory`."""
    library, program = os.path.join(directory, "libcuda.so.1"), os.path.join(directory, "needs-libcuda")
    source = os.path.join(directory, "needs-libcuda.c")
    with open(source, "w", encoding="ascii") as out:
        out.write("int main(void)\n{\n    return 0;\n}\n")
    run(need("gcc"), "-shared", "-fPIC", "-o", library, source, "-Wl,-soname,libcuda.so.1")
    run(need("gcc"), "-o", program, source, "-Wl,--no-as-needed", library)
    return program, library

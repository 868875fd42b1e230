"""Style, types and compiler warnings. A linter's finding is a failed test."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import REPO, need, run
from support.sources import sources

WARNINGS = ["-std=c11", "-D_GNU_SOURCE=", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
#: Where a quoted include may be found, beside the folder of the file itself.
FOLDERS = {"native", *(os.path.dirname(name) for name in sources(".h"))}
INCLUDES = [f"-I{folder}" for folder in sorted(FOLDERS)]
#: What the build gives a source that is compiled more than once.
DEFINES = {
    "native/simdriver/tools/stub.c": ['-DNAME="stub"'],
    "native/launcher/cdi/target.c": ['-DNVC_VERSION="0"'],
    "native/tracer/tracer.bpf.c": ["-DNVC_X86_64"],
    "native/launcher/replay/replay.c": ['-DNVC_VERSION="0"'],
}
#: gcc warns of uses of unset variables only where it optimises; clang warns of all it knows before that.
COMPILERS = {
    "gcc": ["gcc", "-c", "-o", "/dev/null"],
    "clang": ["clang", "-fsyntax-only"],
    # The headers of the other architecture are there without its compiler.
    "aarch64": [
        *(
            "clang",
            "-fsyntax-only",
            "--target=aarch64-linux-gnu",
            "-isystem",
            "/usr/aarch64-linux-gnu/include",
        ),
    ],
}


def tool(*argv: str) -> None:
    """Run a linter of this environment in the repository."""
    done = run(sys.executable, "-m", *argv, check=False, cwd=REPO, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff() -> None:
    tool("ruff", "check", "--quiet", ".")


def test_mypy(stage: str) -> None:
    tool("mypy", "-p", "nvc", "-p", "nvc_cli", "-p", "nvc_hooks", "-p", "support")


@pytest.mark.parametrize("folder", ["packaging", "packaging/archive", "tests/bench"])
def test_mypy_of_scripts(folder: str) -> None:
    tool("mypy", *[name for name in sources(".py") if os.path.dirname(name) == folder])


def test_clang_format() -> None:
    files = [name for name in sources(".c", ".h") if name.startswith(("native/", "tests/", "packaging/"))]
    assert files
    done = run(need("clang-format"), "--dry-run", "-Werror", *files, check=False, cwd=REPO)
    assert done.returncode == 0, done.stderr


# The build and the fixtures compile with gcc, these warnings and -Werror whatever they need.
@pytest.mark.nightly
@pytest.mark.parametrize("name", ("clang", "gcc", "aarch64"))
def test_c_compiles_without_a_warning(name: str) -> None:
    compiler = COMPILERS[name]
    if platform.machine() == "aarch64" and name == "aarch64":
        compiler = COMPILERS["clang"]
    need(compiler[0])

    def compile_one(source: str) -> str:
        flags = [*WARNINGS, *INCLUDES, *DEFINES.get(source, [])]
        return run(*compiler, *flags, source, check=False, cwd=REPO, timeout=600).stderr

    files = sources(".c")
    assert files
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = "".join(pool.map(compile_one, files))
    assert findings == "", findings


def test_shell_scripts_parse() -> None:
    for name in sources():
        path = os.path.join(REPO, name)
        with open(path, "rb") as file:
            first = file.readline()
        if first.startswith((b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash")):
            run("bash", "-n", path)

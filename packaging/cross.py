"""Builds the native parts for aarch64 on another machine, with clang or a cross compiler of the distribution.

DIRECTORY/launcher, DIRECTORY/nvc-spin, DIRECTORY/simdriver, DIRECTORY/vgpu and DIRECTORY/_syscalls.abi3.so
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

import tree

MACHINE = "aarch64"
#: On Debian gcc's cross compilers and gcc-multilib, which tests want, exclude each other. clang is both.
COMPILERS = [["clang", f"--target={MACHINE}-linux-gnu"], [f"{MACHINE}-linux-gnu-gcc"]]


def works(command: list[str]) -> bool:
    """Whether a compiler is there, and libraries to link with."""
    if not shutil.which(command[0]):
        return False
    test = [*command, "-static", "-o", os.devnull, "-x", "c", "-"]
    done = subprocess.run(test, check=False, input=b"int main(void) { return 0; }", capture_output=True)
    return done.returncode == 0


def compiler() -> list[str]:
    """The words that begin a call of the cross compiler; none where it is missing, or would be the native one."""
    if platform.machine() == MACHINE:
        return []
    return next((command for command in COMPILERS if works(command)), [])


def make(directory: str, cc: list[str]) -> None:
    """The parts that are plain C, by the Makefile's own rules."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".packages-build"), "w", encoding="ascii"):
        pass  # as installed: its prerequisites are this build's
    # Relative, as make takes a name with a space for two.
    build = os.path.relpath(directory, tree.REPO)
    targets = (f"{build}/launcher", f"{build}/nvc-spin", "simdriver", "shim")
    command = ["make", "-s", "--no-print-directory", "-C", tree.REPO, f"BUILD={build}", f"CC={' '.join(cc)}"]
    subprocess.run([*command, *targets], check=True)


def extension() -> Any:
    path = os.path.join(tree.REPO, "native/core/build.py")
    spec = importlib.util.spec_from_file_location("core_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def core(directory: str, cc: list[str]) -> None:
    """nvc._syscalls, for the stable ABI. Python's headers are this machine's."""
    described = extension()
    macros = [f"-D{name}={value}" for name, value in described.build_facts()]
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "_syscalls.c")
        with contextlib.redirect_stdout(None):
            described.ffi.emit_c_code(source)
        # Debian's pyconfig.h includes that of the architecture; the two differ in nothing that the ABI knows.
        own = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
        name = f"python{sys.version_info.major}.{sys.version_info.minor}/pyconfig.h"
        there = os.path.join(work, f"{MACHINE}-linux-gnu", name)
        os.makedirs(os.path.dirname(there))
        with open(there, "w", encoding="utf-8") as out:
            out.write(f'#include "{os.path.dirname(headers)}/{own}/{name}"\n')
        out_file = os.path.join(directory, "_syscalls.abi3.so")
        flags = ["-shared", "-fPIC", "-DPy_LIMITED_API=0x03020000", *described.FLAGS, *macros]
        include = [f"-I{path}" for path in (work, *described.FOLDERS, headers)]
        subprocess.run([*cc, *flags, *include, "-o", out_file, source, *described.SOURCES], check=True)


def build(directory: str) -> bool:
    cc = compiler()
    if not cc:
        return False
    make(directory, cc)
    core(directory, cc)
    return True

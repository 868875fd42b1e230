"""Builds the native parts for aarch64 with a cross compiler of the distribution.

DIRECTORY/launcher, DIRECTORY/simdriver, DIRECTORY/vgpu and DIRECTORY/_syscalls.abi3.so
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
#: gcc-multilib and the package of the plain name exclude each other on Debian, so that the second is there rarely.
COMPILERS = [f"{MACHINE}-linux-gnu-gcc{suffix}" for suffix in ("", "-14", "-13", "-12", "-11")]


def compiler() -> str:
    """The cross compiler's name, "" where there is none or where it would be the native one."""
    found = [name for name in COMPILERS if shutil.which(name)]
    return found[0] if found and platform.machine() != MACHINE else ""


def make(directory: str, cc: str) -> None:
    """The parts that are plain C, by the Makefile's own rules."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".packages-build"), "w", encoding="ascii"):
        pass  # as installed: its prerequisites are this build's
    targets = (f"{directory}/launcher", "simdriver", "shim")
    command = [
        "make",
        "-s",
        "--no-print-directory",
        "-C",
        tree.REPO,
        f"BUILD={directory}",
        f"CC={cc}",
        *targets,
    ]
    subprocess.run(command, check=True)


def extension() -> Any:
    """The description of nvc._syscalls: cffi's FFI object."""
    path = os.path.join(tree.REPO, "native/syscalls/build.py")
    spec = importlib.util.spec_from_file_location("syscalls_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def core(directory: str, cc: str) -> None:
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
            out.write(f'#include "{os.path.dirname(os.path.dirname(headers))}/{own}/{name}"\n')
        out_file = os.path.join(directory, "_syscalls.abi3.so")
        flags = ["-shared", "-fPIC", "-DPy_LIMITED_API=0x03020000", *described.FLAGS, *macros]
        include = [f"-I{path}" for path in (work, described.HERE, headers)]
        subprocess.run([cc, *flags, *include, "-o", out_file, source, *described.SOURCES], check=True)


def build(directory: str) -> bool:
    """Build everything into `directory`; False without a cross compiler."""
    cc = compiler()
    if not cc:
        return False
    make(directory, cc)
    core(directory, cc)
    return True

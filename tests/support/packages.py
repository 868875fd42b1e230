"""The packages of this checkout, built once, and a newer version of them."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import sys

from . import REPO, run
from .builds import make

NEWER = "99.1"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
MACHINE = platform.machine()


def build(directory: str, *words: str) -> str:
    """A copy of what `make packages` makes, which other processes do not make again; its path in `directory`."""
    made, copy = os.path.join(REPO, "build/packages"), os.path.join(directory, "packages")
    layouts = shutil.ignore_patterns("root")
    make("packages", *words, then=lambda: shutil.copytree(made, copy, ignore=layouts))
    return copy


def build_newer(directory: str) -> str:
    """The same code under a higher version, in a directory that is returned."""
    script = os.path.join(REPO, "packaging/package.py")
    run(sys.executable, script, directory, "--version", NEWER, env=dict(os.environ))
    return directory


def deb(directory: str, machine: str = MACHINE) -> str:
    """The path of the only deb of a directory, which is for `machine`."""
    (found,) = glob.glob(os.path.join(directory, "nvc_*.deb"))
    assert found.endswith(f"_{DEBIAN[machine]}.deb"), found
    return found


def rpm(directory: str, machine: str = MACHINE) -> str:
    """The path of the only rpm of a directory, which is for `machine`."""
    (found,) = glob.glob(os.path.join(directory, "nvc-*.rpm"))
    assert found.endswith(f".{machine}.rpm"), found
    return found


def version() -> str:
    """nvc's own."""
    with open(os.path.join(REPO, "nvc/__init__.py"), encoding="utf-8") as text:
        (found,) = re.findall(r'__version__ = "([^"]+)"', text.read())
    return str(found)

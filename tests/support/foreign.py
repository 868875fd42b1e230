"""Programs of others for nightly tests, fetched into build/nightly by the first test that needs them.

Python packages: packaging/requirements-nightly.txt. NVIDIA's container tools: built from the Go module proxy with
the Go of one of these packages.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import sys
from collections.abc import Callable

from support import REPO, run
from support.fetch import fetch

PINS = os.path.join(REPO, "packaging/requirements-nightly.txt")
CACHE = os.path.join(REPO, "build/nightly")
TOOLKIT = "v1.20.1"
TOOLKIT_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"


def _once(directory: str, make: Callable[[], None]) -> str:
    """`directory`, after `make` filled it whole; other processes of tests wait meanwhile."""
    ready = directory + ".ready"
    os.makedirs(CACHE, exist_ok=True)
    with open(directory + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(ready):
            make()
            with open(ready, "w"):
                pass
    return directory


def environment() -> str:
    """The directory of a virtual environment with all pinned packages."""
    with open(PINS, "rb") as file:
        name = hashlib.sha256(file.read() + sys.version.encode()).hexdigest()[:12]
    directory = os.path.join(CACHE, f"python-{name}")

    def make() -> None:
        run(sys.executable, "-m", "venv", "--clear", directory, env=dict(os.environ))
        pip = os.path.join(directory, "bin/pip")
        words = ("install", "-q", "--disable-pip-version-check", "--no-deps", "-r", PINS)
        fetch("packages from the Python package index", pip, *words)

    return _once(directory, make)


def python() -> str:
    """The interpreter of `environment`."""
    return os.path.join(environment(), "bin/python")


def cudart(major: int) -> str:
    """NVIDIA's own libcudart of this major version."""
    (found,) = glob.glob(
        os.path.join(environment(), f"lib/python3*/site-packages/nvidia/**/libcudart.so.{major}"),
        recursive=True,
    )
    return found


def toolkit() -> str:
    """The directory of nvidia-ctk and nvidia-cdi-hook."""
    directory = os.path.join(CACHE, f"toolkit-{TOOLKIT}")
    commands = [f"{TOOLKIT_MODULE}/cmd/{name}@{TOOLKIT}" for name in ("nvidia-ctk", "nvidia-cdi-hook")]
    go = os.path.join(environment(), "bin/go")
    variables = {"GOBIN": directory, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "1"}
    about = f"{TOOLKIT_MODULE} {TOOLKIT} from the Go module proxy"
    return _once(directory, lambda: fetch(about, go, "install", *commands, variables=variables))

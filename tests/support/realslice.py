"""A slice of the host's own driver in a directory, without a container, for tests that compare books."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any

from . import CLEAN_ENV, need, run
from .vgpushim import GIB, MIB, Slice


def smi(field: str) -> str:
    """A field of the first GPU, as nvidia-smi says it."""
    query = (need("nvidia-smi"), f"--query-gpu={field}", "--format=csv,noheader,nounits")
    return run(*query).stdout.splitlines()[0].strip()


def real_libraries() -> str:
    """The directory of the driver's libcuda.so.1."""
    cache = run("/sbin/ldconfig", "-p").stdout
    found = re.search(r"libcuda\.so\.1 \(libc6,(?:x86-64|AArch64)\) => (\S+)", cache)
    assert found, "no libcuda.so.1 in the loader's cache"
    return os.path.dirname(found[1])


class RealSlice(Slice):
    """10 GiB of the first GPU, with the context's size as it is measured here."""

    def __init__(self, root: str, shims: str, tool: str) -> None:
        self.make(root, shims, tool, real_libraries(), [smi("uuid")])
        context = self.taken()
        process = self.start()
        self.context = self.taken() - context
        process.end()
        self.processes.clear()
        self.reset()

    def reset(self) -> None:
        self.limit(10 * GIB, context_overhead=self.context)

    def taken(self, device: int = 0) -> int:
        return int(smi("memory.used")) * MIB


def native(slice_: Slice) -> dict[str, str]:
    """An environment in which programs meet the driver itself."""
    return {**CLEAN_ENV, "LD_LIBRARY_PATH": real_libraries()}


def plain_environment(**more: str) -> dict[str, str]:
    """The caller's environment, without what the tests' own Python needs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NVC_"))}
    return {**kept, **more}


def program(name: str) -> str:
    """A program that is on the caller's own search path: `python3` is then the one with the frameworks."""
    places = os.environ.get("PATH", "") + ":/usr/local/cuda/bin:" + CLEAN_ENV["PATH"]
    found = shutil.which(name, path=places)
    assert found, f"{name} is missing"
    return found


def answers(text: str) -> dict[str, Any]:
    """The last line of a program's output, which is JSON."""
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found

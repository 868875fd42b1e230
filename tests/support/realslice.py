"""A slice of the host's own driver in a directory, without a container, for tests that compare books."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from . import CLEAN_ENV, GIB, gpus
from .vgpushim import Slice


class RealSlice(Slice):
    """10 GiB of the GPU, with the context's size as it is measured here."""

    roughly = 64 << 20  # what the driver takes for itself

    def __init__(self, root: str, shims: str, tool: str) -> None:
        self.make(gpus.place_of_slice(root), shims, tool, gpus.libraries(), [gpus.uuid()])
        context = self.taken()
        process = self.start()
        self.context = self.taken() - context
        process.end()
        self.processes.clear()
        self.reset()

    def reset(self) -> None:
        self.limit(10 * GIB, context_overhead=self.context)

    @contextlib.contextmanager
    def without_leftovers(self) -> Iterator[None]:
        """Ends the processes that are started in the context, and resets the limit."""
        first = len(self.processes)
        yield
        for process in self.processes[first:]:
            if process.process.poll() is None:
                process.kill()
        del self.processes[first:]
        self.reset()

    def environment(self, **variables: str) -> dict[str, str]:
        return super().environment(**{**gpus.visible(), **variables})

    def taken(self, device: int = 0) -> int:
        return gpus.memory_used()


def native(slice_: Slice) -> dict[str, str]:
    """An environment in which programs meet the driver itself."""
    return {**CLEAN_ENV, **gpus.visible(), "LD_LIBRARY_PATH": gpus.libraries()}


def plain_environment(**more: str) -> dict[str, str]:
    """The caller's environment, without what the tests' own Python needs, and with one GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NVC_"))}
    return {**kept, **gpus.visible(), **more}


def program(name: str) -> str:
    """A program that is on the caller's own search path: `python3` is then the one with the frameworks."""
    places = os.environ.get("PATH", "") + ":/usr/local/cuda/bin:" + CLEAN_ENV["PATH"]
    found = shutil.which(name, path=places)
    assert found, f"{name} is missing"
    return found


def answers(text: str) -> dict[str, Any]:
    """The last line of a program's output, which is JSON."""
    return json.loads(text.strip().splitlines()[-1])

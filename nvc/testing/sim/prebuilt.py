"""Finds the compiled part of the simulated driver."""

from __future__ import annotations

import os

import nvc
from nvc.base.errors import InitializationError
from nvc.testing.sim.libraries import PROGRAMS

#: What the build must have left there.
NEEDED = ("libnvidia-ml.so", "libcuda.so", "libnvidia-sandboxutils.so", *PROGRAMS)


def _candidates() -> list[str]:
    chosen = os.environ.get("NVC_SIMDRIVER")
    if chosen:
        return [chosen]
    # Installed: PREFIX/lib/nvc/python/nvc. Links stay unresolved, as a staged tree links to the sources.
    package = os.path.dirname(os.path.abspath(nvc.__file__))
    installed = os.path.join(os.path.dirname(os.path.dirname(package)), "simdriver")
    repository = os.path.dirname(os.path.realpath(package))
    return [installed, os.path.join(repository, "build/stage/lib/nvc/simdriver")]


def prebuilt() -> str:
    """The directory with libcuda.so, libnvidia-ml.so and the programs. Raises InitializationError."""
    candidates = _candidates()
    for directory in candidates:
        if all(os.path.isfile(os.path.join(directory, name)) for name in NEEDED):
            return directory
    raise InitializationError(
        "find the simulated driver",
        candidates[-1],
        "not built",
        "build it with `make -C native/simdriver OUT=DIR` and set NVC_SIMDRIVER=DIR",
    )

"""The house's rules for C: small folders that say what they hold, and includes that go down."""

from __future__ import annotations

import collections
import functools
import os
import re

import pytest
from support.sources import circles, read, sources

#: Folders of C, lower ones first: a file includes from folders before its own, and from its own.
FOLDERS = (
    "native/abi",
    "native/core/bpf",
    "native/core/files",
    "native/core/apply",
    "native/core/ldcache",
    "native/core/steps",
    "native/core/probe",
    "native/core",
    "native/launcher/start",
    "native/launcher/cdi",
    "native/launcher/replay",
    "native/launcher/runtime",
    "native/launcher",
    "native/tracer",
    "native/simdriver/common",
    "native/simdriver/nvml",
    "native/simdriver/cuda",
    "native/simdriver/rm",
    "native/simdriver/sandboxutils",
    "native/simdriver/tools",
    "native/simdriver/examples",
    "native/spin",
    "native/vgpu",
    "native/vgpu/process",
    "native/vgpu/slice",
    "native/vgpu/charge",
    "native/vgpu/swap",
    "native/vgpu/time",
    "native/vgpu/memory",
    "native/vgpu/code",
    "native/vgpu/launch",
    "native/vgpu/view",
)
MOST = 14
#: Folders that are to be split, and how many files they have: fewer with each change.
LARGE = {
    "native/simdriver/cuda": 71,
}
#: Files, a header with the source of its name, that include each other: fewer with each change.
CIRCLES = {
    "native/simdriver/cuda": 4,
    "native/vgpu/slice": 2,
}
NATIVE = [name for name in sources() if name.startswith("native/")]
CODE = [name for name in NATIVE if name.endswith((".c", ".h", ".def"))]
#: Headers of other projects, and of tests, which some programs are compiled with.
FOREIGN = ("world.h",)


def resolved(name: str, include: str) -> str | None:
    """The file of this repository that a quoted include means; None: one of FOREIGN."""
    own = os.path.normpath(os.path.join(os.path.dirname(name), include))
    part = "/".join(name.split("/")[:2]) + "/"  # such as native/core
    ends = [other for other in CODE if other.endswith(f"/{include}")]
    inside = [other for other in ends if other.startswith(part)]
    found = [other for other in CODE if other == own] or inside or ends
    if not found and os.path.basename(include) in FOREIGN:
        return None
    assert len(found) == 1, f"{name} includes {include}, which may be any of {found}"
    return found[0]


@functools.cache
def includes(name: str) -> frozenset[str]:
    """The files that one includes."""
    said = re.findall(r'^#\s*include "([^"]+)"', read(name), re.MULTILINE)
    return frozenset(other for include in said if (other := resolved(name, include)))


def folder_of(name: str) -> str:
    return os.path.dirname(name)


def unit_of(name: str) -> str:
    """A header and the source of its name are one; cffi's description of a header is part of that, too."""
    folder, file = os.path.split(os.path.splitext(name)[0])
    return f"{folder}/{file.removeprefix('_')}"


def test_folders_are_small() -> None:
    counts = {folder: sum(folder_of(name) == folder for name in NATIVE) for folder in map(folder_of, NATIVE)}
    assert {folder: count for folder, count in counts.items() if count > MOST} == LARGE


def test_includes_go_down() -> None:
    assert {folder_of(name) for name in CODE} <= set(FOLDERS), "say in FOLDERS where it is"
    place = {folder: at for at, folder in enumerate(FOLDERS)}
    wrong = [
        f"{name} includes {other}, which is above it"
        for name in CODE
        for other in includes(name)
        if place[folder_of(other)] > place[folder_of(name)]
    ]
    assert wrong == []


def test_includes_have_no_circle() -> None:
    arrows: dict[str, set[str]] = {}
    for name in CODE:
        arrows.setdefault(unit_of(name), set()).update(unit_of(other) for other in includes(name))
    for unit, others in arrows.items():
        others.discard(unit)
    found = collections.Counter(os.path.dirname(unit) for unit in circles(arrows).split())
    assert found == CIRCLES


MAPS = [name for name in NATIVE if os.path.basename(name) == "README.md"]


@pytest.mark.parametrize("page", MAPS)
def test_a_map_names_the_files_that_are_there(page: str) -> None:
    """Each source and header, but for headers of a source's name."""
    named = re.findall(r"`(\w+\.(?:c|h|def))`", read(page))
    below = [name for name in CODE if name.startswith(f"{os.path.dirname(page)}/")]
    there = {os.path.basename(name) for name in below}
    apart = {file for file in there if not (file.endswith(".h") and f"{file[:-2]}.c" in there)}
    assert apart - set(named) == set() and set(named) <= there

"""The libraries that are written without a compiler, read back by others."""

from __future__ import annotations

import os

import pytest
from support import need, run

from nvc.testing.sim.elffile import shared_object

ARCHES = {
    "x86_64": ("EM_X86_64", 64),
    "aarch64": ("EM_AARCH64", 64),
    "i386": ("EM_386", 32),
    "arm": ("EM_ARM", 32),
}


@pytest.mark.parametrize("arch", ARCHES)
def test_other_tools_find_nothing_wrong(arch: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "libx.so")
    with open(path, "wb") as out:
        out.write(shared_object("libx.so.1", arch, abi_note=True))
    done = run(need("readelf"), "-hldnsVW", path)
    assert "arning" not in done.stdout + done.stderr and "rror" not in done.stderr

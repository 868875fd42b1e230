"""The libraries that are written without a compiler, read back by others."""

from __future__ import annotations

import io
import os

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st
from support import need, run

from nvc.testing.sim.elffile import shared_object

ARCHES = {
    "x86_64": ("EM_X86_64", 64),
    "aarch64": ("EM_AARCH64", 64),
    "i386": ("EM_386", 32),
    "arm": ("EM_ARM", 32),
}


def parse(data: bytes) -> ELFFile:
    return ELFFile(io.BytesIO(data))


def soname(elf: ELFFile) -> str:
    tags = elf.get_section_by_name(".dynamic").iter_tags()
    return str(next(tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"))


@pytest.mark.parametrize("arch", ARCHES)
@given(name=st.text("abcXYZ019._-", min_size=1, max_size=200))
def test_any_name_is_kept(arch: str, name: str) -> None:
    elf = parse(shared_object(name, arch, abi_note=True))
    assert soname(elf) == name
    segment = next(segment for segment in elf.iter_segments() if segment["p_type"] == "PT_DYNAMIC")
    assert [tag.soname for tag in segment.iter_tags("DT_SONAME")] == [name]


@pytest.mark.parametrize("arch", ARCHES)
def test_other_tools_find_nothing_wrong(arch: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "libx.so")
    with open(path, "wb") as out:
        out.write(shared_object("libx.so.1", arch, abi_note=True))
    done = run(need("readelf"), "-aW", path)
    assert "arning" not in done.stdout + done.stderr and "rror" not in done.stderr

"""The libraries that are written without a compiler, read back by others."""

from __future__ import annotations

import ctypes
import io
import os
import platform

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
def test_kind_of_file(arch: str) -> None:
    elf = parse(shared_object("libx.so.1", arch))
    assert (elf["e_machine"], elf.elfclass, elf["e_type"]) == (*ARCHES[arch], "ET_DYN")
    assert soname(elf) == "libx.so.1"


@pytest.mark.parametrize("arch", ARCHES)
@given(name=st.text("abcXYZ019._-", min_size=1, max_size=200))
def test_any_name_is_kept(arch: str, name: str) -> None:
    elf = parse(shared_object(name, arch, abi_note=True))
    assert soname(elf) == name
    segment = next(segment for segment in elf.iter_segments() if segment["p_type"] == "PT_DYNAMIC")
    assert [tag.soname for tag in segment.iter_tags("DT_SONAME")] == [name]


@pytest.mark.parametrize("arch", ARCHES)
def test_notes(arch: str) -> None:
    plain, marked = (parse(shared_object("libx.so.1", arch, abi_note=marked)) for marked in (False, True))
    assert plain.get_section_by_name(".note.ABI-tag") is None
    notes = list(marked.get_section_by_name(".note.ABI-tag").iter_notes())
    assert notes[0]["n_name"] == "GNU"
    assert (
        notes[0]["n_desc"]["abi_major"],
        notes[0]["n_desc"]["abi_minor"],
        notes[0]["n_desc"]["abi_tiny"],
    ) == (2, 3, 99)
    for elf in (plain, marked):
        own = next(elf.get_section_by_name(".note.nvc").iter_notes())
        assert own["n_name"] == "nvc" and b"simulated" in own["n_descdata"]


@pytest.mark.parametrize("arch", ARCHES)
def test_other_tools_find_nothing_wrong(arch: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "libx.so")
    with open(path, "wb") as out:
        out.write(shared_object("libx.so.1", arch, abi_note=True))
    done = run(need("readelf"), "-aW", path)
    assert "arning" not in done.stdout + done.stderr and "rror" not in done.stderr


def test_a_loader_opens_it(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "libx.so")
    with open(path, "wb") as out:
        out.write(shared_object("libx.so.1", platform.machine(), abi_note=True))
    ctypes.CDLL(path)

"""The ELF header reader: held against pyelftools, and against files that lie."""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment
from support.drivertree import ARCH, OTHER_ARCH

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.discovery.driver.elf import Elf, read_elf
from nvc.testing.sim.elffile import shared_object


@contextmanager
def opened(path: str) -> Iterator[int]:
    with closing(os.open(path, os.O_RDONLY)) as fd:
        yield fd


def parse(data: bytes) -> Elf:
    with closing(os.memfd_create("elf")) as fd:
        os.write(fd, data)
        return read_elf(fd, "test")


def refused(data: bytes) -> None:
    with pytest.raises(DetectionError, match="not a sound ELF file"):
        parse(data)


def system_files() -> list[str]:
    """Libraries and programs of this machine, a spread of them."""
    found = sorted(glob.glob(f"/usr/lib/{ARCH}-linux-gnu/*.so.*") + glob.glob("/usr/bin/*"))
    real = sorted({os.path.realpath(path) for path in found})
    elf = []
    for path in filter(os.path.isfile, real[:: max(1, len(real) // 120)]):
        with open(path, "rb") as file:
            if file.read(4) == b"\x7fELF":
                elf.append(path)
    return elf


def compare(path: str) -> None:
    """Our reading of `path` and pyelftools' are the same."""
    with opened(path) as fd:
        ours = read_elf(fd, path)
    with open(path, "rb") as file:
        elf = ELFFile(file)
        sonames, abi = [""], (0, 0, 0)
        for segment in elf.iter_segments():
            if isinstance(segment, DynamicSegment):
                sonames += [tag.soname for tag in segment.iter_tags("DT_SONAME")]
            if isinstance(segment, NoteSegment):
                for note in segment.iter_notes():
                    if note["n_name"] == "GNU" and note["n_type"] == "NT_GNU_ABI_TAG":
                        abi = tuple(note["n_desc"][f"abi_{part}"] for part in ("major", "minor", "tiny"))
        assert ours.bits == elf.elfclass
        assert ours.soname == sonames[-1]
        assert ours.linux_abi == abi
        arch = {"x64": "x86_64", "x86": "i386", "AArch64": "aarch64", "ARM": "arm"}[elf.get_machine_arch()]
        assert ours.is_for(arch)
        assert not ours.is_for(OTHER_ARCH if arch != OTHER_ARCH else ARCH)


def test_agrees_with_pyelftools_on_this_machines_files() -> None:
    files = system_files()
    assert len(files) > 20
    for path in files:
        compare(path)


def test_refuses_what_is_not_elf() -> None:
    good = shared_object("libx.so.1", ARCH)
    for data in (
        b"",
        b"#!/bin/sh\nexec true\n" * 10,
        b"\x7fELF",
        good[:5] + b"\x02" + good[6:],  # big-endian
        good[:4] + b"\x03" + good[5:],  # neither 32 nor 64 bits
        good[:60],
    ):
        refused(data)


def test_refuses_headers_out_of_bounds() -> None:
    good = bytearray(shared_object("libx.so.1", "x86_64"))
    many = bytearray(good)
    many[56:58] = b"\xff\xff"
    refused(bytes(many))
    far = bytearray(good)
    far[32:40] = b"\xff" * 8
    refused(bytes(far))


def test_a_soname_outside_of_its_table_is_refused() -> None:
    good = shared_object("libx.so.1", "x86_64")
    (entry,) = (e for e in (struct.pack("<qQ", 14, at) for at in range(64)) if good.count(e) == 1)
    for value in (1 << 20, (1 << 64) - 1):
        refused(good.replace(entry, struct.pack("<qQ", 14, value)))


def test_a_truncated_file_raises_nothing_else() -> None:
    good = shared_object("libx.so.1", ARCH, True)
    for size in range(len(good)):
        try:
            assert parse(good[:size]).soname in ("", "libx.so.1")
        except DetectionError:
            pass

"""Loader caches for tests: made by hand, listed by the real ldconfig, merged under sanitizers."""

from __future__ import annotations

import functools
import os
import platform
import re
import struct
from typing import NamedTuple

from . import REPO, need, run

X86_64, I386, AARCH64, ARM = 0x0303, 0x0003, 0x0A03, 0x0903
#: Flags of the machine's own libraries, and the words that ldconfig prints for them.
NATIVE, NATIVE_WORDS = (
    (X86_64, "libc6,x86-64") if platform.machine() == "x86_64" else (AARCH64, "libc6,AArch64")
)
FORMATS = ("new", "compat", "old")
EXTENSION = 1 << 62


class Entry(NamedTuple):
    """One entry of a cache made by hand."""

    soname: str
    path: str
    flags: int = X86_64
    hwcap: int = 0
    osversion: int = 0


class Line(NamedTuple):
    """One line of `ldconfig -p`."""

    soname: str
    words: str
    path: str


def listing(path: str) -> list[Line]:
    """What the real ldconfig reads in a cache, in its order."""
    text = run(need("ldconfig"), "-p", "-C", path, errors="surrogateescape").stdout
    lines = re.findall(r"^\t(.+) \((.*)\) => (.*)$", text, re.MULTILINE)
    count = re.match(r"(\d+) libs found", text)
    assert count is not None and int(count[1]) == len(lines), text
    return [Line(*line) for line in lines]


def natural(soname: str) -> list[tuple[int, int]]:
    """A key that orders names as the loader does: numbers by value and after every other byte, a `char` as the
    architecture has it. Not for numbers that overflow an int, as they do in the loader."""
    parts = re.findall(rb"\d+|\D", soname.encode() + b"\0")
    signed = platform.machine() == "x86_64"
    return [
        (1, int(part)) if part.isdigit() else (0, int.from_bytes(part, "little", signed=signed))
        for part in parts
    ]


def descending(entries: list[Entry]) -> list[Entry]:
    """In the order of a cache; of equal names in the given order."""
    return sorted(entries, key=functools.cmp_to_key(_compare))


def _compare(left: Entry, right: Entry) -> int:
    a, b = natural(left.soname), natural(right.soname)
    return (a < b) - (a > b)


def make(
    entries: list[Entry],
    flavour: str = "new",
    hwcaps: tuple[str, ...] = (),
    generator: bytes = b"",
    order: int = 2,
    sections: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """A cache with these entries in this order.

    `flavour` is ldconfig's name of a format, `order` the byte order's mark (0: none, as before glibc 2.33),
    `sections` are (tag, content) of the extension directory, behind those of `hwcaps` and `generator`.
    """
    strings, places = bytearray(), {}
    for text in (*(text for entry in entries for text in entry[:2]), *hwcaps):
        if text not in places:
            places[text] = len(strings)
            strings += text.encode() + b"\0"
    old = [entry for entry in entries if not entry.hwcap]
    if flavour == "compat" and len(old) % 2:
        old.append(old[-1])
    base = 48 + 24 * len(entries) if flavour != "old" else 0
    out = bytearray()
    if flavour != "new":
        out += struct.pack("<11sxI", b"ld.so-1.7.0", len(old))
        for entry in old:
            out += struct.pack("<III", entry.flags, base + places[entry.soname], base + places[entry.path])
    start = len(out)
    if flavour == "old":
        return bytes(out + strings)
    out += struct.pack("<20sIIIIIII", b"glibc-ld.so.cache1.1", len(entries), len(strings), order, 0, 0, 0, 0)
    for entry in entries:
        places_of = (base + places[entry.soname], base + places[entry.path])
        out += struct.pack("<IIIIQ", entry.flags, *places_of, entry.osversion, entry.hwcap)
    out += strings
    if generator:
        sections = ((0, generator), *sections)
    if hwcaps:
        names = struct.pack(f"<{len(hwcaps)}I", *(start + base + places[name] for name in hwcaps))
        sections = ((1, names), *sections)
    if sections:
        out += bytes(-len(out) % 4)
        struct.pack_into("<I", out, start + 32, len(out))
        at = len(out) + 8 + 16 * len(sections)
        out += struct.pack("<II", 0xEAA42174, len(sections))
        for tag, content in sections:
            out += struct.pack("<IIII", tag, 0, at, len(content))
            at += len(content)
        for _, content in sections:
            out += content
    return bytes(out)


def compile_tool(directory: str, *flags: str) -> str:
    """Builds tests/native/ldcache_tool.c with the C core and these flags; returns the program's path."""
    program = os.path.join(directory, "ldcache_tool")
    core = [f"native/core/ldcache/{name}.c" for name in ("ldcache", "ldcache_read", "ldcache_write")]
    sources = [*core, "tests/native/ldcache_tool.c"]
    warnings = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Werror")
    folders = ("-Inative/core/ldcache", "-Itests/native")
    run("gcc", *warnings, *flags, *folders, "-o", program, *sources, cwd=REPO)
    return program


class Refused(Exception):
    """The merge's error, by its name."""


class Tool:
    """The merge, run as a program that checks promises of its interface on the way."""

    def __init__(self, program: str, directory: str) -> None:
        self.program = program
        self.directory = directory
        self._count = 0

    def path(self, content: bytes | None = None) -> str:
        """A new path in the test's directory, of a file with `content` if that is given."""
        self._count += 1
        path = os.path.join(self.directory, f"cache{self._count}")
        if content is not None:
            with open(path, "wb") as out:
                out.write(content)
        return path

    @staticmethod
    def request(add: tuple[Entry, ...]) -> list[str]:
        """The arguments that stand for additions."""
        return [word for entry in add for word in ("add", entry.soname, entry.path, hex(entry.flags))]

    def merge(self, old: str, *add: Entry) -> str:
        """The path of the merged cache; `old` is the path of a cache, or "-". Raises Refused."""
        out = self.path()
        done = run(self.program, "merge", old, out, *self.request(add), check=False)
        if done.returncode == 2:
            raise Refused(done.stdout.strip())
        assert done.returncode == 0, done.stderr
        return out


def read(path: str) -> bytes:
    """A file's bytes."""
    with open(path, "rb") as content:
        return content.read()

"""An image and what is mounted into it, for nvc-cdi-hook: what a call makes of it, by an interpreter or without."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import struct
from typing import Any

from . import CLEAN_ENV, REPO, need, run
from .builds import kept
from .rootfs import multiarch
from .simdriver import WARN

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
COMPAT = "/usr/local/cuda/compat"
FOLDER = "/opt/driver"
#: A container's namespace by hand: the rootfs, its /dev, what is mounted, the hook; then all that is to be seen.
START = """
rootfs=$1 words=$2 mounts=$3 state=$4
"$6" "$rootfs" "$5" < "$mounts" && cd "$rootfs" || exit 99
eval "set -- $(cat "$words")"
"$@" < "$state"
echo "exit $?"
find . -printf '%p %y %m %s %l\\n' | sort
[ ! -f etc/ld.so.cache ] || md5sum etc/ld.so.cache
cut -d' ' -f4- /proc/self/mountinfo | sed 's/ - .*//; s/ shared:[0-9]*//; s/ master:[0-9]*//' | grep -F " $rootfs"
[ ! -d etc/nvidia ] || find etc/nvidia -type f -exec cat {} +
"""


def _compile_binder(directory: str) -> str:
    program = os.path.join(directory, "bind_mounts")
    run("gcc", *WARN, "-O1", "-o", program, os.path.join(REPO, "tests/native/bind_mounts.c"), timeout=300)
    return program


@functools.cache
def binder() -> str:
    """The program that makes a container's mounts."""
    return kept("bind_mounts", _compile_binder)


class World:
    """One image, what is mounted into it, and the programs that may be started in it."""

    def __init__(self, scratch: str, stage: str, driver: str) -> None:
        self.scratch, self.stage, self.driver = scratch, stage, driver
        self.image = f"{scratch}/image"
        self.mounts: list[tuple[str, str, str]] = []
        self.process: dict[str, Any] = {}
        self.more: dict[str, Any] = {}
        self.alone = f"{scratch}/alone/bin/nvc-cdi-hook"
        self.etc = f"{scratch}/etc"  # the host's
        os.makedirs(self.etc)
        os.makedirs(os.path.dirname(self.alone))
        shutil.copy(os.path.realpath(f"{stage}/bin/nvc-cdi-hook"), self.alone)
        for directory in (LIBS, "/etc", "/dev", "/proc", COMPAT, FOLDER, "/usr/lib32"):
            os.makedirs(self.image + directory, exist_ok=True)
        shutil.copy("/etc/ld.so.cache", f"{self.image}/etc/ld.so.cache")

    def library(self, name: str, target: str = "", options: str = "ro") -> None:
        """Mount a library of the driver into the image."""
        target = target or f"{LIBS}/{name}"
        path = self.image + target
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
        self.mounts.append((f"{self.driver}{LIBS}/{name}", target, options))

    def write(self, path: str, content: bytes = b"") -> None:
        os.makedirs(os.path.dirname(self.image + path), exist_ok=True)
        with open(self.image + path, "wb") as out:
            out.write(content)

    def start(self, *program: str) -> tuple[list[str], list[str]]:
        """A container of a fresh copy of the image: what it says and holds, what is on standard error."""
        rootfs = f"{self.scratch}/rootfs"
        run("cp", "-a", self.image, rootfs)
        config = {"ociVersion": "1.0.2", "process": self.process, "root": {"path": rootfs}, **self.more}
        files = {
            "config.json": json.dumps(config),
            "state.json": json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": self.scratch}),
            "mounts": "".join(f"{' '.join(entry)}\n" for entry in self.mounts),
            "words": " ".join("'" + word.replace("'", "'\\''") + "'" for word in program),
        }
        for name, text in files.items():
            with open(f"{self.scratch}/{name}", "w", encoding="utf-8") as out:
                out.write(text)
        paths = [rootfs, *(f"{self.scratch}/{name}" for name in ("words", "mounts", "state.json"))]
        paths += [self.etc, binder()]
        command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", START, "sh", *paths]
        # What is in use at the end of a process is no leak.
        variables = {**CLEAN_ENV, "ASAN_OPTIONS": "detect_leaks=0"}
        done = run(*command, check=False, env=variables, errors="replace")
        assert done.returncode != 99, done.stderr
        shutil.rmtree(rootfs)
        return done.stdout.splitlines(), done.stderr.splitlines()

    def agree(self, *words: str, alone: bool = True) -> tuple[list[str], list[str]]:
        """Both ways give the same, which is returned. `alone`: no interpreter is wanted."""
        by_python = self.start(f"{self.stage}/bin/nvc-cdi-hook", "--container-spec=/dev/stdin", *words)
        assert self.start(f"{self.stage}/bin/nvc-cdi-hook", *words) == by_python
        if alone:
            assert self.start(self.alone, *words) == by_python
        return by_python


def note(content: bytes) -> bytes:
    owner = b"NVIDIA Corporation\0"
    head = struct.pack("<III", len(owner), len(content), 1) + owner + bytes(-len(owner) % 4)
    return head + content + bytes(-len(content) % 4)


def add_compat(world: World, version: str, content: bytes | None) -> None:
    path = f"{world.image}{COMPAT}/libcuda.so.{version}"
    shutil.copy(f"{world.driver}{LIBS}/libcuda.so.{VERSION}", path)
    if content is not None:
        with open(f"{world.scratch}/note", "wb") as out:
            out.write(note(content))
        run(need("objcopy"), "--add-section", f".note.cuda.fwd_compatibility={world.scratch}/note", path)


def broken(random: random.Random, library: bytes) -> bytes:
    """A library with some of its bytes changed, or cut short."""
    content = bytearray(
        library[: random.choice((len(library), 64, 52, 20, 4096, random.randrange(len(library))))]
    )
    for _ in range(random.choice((0, 1, 4))):
        if content:
            content[random.randrange(min(len(content), random.choice((64, 1024, 1 << 20))))] = random.choice(
                (0, 1, 255)
            )
    return bytes(content)

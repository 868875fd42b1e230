"""Merged loader caches in front of the machine's real dynamic loader: a dlopen finds what was added."""

from __future__ import annotations

import os
import platform
import shutil

import pytest
from support import REPO, need, run
from support.ldcache import FORMATS, I386, NATIVE, Entry, Tool, make

SONAME = "libnvctest.so.1"
OTHER = "libnvcother.so.2"
#: Programs that this machine runs: compiler flag, flags of cache entries, and the least of the
#: directories under glibc-hwcaps that their loader knows. Neither i386 nor aarch64 has any.
BITS: dict[str, tuple[str, int, str]] = {"native": ("-O1", NATIVE, "")}
if platform.machine() == "x86_64":
    BITS = {"native": ("-m64", NATIVE, "x86-64-v2"), "32-bit": ("-m32", I386, "")}


class Image:
    """Libraries that no default directory holds, in directories of an image and of a driver."""

    def __init__(self, directory: str, bits: str) -> None:
        self.directory = directory
        option, self.flags, self.hwcaps = BITS[bits]
        self.compiler = ("gcc", "-Wall", "-Werror", option)
        self.program = os.path.join(directory, "find")

    def build(self) -> None:
        """Make them, and the program that looks for them."""
        run(*self.compiler, "-o", self.program, os.path.join(REPO, "tests/native/ldcache_dlopen.c"), "-ldl")
        self.library("image", SONAME)
        self.library("driver", SONAME)
        if self.hwcaps:
            self.library(f"image/glibc-hwcaps/{self.hwcaps}", SONAME)
        self.library("image", OTHER)

    def library(self, folder: str, soname: str) -> None:
        """A library whose function says the last part of its folder's name."""
        os.makedirs(os.path.join(self.directory, folder), exist_ok=True)
        source = os.path.join(self.directory, "library.c")
        with open(source, "w", encoding="utf-8") as out:
            # It uses libc: ldconfig gives 32-bit libraries that do not other flags.
            out.write("#include <stdio.h>\nconst char *nvc_test(void) { fflush(stdout); ")
            out.write(f'return "{os.path.basename(folder)}"; }}\n')
        output = ("-o", self.path(folder, soname), source)
        run(*self.compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", *output)

    def path(self, folder: str, soname: str = SONAME) -> str:
        """The path of a library."""
        return os.path.join(self.directory, folder, soname)

    def cache(self, flavour: str) -> str:
        """The image's cache, written by the real ldconfig for the image's directory alone."""
        conf, out = (os.path.join(self.directory, name) for name in ("image.conf", "image.cache"))
        with open(conf, "w", encoding="utf-8") as text:
            text.write(os.path.join(self.directory, "image") + "\n")
        run(need("ldconfig"), "-X", "-c", flavour, "-f", conf, "-C", out)
        return out

    def driver(self) -> Entry:
        """What the merge adds."""
        return Entry(SONAME, self.path("driver"), self.flags)

    def dlopen(self, cache: str, soname: str = SONAME) -> str:
        """What the library says that a program finds which runs with `cache` as its /etc/ld.so.cache."""
        user = ("--map-root-user",) if os.geteuid() else ()
        script = 'mount --bind "$1" /etc/ld.so.cache && exec "$2" "$3"'
        words = ("/bin/sh", "-c", script, "sh", cache, self.program, soname)
        said = run(need("unshare"), *user, "--mount", "--propagation", "private", *words).stdout.strip()
        if said != "not found":
            text, path = said.split(" ", 1)
            assert os.path.dirname(path).endswith(text) and path.startswith(self.directory)
            return text
        return said


@pytest.fixture(scope="session", params=BITS)
def built(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A directory with an image, for each kind of program that this machine can run; and which kind that is."""
    directory = str(tmp_path_factory.mktemp("ldcache-image"))
    Image(directory, request.param).build()
    return directory, request.param


@pytest.fixture
def image(scratch: str, built: tuple[str, str]) -> Image:
    """An image of this test's own."""
    directory, bits = built
    shutil.copytree(directory, scratch, symlinks=True, dirs_exist_ok=True)
    return Image(scratch, bits)


def test_minimal_cache(ldcache: Tool, image: Image) -> None:
    assert image.dlopen(ldcache.merge("-", Entry("libunrelated.so.1", "/nowhere"))) == "not found"
    merged = ldcache.merge("-", image.driver())
    assert image.dlopen(merged) == "driver"
    assert image.dlopen(merged, OTHER) == "not found"


@pytest.mark.parametrize("flavour", FORMATS)
def test_image_with_its_own_version(ldcache: Tool, image: Image, flavour: str) -> None:
    cache = image.cache(flavour)
    theirs = image.dlopen(cache)
    # Of glibc-hwcaps the format `old` says nothing, and in `compat` glibc cannot read what it wrote.
    assert theirs == (image.hwcaps if image.hwcaps and flavour != "compat" else "image")
    merged = ldcache.merge(cache, image.driver())
    assert image.dlopen(merged) == "driver"
    assert image.dlopen(merged, OTHER) == "image"
    assert image.dlopen(ldcache.merge(merged, image.driver())) == "driver"


def test_names_that_the_loader_takes_for_equal(ldcache: Tool, image: Image) -> None:
    names = [SONAME.replace("1", number) for number in ("1", "01", "001")]
    theirs = make([Entry(name, image.path("image"), image.flags) for name in names])
    for name in names:
        assert image.dlopen(ldcache.path(theirs), name) == "image"
        assert image.dlopen(ldcache.merge(ldcache.path(theirs), image.driver()), name) == "driver"


def test_hwcaps_variant_of_another_library_stays_the_one_that_is_found(ldcache: Tool, image: Image) -> None:
    merged = ldcache.merge(image.cache("new"), Entry(OTHER, image.path("driver"), image.flags))
    assert image.dlopen(merged) == (image.hwcaps or "image")


def test_same_name_of_another_architecture_does_not_matter(ldcache: Tool, image: Image) -> None:
    others = [Entry(SONAME, f"/nowhere/{flags}", flags) for flags in (0x0303, 0x0003, 0x0A03, 0x0903)]
    add = [other for other in others if other.flags != image.flags]
    theirs = image.dlopen(image.cache("new"))
    assert image.dlopen(ldcache.merge(image.cache("new"), *add)) == theirs
    assert image.dlopen(ldcache.merge(image.cache("new"), *add, image.driver())) == "driver"

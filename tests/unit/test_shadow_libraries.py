"""Copies of libcuda and libnvidia-ml in an image: native/core/steps/shadows.c by its caller in Python."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.ldcache import Entry, descending, make
from support.loader import places

from nvc.base.errors import MountError
from nvc.model.facts import Identity
from nvc.slices.make.shadow_libraries import ImageLibraries, find_shadow_libraries

LIBS = "/usr/lib/driver"
ELF = b"\x7fELF" + bytes(60)
COMPAT = "/usr/local/cuda/compat"


class Image:
    """A directory as an image."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)

    def write(self, *paths: str, content: bytes = ELF) -> None:
        for path in paths:
            os.makedirs(os.path.dirname(self.directory + path), exist_ok=True)
            with open(self.directory + path, "wb") as out:
                out.write(content)

    def link(self, text: str, path: str) -> None:
        os.makedirs(os.path.dirname(self.directory + path), exist_ok=True)
        os.symlink(text, self.directory + path)

    def identity(self, path: str) -> Identity:
        found = os.stat(self.directory + path)
        return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def found(self, *library_path: str, known: tuple[Identity, ...] = (), compat: str = "") -> ImageLibraries:
        return find_shadow_libraries(self.fd, LIBS, library_path, known, compat)

    def paths(self, *library_path: str) -> list[str]:
        return [shadow.path for shadow in self.found(*library_path).shadows]


@pytest.fixture
def image(tmp_path: object) -> Iterator[Image]:
    made = Image(str(tmp_path))
    yield made
    os.close(made.fd)


@pytest.mark.parametrize(
    ("item", "seen"),
    [
        ("/opt/a", True), ("/opt/a/", True), ("//opt/./b/../a", True), ("/../opt/a", True), ("/opt/link", True),
        ("opt/a", False), ("", False), ("/opt/b", False), ("/opt/a/stubs", False), ("/opt/a/stubs/", False),
        ("/opt/a\0", False), ("/" + "x" * 5000, False),
    ],
)  # fmt: skip
def test_directories_of_the_variable(image: Image, item: str, seen: bool) -> None:
    image.write("/opt/a/libcuda.so.1", "/opt/a/stubs/libcuda.so.1")
    image.link("/opt/a", "/opt/link")
    assert [path.rpartition("/")[2] for path in image.paths(item)] == ["libcuda.so.1"] * seen


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ("/opt/link/../lib", "/data/lib"), ("/opt/deep/../../lib", "/lib"), ("/opt/link/./..//lib", "/data/lib"),
        ("/opt/relative/../lib", "/data/lib"), ("/opt/chain/../$LIB", "/data/lib64"),
        ("/opt/out/../../lib", "/lib"), ("/opt/link/..", "/data"),
    ],
)  # fmt: skip
def test_what_is_above_the_target_of_a_link(image: Image, item: str, place: str) -> None:
    """Loaders leave `..` to the kernel. What the text says is searched as before."""
    os.makedirs(f"{image.directory}/data/x")
    for text, name in (("/data/x", "link"), ("/data/x/", "deep"), ("../data/x", "relative"), ("link", "chain"),
                       ("../../../data/x", "out")):  # fmt: skip
        image.link(text, f"/opt/{name}")
    image.write(f"{place}/libcuda.so.1")
    assert f"{place}/libcuda.so.1" in [os.path.normpath(path) for path in image.paths(item)]


def test_links_that_lead_farther_than_anybodys(image: Image) -> None:
    image.write(f"/opt/{'a/' * 100}b/libcuda.so.1")
    image.link("a/" * 101, "/opt/far")
    image.link("a/" * 130, "/opt/too-far")
    image.link("loop", "/opt/loop")
    os.makedirs(f"{image.directory}/opt/{'a/' * 130}")
    assert image.paths("/opt/far/../b") == [f"/opt/{'a/' * 100}b/libcuda.so.1"]
    for item in ("/opt/too-far/..", "/opt/loop/.."):
        with pytest.raises(MountError, match=f"{item}: too many levels"):
            image.found(item)


def test_more_names_than_anybody_has(image: Image) -> None:
    """What is behind them is not left out."""
    os.makedirs(f"{image.directory}/opt/a")
    for number in range(65536 - 3):
        os.mknod(f"{image.directory}/opt/a/{number}")
    image.write("/opt/a/libcuda.so.1")
    assert image.paths("/opt/a") == ["/opt/a/libcuda.so.1"]
    image.write("/opt/a/one-more")
    with pytest.raises(MountError, match="/opt/a: more than 65536 names"):
        image.found("/opt/a")


def test_every_directory_in_which_a_loader_looks_first(image: Image) -> None:
    """As this machine's says: those for its processor, and before glibc 2.37 all that are below each other."""
    seen = places("/opt/a")
    image.write(*(f"{place}/libcuda.so.1" for place in seen))
    found = image.found("/opt/a")
    assert {one.path for one in found.shadows} == {f"{place.rstrip('/')}/libcuda.so.1" for place in seen}
    assert set(found.links) == {place.rstrip("/") for place in seen}


@pytest.mark.parametrize(
    "below",
    ["glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v4", "tls", "haswell/avx512_1", "tls/haswell/x86_64/sse2"],
)
@pytest.mark.parametrize("place", [LIBS, "/usr/lib64", "/opt/a", "/opt/cached"])
def test_directories_that_other_loaders_prefer(image: Image, place: str, below: str) -> None:
    image.write("/etc/ld.so.cache", content=make([Entry("libcuda.so.1", "/opt/cached/libcuda.so.1")]))
    others = ("glibc-hwcaps/other", "x", "stubs")
    image.write(*(f"{place}/{name}/libcuda.so.1" for name in (below, *others)))
    found = image.found("/opt/a")
    assert [one.path for one in found.shadows] == [f"{place}/{below}/libcuda.so.1"]
    assert found.links == (f"{place}/{below}",)


@pytest.mark.parametrize(
    "item",
    ["/opt/$LIB", "/opt/${LIB}/x", "/opt/$LIB-x", "/$PLATFORM/${LIB}/$LIB", "/opt/${PLATFORM}x", "/$LIB/../opt"],
)
def test_tokens_as_this_machines_loader_expands_them(image: Image, item: str) -> None:
    place = places(item)[-1]
    assert "$" not in place
    image.write(f"{place}/libcuda.so.1")
    assert image.paths(item) == [os.path.normpath(f"{place}/libcuda.so.1")]


@pytest.mark.parametrize("value", ["lib64", "lib", f"lib/{os.uname().machine}-linux-gnu"])
def test_tokens_as_other_loaders_expand_them(image: Image, value: str) -> None:
    image.write(f"/opt/{value}/{os.uname().machine}/libcuda.so.1")
    assert image.paths("/opt/${LIB}/$PLATFORM") == [f"/opt/{value}/{os.uname().machine}/libcuda.so.1"]


@pytest.mark.parametrize("item", ["/opt/$LIBS", "/opt/${LIB", "/opt/$", "/opt/$lib", "/opt/${}", "/opt/$LIB_"])
def test_what_is_no_token_stays(image: Image, item: str) -> None:
    assert places(item)[-1] == item
    image.write(f"{item}/libcuda.so.1")
    assert image.paths(item) == [f"{item}/libcuda.so.1"]


def test_tokens_that_make_a_path_too_long(image: Image) -> None:
    assert image.paths("/$LIB" * 1000) == []


def test_directories_that_lead_back(image: Image) -> None:
    image.write("/opt/a/libcuda.so.1")
    image.link(".", "/opt/a/tls")
    image.link("..", "/opt/a/glibc-hwcaps")
    assert image.paths("/opt/a") == ["/opt/a/libcuda.so.1"]


def test_more_directories_than_anybody_has(image: Image) -> None:
    """What is behind them is not left out: the cache cannot keep LD_LIBRARY_PATH from being searched."""
    cached = [Entry(f"libcuda.so.{number}", f"/x{number}/libcuda.so.{number}") for number in range(512)]
    image.write("/etc/ld.so.cache", content=make(descending(cached)))
    with pytest.raises(MountError, match="more than 512 directories to search"):
        image.found("/opt/a")


def test_more_directories_below_another_than_anybody_has(image: Image) -> None:
    for number in range(512):
        os.makedirs(f"{image.directory}/opt/a/glibc-hwcaps/x86-64-v{number}")
    with pytest.raises(MountError, match="more than 512 directories to search"):
        image.found("/opt/a")


def test_links_stay_in_the_image(image: Image) -> None:
    image.link("../../../../../../../../etc/libcuda.so.1", f"{LIBS}/libcuda.so.1")
    assert image.paths() == []
    image.write("/etc/libcuda.so.1")
    assert image.paths() == [f"{LIBS}/libcuda.so.1"]


def test_a_shim_is_no_copy_but_has_a_place(image: Image) -> None:
    image.write("/opt/a/libcuda.so.1")
    found = image.found("/opt/a", known=(image.identity("/opt/a/libcuda.so.1"),))
    assert found.shadows == () and found.links == ("/opt/a",)


@pytest.mark.parametrize("below", ["lib", "lib.real"])
def test_a_link_in_a_hidden_directory_hides_nothing_elsewhere(image: Image, below: str) -> None:
    """What is hidden is the directory, and the copies to which a link in it leads can still be loaded."""
    image.write(f"{COMPAT}/libcuda.so.1", "/opt/a/libcuda.so.1", f"{LIBS}/libnvidia-ml.so.1")
    image.link("/opt/a", f"{COMPAT}/{below}")
    image.link(LIBS, f"/usr/local/cuda-12/compat/{below}")
    found = image.found("/opt/a")
    assert found.hidden == (COMPAT,)
    assert [one.path for one in found.shadows] == [f"{LIBS}/libnvidia-ml.so.1", "/opt/a/libcuda.so.1"]


def test_more_copies_than_anybody_has(image: Image) -> None:
    image.write(*(f"{LIBS}/libcuda.so.{number}" for number in range(64)))
    assert len(image.paths()) == 64
    image.write(f"{LIBS}/libcuda.so.64")
    with pytest.raises(MountError, match="more than 64 copies of libcuda"):
        image.found()

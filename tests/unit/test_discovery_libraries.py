"""Which files are taken for the driver's libraries, and which are not."""

from __future__ import annotations

import os
import shutil

import pytest
from support.drivertree import ARCH, LIBS, OTHER_ARCH, OTHER_LIBS, VERSION, DriverTree

from nvc.discovery.driver.libraries import FoundLibraries, find_libraries, read_cache
from nvc.discovery.driver.library_table import TABLE, DriverLibrary
from nvc.plan.build import LIBRARY_KINDS
from nvc.testing.sim.elffile import shared_object
from nvc.testing.sim.loadercache import write


@pytest.fixture
def tree(scratch: str) -> DriverTree:
    return DriverTree(f"{scratch}/root")


def find(tree: DriverTree, arch: str = ARCH, hints: tuple[str, ...] = ()) -> FoundLibraries:
    with tree.root() as root:
        entries, warnings = read_cache(root, "/etc/ld.so.cache")
        found = find_libraries(root, entries, arch, VERSION, hints)
    return found.replace(warnings=warnings + found.warnings)


def paths(found: FoundLibraries) -> list[str]:
    return [library.path for library in found.libraries]


def test_a_driver_in_several_directories(tree: DriverTree) -> None:
    """Without a loader cache: those that were named come first, each library from the first that has it."""
    for name, folder in (("libcuda", "/opt/a"), ("libnvidia-ml", "/opt/b"), ("libnvidia-ml", "/opt/c"),
                         ("libnvcuvid", LIBS), ("libcuda", LIBS)):  # fmt: skip
        tree.library(name, folder)
    found = find(tree, hints=("/opt/a", "/opt/b", "/opt/c"))
    assert paths(found) == [
        f"/opt/b/libnvidia-ml.so.{VERSION}", f"/opt/a/libcuda.so.{VERSION}", f"{LIBS}/libnvcuvid.so.{VERSION}",
    ]  # fmt: skip
    assert found.directory == "/opt/a"


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_each_row_of_the_table_is_found_and_says_whether_it_is_counted(
    tree: DriverTree, row: DriverLibrary
) -> None:
    tree.library("libcuda")
    if row.name != "libcuda":
        tree.library(row.name, version=row.abi or VERSION)
    tree.cache()
    (found,) = (one for one in find(tree).libraries if os.path.basename(one.path).startswith(f"{row.name}.so"))
    assert (found.kind, found.counted) == (row.kind, row.counted)
    assert any(row.kind in kinds for kinds in LIBRARY_KINDS.values())
    # Slices leave out what draws and what encodes as a whole: half of OpenGL is of use to nobody.
    assert not row.counted or row.kind in ("utility", "compute")


def test_a_library_of_another_version_is_not_the_drivers(tree: DriverTree) -> None:
    tree.library("libnvidia-ml")
    tree.library("libcuda", directory="/usr/local/cuda/compat", version="535.1.1")
    tree.library("libcuda")
    tree.library("libnvidia-encode", version=VERSION + "1")
    tree.library("libnvidia-new", version="1.0.1")
    tree.cache()
    found = find(tree)
    assert [os.path.basename(path) for path in paths(found)] == [
        f"libnvidia-ml.so.{VERSION}",
        f"libcuda.so.{VERSION}",
    ]
    assert found.directory == LIBS
    assert found.warnings == ()


def test_every_library_of_the_drivers_version_is_the_drivers(tree: DriverTree) -> None:
    """Also those of drivers to come, whether the loader cache names them or not."""
    tree.library("libcuda")
    tree.library("libnvcuvid", directory="/opt/video")
    tree.library("libnvidia-new", listed=False)
    tree.library("libother", soname=f"libother.so.{VERSION}")
    tree.library("libnvidia-later", directory="/opt/video", listed=False)
    tree.library("libnvidia-vdpau", directory=f"{LIBS}/vdpau", listed=False)
    tree.link("libnvidia-new.so.1", f"{LIBS}/libnvidia-new.so")
    tree.file(f"{LIBS}/libnvidia-empty.so.{VERSION}")  # where an earlier start has mounted one
    tree.library("libglxserver_nvidia", listed=False)  # for the X server
    tree.cache()
    found = find(tree)
    assert {library.path: (library.kind, library.counted, library.link) for library in found.libraries[2:]} == {
        f"{LIBS}/libnvidia-new.so.{VERSION}": ("other", False, "libnvidia-new.so"),
        f"{LIBS}/libother.so.{VERSION}": ("other", False, ""),
        f"{LIBS}/vdpau/libnvidia-vdpau.so.{VERSION}": ("other", False, ""),
        f"/opt/video/libnvidia-later.so.{VERSION}": ("other", False, ""),
    }
    assert found.warnings == ()


@pytest.mark.parametrize("listed", [True, False])
def test_platforms_of_egl_have_versions_of_their_own(tree: DriverTree, listed: bool) -> None:
    """Packages of a distribution have them as well, in another directory than the driver's."""
    tree.library("libcuda", directory="/usr/lib64/nvidia")
    tree.library("libnvidia-egl-gbm", directory="/usr/lib64", version="1.1.2")
    tree.library("libnvidia-egl-wayland", directory="/usr/lib64/nvidia", version="1.1.20")
    if listed:
        tree.cache()
    found = find(tree)
    assert paths(found)[1:] == [
        "/usr/lib64/libnvidia-egl-gbm.so.1.1.2", "/usr/lib64/nvidia/libnvidia-egl-wayland.so.1.1.20",
    ]  # fmt: skip
    assert [library.soname for library in found.libraries[1:]] == [
        "libnvidia-egl-gbm.so.1", "libnvidia-egl-wayland.so.1",
    ]  # fmt: skip


def test_a_file_that_is_no_library_is_a_warning(tree: DriverTree) -> None:
    tree.library("libcuda")
    path = tree.library("libnvidia-cfg")
    tree.file(path, b"not an ELF file at all, but long enough to be one" * 4)
    directory = f"{LIBS}/libnvidia-ngx.so.{VERSION}"
    tree.directory(directory)
    tree.listed.append(("libnvidia-ngx.so.1", directory, ARCH))
    tree.cache()
    found = find(tree)
    assert paths(found) == [f"{LIBS}/libcuda.so.{VERSION}"]
    assert found.warnings[0] == f"library {directory} is left out: not a regular file"
    assert found.warnings[1] == f"library {LIBS}/libnvidia-cfg.so.1 is left out: not a sound ELF file"


def test_the_other_architecture_is_kept_apart(tree: DriverTree) -> None:
    tree.library("libcuda", directory=OTHER_LIBS, arch=OTHER_ARCH)
    tree.library("libcuda")
    tree.library("libnvidia-ml", directory=OTHER_LIBS, arch=OTHER_ARCH)
    tree.listed.append(("libcuda.so.1", "/gone/libcuda.so.1", OTHER_ARCH))
    tree.cache()
    assert paths(find(tree)) == [f"{LIBS}/libcuda.so.{VERSION}"]
    assert find(tree).warnings == ()
    assert find(tree, OTHER_ARCH).warnings == ("stale entry in the loader cache: /gone/libcuda.so.1",)
    assert paths(find(tree, OTHER_ARCH)) == [
        f"{OTHER_LIBS}/libnvidia-ml.so.{VERSION}",
        f"{OTHER_LIBS}/libcuda.so.{VERSION}",
    ]
    os.unlink(tree.full("/etc/ld.so.cache"))
    assert find(tree, OTHER_ARCH).directory == OTHER_LIBS


def test_an_entry_that_lies_about_its_architecture_is_refused(tree: DriverTree) -> None:
    path = tree.library("libcuda")
    tree.file(path, shared_object("libcuda.so.1", OTHER_ARCH))
    tree.cache()
    assert find(tree).libraries == ()


@pytest.mark.parametrize("noted_first", [True, False])
def test_of_two_tls_libraries_the_one_with_the_abi_note_is_taken(
    tree: DriverTree, noted_first: bool
) -> None:
    name, soname = "libnvidia-tls", f"libnvidia-tls.so.{VERSION}"
    tree.library("libcuda")
    places = [(f"{LIBS}/tls", True), (LIBS, False)]
    for directory, note in places if noted_first else reversed(places):
        tree.library(name, directory=directory, soname=soname, abi_note=note)
    tree.cache()
    assert f"{LIBS}/tls/{soname}" in paths(find(tree))
    shutil.rmtree(tree.full(f"{LIBS}/tls"))
    assert f"{LIBS}/{soname}" in paths(find(tree))


def test_an_unusable_cache_is_a_warning_and_the_directories_tell(tree: DriverTree) -> None:
    tree.library("libcuda")
    for content, cause in (
        (b"garbage", "unsupported file format"),
        (b"ld.so-1.7.0\0\xff\xff\xff\xff", "damaged"),
    ):
        tree.file("/etc/ld.so.cache", content)
        found = find(tree)
        assert paths(found) == [f"{LIBS}/libcuda.so.{VERSION}"]
        assert len(found.warnings) == 1
        assert found.warnings[0].startswith("loader cache /etc/ld.so.cache is not used: ")
        assert cause in found.warnings[0]


def test_hostile_names_lead_nowhere_outside(tree: DriverTree, scratch: str) -> None:
    outside = DriverTree(f"{scratch}/outside")
    outside.library("libcuda")
    for path in (
        f"/../outside{LIBS}/libcuda.so.{VERSION}",
        f"{scratch}/outside{LIBS}/libcuda.so.{VERSION}",
        "relative/libcuda.so.1",
        "/a\nb/libcuda.so.1",
        "/no-utf8/libcuda.so.1",
    ):
        tree.listed.append(("libcuda.so.1", path, ARCH))
    tree.link(f"{scratch}/outside{LIBS}/libcuda.so.{VERSION}", f"{LIBS}/libcuda.so.{VERSION}")
    tree.link("../" * 20 + f"{scratch}/outside{LIBS}/libcuda.so.{VERSION}"[1:], f"{LIBS}/libcuda.so.1")
    tree.file("/etc/ld.so.cache", write(tree.listed).replace(b"no-utf8", b"\xff\xfe\xfd-utf8"[:7]))
    assert find(tree).libraries == ()


def test_a_soname_that_is_a_path_is_refused(tree: DriverTree) -> None:
    path = tree.library("libcuda")
    tree.cache()
    tree.file(path, shared_object("../../etc/evil.so", ARCH))
    found = find(tree)
    assert found.libraries == ()
    assert "its SONAME is not a file name" in found.warnings[0]

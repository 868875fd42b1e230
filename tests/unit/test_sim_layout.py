"""Simulated driver roots on disk, without device nodes: what is there, and what is left alone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

import pytest
from elftools.elf.elffile import ELFFile
from support import need, run

from nvc.base.errors import InitializationError, InputError, PermissionDenied
from nvc.discovery.driver.library_table import TABLE
from nvc.testing.sim import SimSpec, create, destroy, is_root
from nvc.testing.sim.layout import STATE, host_arch
from nvc.testing.sim.libraries import LIBRARIES, PROGRAMS, file_name
from nvc.testing.sim.prebuilt import prebuilt
from nvc.testing.sim.report import report
from nvc.testing.sim.state import SIZE, usage

VERSION = SimSpec().driver_version
pytestmark = pytest.mark.usefixtures("built_simdriver")


def made(directory: os.PathLike[str], **fields: object) -> str:
    root = os.path.join(directory, "sim")
    create(root, SimSpec(**{"device_nodes": False, **fields}))  # type: ignore[arg-type]
    return root


def read(root: str, name: str) -> str:
    with open(os.path.join(root, name), encoding="ascii") as file:
        return file.read()


def libraries(root: str) -> str:
    return os.path.join(root, "usr/lib", f"{host_arch()}-linux-gnu")


def tree(root: str) -> dict[str, tuple[int, str]]:
    """Mode, and contents or link text, of everything in a root; the state has its own life."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            mode, content = os.lstat(path).st_mode, ""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode) and not path.endswith(STATE):
                with open(path, "rb") as file:
                    content = file.read().hex()
            found[os.path.relpath(path, root)] = (mode, content)
    return found


def test_every_known_library_is_there(tmp_path: os.PathLike[str]) -> None:
    root = made(tmp_path)
    names = os.listdir(libraries(root))
    for row in TABLE:
        assert row.name == "libnvidia-nvvm70" or file_name(row, VERSION) in names  # drivers have it no more
    for library in LIBRARIES:
        path = os.path.join(libraries(root), f"{library.name}.so.{library.major or VERSION}")
        assert os.path.basename(os.path.realpath(path)) == file_name(library, VERSION)
        with open(path, "rb") as file:
            (dynamic,) = ELFFile(file).iter_segments("PT_DYNAMIC")
            tags = dynamic.iter_tags("DT_SONAME")
            assert [tag.soname for tag in tags] == [os.path.basename(path)]


def test_a_cache_of_ldconfig_itself_has_the_same_names(tmp_path: os.PathLike[str]) -> None:
    root = made(tmp_path)
    own = run(need("ldconfig"), "-p", "-C", os.path.join(root, "etc/ld.so.cache")).stdout
    run(need("ldconfig"), "-r", root, "-X", "-C", "/etc/other.cache")
    theirs = run(need("ldconfig"), "-p", "-C", os.path.join(root, "etc/other.cache")).stdout

    def sonames(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if " => " in line and ".so." in line.split(" => ")[0]]

    assert sorted(sonames(own)) == sorted(sonames(theirs))
    names = [[line.split(" ")[0] for line in sonames(text)] for text in (own, theirs)]
    assert names[0] == names[1], "in the order in which the loader looks"


def test_programs_are_elf_files(tmp_path: os.PathLike[str]) -> None:
    root = made(tmp_path)
    for name in PROGRAMS:
        path = os.path.join(root, "usr/bin", name)
        assert os.access(path, os.X_OK)
        with open(path, "rb") as file:
            assert ELFFile(file)["e_type"] == "ET_DYN"


def test_making_it_again_changes_nothing(tmp_path: os.PathLike[str]) -> None:
    root = made(tmp_path, gpus=2)
    before = tree(root)
    made(tmp_path, gpus=2)
    assert tree(root) == before
    made(tmp_path, gpus=1)
    assert tree(root) != before
    made(tmp_path, gpus=2)
    assert tree(root) == before


def test_the_umask_does_not_matter(tmp_path: os.PathLike[str]) -> None:
    before = tree(made(tmp_path))
    old = os.umask(0o077)
    try:
        assert tree(made(tmp_path)) == before
    finally:
        os.umask(old)


def test_directories_of_others_are_left_alone(tmp_path: os.PathLike[str]) -> None:
    mine = os.path.join(tmp_path, "mine")
    os.makedirs(os.path.join(mine, "proc"))
    with pytest.raises(InputError, match="not empty, and not a simulated driver"):
        create(mine, SimSpec(device_nodes=False))
    with pytest.raises(InputError, match="not the root of a simulated driver"):
        destroy(mine)
    assert os.listdir(mine) == ["proc"]
    with pytest.raises(InputError, match="not the root of a simulated driver"):
        report(mine)
    assert not is_root(mine)


def refuse(call: str) -> Callable[..., None]:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), call)

    return refused


def test_a_failure_leaves_nothing(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root: /dev cannot be filled. A file system that is full fails later."""
    monkeypatch.setattr(os, "mkfifo", refuse("mkfifo"))
    for directory in (f"{tmp_path}/a/b/sim", f"{tmp_path}/empty"):
        os.makedirs(f"{tmp_path}/empty", exist_ok=True)
        with pytest.raises(InitializationError, match="mkfifo"):
            create(directory, SimSpec(device_nodes=False, mps=True))
    assert os.listdir(tmp_path) == ["empty"] and os.listdir(f"{tmp_path}/empty") == []


def test_an_earlier_root_stays_without_the_right_to_make_nodes(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = made(tmp_path)
    before = tree(root)
    monkeypatch.setattr(os, "mknod", refuse("mknod"))
    for directory in (root, f"{tmp_path}/new"):
        with pytest.raises(PermissionDenied, match="run as root"):
            create(directory, SimSpec())
    assert tree(root) == before and os.listdir(tmp_path) == ["sim"]


def test_a_root_is_removed_whole_and_alone(tmp_path: os.PathLike[str]) -> None:
    root = made(tmp_path)
    outside = os.path.join(tmp_path, "outside")
    os.mkdir(outside)
    with open(os.path.join(outside, "kept"), "w", encoding="ascii"):
        pass
    os.symlink(outside, os.path.join(root, "usr/link"))
    destroy(root)
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert os.listdir(outside) == ["kept"]


@pytest.mark.parametrize("call", [destroy, lambda path: create(path, SimSpec(device_nodes=False))])
def test_a_directory_of_somebody_else_is_refused(tmp_path: os.PathLike[str], call: Callable[[str], None]) -> None:
    """Whatever marker is in it; a link too, which may lead to a root of ours."""
    root = made(tmp_path)
    before = tree(root)
    os.symlink(root, os.path.join(tmp_path, "link"))
    with pytest.raises(InputError, match="link: is a link; name the directory itself"):
        call(os.path.join(tmp_path, "link"))
    os.chown(root, 1234, 1234)
    with pytest.raises(InputError, match=f"{root}: belongs to user 1234; name a new directory"):
        call(root)
    assert tree(root) == before


@pytest.mark.parametrize("call", [destroy, lambda path: create(path, SimSpec(device_nodes=False))])
def test_another_directory_takes_its_place_meanwhile(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch, call: Callable[[str], None]
) -> None:
    """Between the look at the marker and the removal: what is there by now is left alone."""
    root, other = made(tmp_path), os.path.join(tmp_path, "other")
    os.makedirs(os.path.join(other, "precious"))

    def swap(path: str) -> list[object]:
        if os.path.exists(other):
            os.rename(root, os.path.join(tmp_path, "moved"))
            os.rename(other, root)
        return usage(path)

    monkeypatch.setattr("nvc.testing.sim.state.usage", swap)
    with suppress(InitializationError):
        call(root)
    assert os.listdir(root) == ["precious"]


def test_a_file_in_the_way(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "file")
    with open(path, "w", encoding="ascii"):
        pass
    with pytest.raises(InitializationError, match="create simulated driver"):
        create(path, SimSpec(device_nodes=False))


def test_without_the_compiled_part(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVC_SIMDRIVER", str(tmp_path))
    with pytest.raises(InitializationError) as caught:
        create(os.path.join(tmp_path, "sim"), SimSpec(device_nodes=False))
    assert "not built; build it with `make -C native/simdriver" in str(caught.value)
    assert not os.path.exists(os.path.join(tmp_path, "sim"))


def test_the_compiled_part_is_found_in_the_checkout(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVC_SIMDRIVER")
    assert os.path.samefile(prebuilt(), os.path.join(stage, "lib/nvc/simdriver"))


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"nvcsim01" + bytes(2 * SIZE), b"y" * SIZE])
def test_a_foreign_state_has_no_users(content: bytes, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "state")
    with open(path, "wb") as state:
        state.write(content)
    assert usage(path) == []

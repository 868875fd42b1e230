"""The inventory's file: ours alone, whole or nothing, and quick to distrust."""

from __future__ import annotations

import marshal
import os
import resource
import struct
import sys

import pytest

from nvc.discovery import inventory
from nvc.model.request import DriverOptions

VALUE = (("key", 1), (("/usr/lib", (1, 2, 3)),), ("facts", b"bytes", None, (1.5, True)))


@pytest.fixture
def directory(scratch: str) -> str:
    path = f"{scratch}/run"
    os.mkdir(path, 0o700)
    return path


def test_the_file_is_for_its_owner_alone_whatever_the_umask(directory: str) -> None:
    for umask in (0o000, 0o777):
        before = os.umask(umask)
        try:
            assert inventory.store("a", VALUE, directory)
        finally:
            os.umask(before)
        assert os.stat(f"{directory}/a").st_mode & 0o7777 == 0o600


def test_a_file_that_others_may_read_or_write_is_not_read(directory: str) -> None:
    inventory.store("a", VALUE, directory)
    for mode in (0o640, 0o604, 0o620, 0o602):
        os.chmod(f"{directory}/a", mode)
        assert inventory.load("a", directory) is None
    os.chmod(f"{directory}/a", 0o600)
    assert inventory.load("a", directory) == VALUE


def test_a_directory_that_others_may_write_is_not_used(directory: str) -> None:
    inventory.store("a", VALUE, directory)
    for mode in (0o770, 0o707):
        os.chmod(directory, mode)
        assert inventory.load("a", directory) is None
        assert not inventory.store("b", VALUE, directory)
    os.chmod(directory, 0o755)
    assert inventory.load("a", directory) == VALUE


def test_links_and_other_kinds_of_files_are_not_followed(directory: str, scratch: str) -> None:
    inventory.store("a", VALUE, directory)
    os.symlink("a", f"{directory}/link")
    os.mkfifo(f"{directory}/pipe", 0o600)
    os.mkdir(f"{directory}/directory", 0o700)
    for name in ("link", "pipe", "directory"):
        assert inventory.load(name, directory) is None
    os.symlink(directory, f"{scratch}/elsewhere")
    assert inventory.load("a", f"{scratch}/elsewhere") is None
    assert inventory.load("a", f"{scratch}/nowhere") is None
    assert not inventory.store("a", VALUE, f"{scratch}/nowhere")


def test_a_damaged_file_counts_as_nothing(directory: str) -> None:
    inventory.store("a", VALUE, directory)
    with open(f"{directory}/a", "rb") as file:
        good = file.read()
    for size in range(len(good)):
        write(directory, good[:size])
        assert inventory.load("a", directory) is None
    write(directory, good + b"\0")
    assert inventory.load("a", directory) is None
    for at in range(len(good)):  # each bit counts: what is read is what was written
        for bit in range(8):
            write(directory, good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
            assert inventory.load("a", directory) is None, (at, bit)


CODE = marshal.dumps(compile("a", "", "exec"))
NO_VALUES = {
    "unknown": b"\xff" * 40,
    "empty": b"",
    "cut off": b")\2",
    "larger than the memory": b"(\xff\xff\xff\x7f",
    "a reference to nothing": b"(\1\0\0\0r\0\0\0\0",
    "code": CODE,
    "code that cannot be": CODE[:1] + b"\xff" * 4 + CODE[5:],
    "no tuple": marshal.dumps("text"),
}


@pytest.mark.parametrize("content", NO_VALUES.values(), ids=NO_VALUES)
def test_bytes_that_are_no_value_count_as_nothing(directory: str, content: bytes) -> None:
    """Though the header fits."""
    inventory.store("a", VALUE, directory)
    write(directory, inventory._header(content) + content)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20), hard))
    try:
        assert inventory.load("a", directory) is None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def write(directory: str, content: bytes) -> None:
    with open(f"{directory}/a", "wb") as file:
        file.write(content)


def test_another_pythons_file_counts_as_nothing(directory: str) -> None:
    inventory.store("a", VALUE, directory)
    with open(f"{directory}/a", "rb") as file:
        good = file.read()
    assert struct.unpack_from("<8sII", good)[2] == sys.hexversion
    write(directory, good[:12] + struct.pack("<I", sys.hexversion + 1) + good[16:])
    assert inventory.load("a", directory) is None


def test_what_is_too_large_is_not_kept(directory: str) -> None:
    assert not inventory.store("a", bytes(inventory.LIMIT), directory)
    assert os.listdir(directory) == []
    with open(f"{directory}/a", "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.truncate(inventory.LIMIT + 1)
    assert inventory.load("a", directory) is None


def test_a_failed_write_leaves_the_old_value(directory: str) -> None:
    inventory.store("a", VALUE, directory)
    os.mkdir(f"{directory}/b")
    assert not inventory.store("b", VALUE, directory)  # a directory stands in its place
    assert inventory.load("a", directory) == VALUE
    assert sorted(os.listdir(directory)) == ["a", "b"]


def test_forget_drops_the_file_of_that_root(directory: str, scratch: str) -> None:
    roots = [f"{scratch}/one", f"{scratch}/two"]
    for root in roots:
        os.mkdir(root)
        assert inventory.store(inventory.file_name(os.stat(root)), VALUE, directory)
    inventory.forget(DriverOptions(root=roots[0]), directory)
    assert inventory.load(inventory.file_name(os.stat(roots[0])), directory) is None
    assert inventory.load(inventory.file_name(os.stat(roots[1])), directory) == VALUE
    inventory.forget(DriverOptions(root=roots[0]), directory)
    inventory.forget(DriverOptions(root=f"{scratch}/none"), directory)

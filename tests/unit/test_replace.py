"""Files that are replaced at once."""

from __future__ import annotations

import os
import stat

import pytest

from nvc.base.files import replace_file


@pytest.mark.parametrize("relative", [False, True])
def test_there_is_one_file_with_the_mode(scratch: str, relative: bool) -> None:
    old = os.umask(0o077)
    directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for data in (b"one", b"another"):
            left = f"{scratch}/.file.{os.getpid()}"  # of a process with our number that was killed
            with open(left, "wb") as file:
                file.write(b"left")
            if relative:
                replace_file("file", data, 0o644, directory)
            else:
                replace_file(f"{scratch}/file", data, 0o644, sync=False)
            with open(f"{scratch}/file", "rb") as file:
                assert file.read() == data
            assert stat.S_IMODE(os.stat(f"{scratch}/file").st_mode) == 0o644
            assert os.listdir(scratch) == ["file"]
    finally:
        os.close(directory)
        os.umask(old)


def test_owner_and_mode_of_another_file(scratch: str) -> None:
    path = f"{scratch}/file"
    replace_file(path, b"one", 0o640)
    os.chown(path, 7, 8)
    replace_file(path, b"two", 0o600, like=os.stat(path))
    status = os.stat(path)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (7, 8, 0o640)


def test_a_failure_changes_nothing(scratch: str) -> None:
    os.mkdir(f"{scratch}/file")
    with pytest.raises(IsADirectoryError):
        replace_file(f"{scratch}/file", b"data", 0o600)
    assert os.listdir(scratch) == ["file"]

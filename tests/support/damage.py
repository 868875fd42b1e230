"""What may be wrong with files of nvc's state: for each kind of file, ways to spoil the one at a path."""

from __future__ import annotations

import os
from collections.abc import Callable

from nvc.model.slices import layout

STRANGER = 65534


def overwrite(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def replaced_by_a_link(path: str) -> None:
    os.rename(path, f"{path}.away")
    os.symlink(f"{path}.away", path)


def replaced_by_a_pipe(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


#: What may be wrong with any file of the state.
ANY: dict[str, Callable[[str], None]] = {
    "empty": lambda path: os.truncate(path, 0),
    "of another owner": lambda path: os.chown(path, STRANGER, STRANGER),
    "that others may write": lambda path: os.chmod(path, 0o666),
    "a link": replaced_by_a_link,
    "a pipe": replaced_by_a_pipe,
}
ABOUT = ANY | {
    "cut short": lambda path: os.truncate(path, os.path.getsize(path) - 3),
    "of other words": lambda path: overwrite(path, 0, b"lines x"),
    "of another type": lambda path: overwrite(path, 0, b"7 "),
    "gone": os.unlink,
}
QUOTA = ANY | {
    "cut short": lambda path: os.truncate(path, layout.QUOTA_SIZE - 1),
    "too long": lambda path: os.truncate(path, layout.QUOTA_SIZE + 1),
    "of another version": lambda path: overwrite(path, 8, bytes([layout.VERSION + 1])),
    "of no kind": lambda path: overwrite(path, 0, b"x"),
    "of other devices": lambda path: overwrite(path, layout.QUOTA_HEADER.size, b"x" * 16),
    "of too many devices": lambda path: overwrite(path, 24, b"\xff\xff\xff\xff"),
}
POLICY = ANY | {"of other words": lambda path: overwrite(path, 0, b"x")}
POLICY.pop("empty")  # nothing is laid down
CALIBRATION = {"of other words": lambda path: overwrite(path, 0, b"x"), **ANY}
CALIBRATION.pop("empty")  # nothing was measured
#: Of an MPS server's `about`.
RECORD = ANY | {
    "cut short": lambda path: os.truncate(path, os.path.getsize(path) - 1),
    "of other words": lambda path: overwrite(path, 0, b"x"),
}

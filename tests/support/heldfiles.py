"""Holds up whoever opens a file: run as a program in a mount namespace, it is asked for leave, and never answers.

Its words are what is marked (`file`, `mount` or `system`) and paths. `ready` is printed once all are. When the
program ends the kernel gives it up, and whoever waits goes on (fanotify(7)).
"""

from __future__ import annotations

import ctypes
import os
import sys

CLASS_CONTENT, CLOEXEC = 4, 1
ADD = 1
KINDS = {"file": 0, "mount": 0x10, "system": 0x100}
OPEN_PERM = 0x10000
AT_FDCWD = -100


def main(kind: str, *paths: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fanotify_mark.argtypes = (
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_char_p,
    )
    group = libc.fanotify_init(CLASS_CONTENT | CLOEXEC, os.O_RDONLY)
    for path in paths:
        if libc.fanotify_mark(group, ADD | KINDS[kind], OPEN_PERM, AT_FDCWD, os.fsencode(path)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A file system whose server never answers: run as a program in a mount namespace, it mounts one over a path.

It speaks the first words of FUSE (linux/fuse.h) and then reads requests for ever. `ready` is printed once it is
mounted. When the program ends the kernel gives it up, and whoever waits for it gets an error.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

INIT = 26
#: Length, error, request; then version, and what else matters nothing here.
REPLY = struct.Struct("<IiQIIII48x")
READ_MAX = 1 << 17


def main(path: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR)
    kind = stat.S_IFMT(os.stat(path).st_mode)
    options = f"fd={fd},rootmode={kind:o},user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    _, code, request = struct.unpack_from("<IIQ", os.read(fd, READ_MAX))
    assert code == INIT
    os.write(fd, REPLY.pack(REPLY.size, 0, request, 7, 31, 0, 0))
    print("ready", flush=True)
    while os.read(fd, READ_MAX):
        pass


if __name__ == "__main__":
    main(sys.argv[1])

"""A file system whose server never answers: run as a program in a mount namespace, it mounts one over a path.

It speaks the first words of FUSE (linux/fuse.h) and then reads requests for ever. `ready` is printed once it is
mounted. When the program ends the kernel gives it up, and whoever waits for it gets an error.

With `exec` after the path, of a regular file, the program opens that file and calls execve(2), which closes it. Its
server, a child, answers all but that (FLUSH), so the call lasts until the server ends. `held` is printed meanwhile.
A further word is what the program is called then.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

GETATTR, OPEN, FLUSH, INIT = 3, 14, 25, 26
#: Length, error, request; then version, and what else matters nothing here.
REPLY = struct.Struct("<IiQIIII48x")
READ_MAX = 1 << 17
#: Of a file of 100 bytes.
ATTRIBUTES = struct.pack("<QII9Q10I", 100, 0, 0, 1, 4096, 8, *[0] * 6, stat.S_IFREG | 0o644, 1, *[0] * 8)
OPENED = struct.pack("<QII", 1, 0, 0)


def mounted(path: str) -> int:
    """Mount one over `path`: the descriptor by which it is served."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    kind = stat.S_IFMT(os.stat(path).st_mode)
    options = f"fd={fd},rootmode={kind:o},user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    _, code, request = struct.unpack_from("<IIQ", os.read(fd, READ_MAX))
    assert code == INIT
    os.write(fd, REPLY.pack(REPLY.size, 0, request, 7, 31, 0, 0))
    return fd


def main(path: str) -> None:
    fd = mounted(path)
    print("ready", flush=True)
    while os.read(fd, READ_MAX):
        pass


def serve(fd: int) -> None:
    while True:
        _, code, request = struct.unpack_from("<IIQ", os.read(fd, READ_MAX))
        if code == FLUSH:
            print("held", flush=True)
        elif code in (GETATTR, OPEN):
            data = ATTRIBUTES if code == GETATTR else OPENED
            os.write(fd, struct.pack("<IiQ", 16 + len(data), 0, request) + data)


def execute(path: str, name: str = "") -> None:
    ready, go = os.pipe()
    if os.fork() == 0:
        fd = mounted(path)
        os.write(go, b"x")
        serve(fd)
    os.read(ready, 1)
    os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    print(os.getpid(), flush=True)
    if name:
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(name)
    os.execv("/bin/sleep", ["sleep", "600"])


if __name__ == "__main__":
    execute(sys.argv[1], *sys.argv[3:]) if sys.argv[2:] else main(sys.argv[1])

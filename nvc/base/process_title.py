"""How a process that stays is shown: by name in `pgrep -x`, `pidof` and `top`, with its words in `ps -f` and htop.

Otherwise the kernel has the interpreter's name and words for it.
"""

from __future__ import annotations

import os
import shlex

from nvc.base.files import closing

#: Fields of /proc/PID/stat (proc(5)) after the name: where the words of execve(2) begin and end in memory.
_ARG_START, _ARG_END = 45, 46
NAME_MAX = 15  # bytes


def show_as(name: str, words: list[str]) -> None:
    """Show this process as the program `name` with `words`. What the kernel does not let be written stays.

    Where the last byte of the words is not zero, /proc/PID/cmdline ends with the first zero (fs/proc/base.c), as
    for setproctitle(3).
    """
    title = shlex.join([name, *words]).encode("utf-8", "surrogateescape")
    try:
        _write("/proc/self/comm", name.encode()[:NAME_MAX])
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start - 2
        if start and room > 0:
            _write("/proc/self/mem", title[:room].ljust(room + 1, b"\0") + b"\1", start)
    except OSError:
        pass  # a kernel or a security module that does not allow it: this is for people only


def _write(path: str, data: bytes, offset: int = 0) -> None:
    with closing(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
        if offset:
            os.lseek(fd, offset, os.SEEK_SET)  # `comm` has no place to seek to
        os.write(fd, data)

"""How a program of nvc talks, ends and is shown: lines on standard error, exit codes, its name in `ps`."""

from __future__ import annotations

import posix
import sys

from nvc.base.errors import InternalError, NvcError, unforeseen
from nvc.base.types import Callable, NoReturn

INTERRUPTED = 128 + 2  # as a shell reports a process that SIGINT ended
BROKEN_PIPE = 128 + 13
#: Where code is, below the prefix of an installation.
_CODE = "/lib/nvc/python"
#: Fields of /proc/PID/stat (proc(5)) after the name: where the words of execve(2) begin and end in memory.
_ARG_START, _ARG_END = 45, 46
_NAME_MAX = 15  # bytes


class Silent:
    """The log where none was asked for."""

    def step(self, *_: object) -> None:
        """Say nothing."""

    facts = selection = plan = done = warnings = error = step


def put(fd: int, text: str) -> None:
    """Write all of `text` to a descriptor; names of files keep their bytes. Raises OSError."""
    data = memoryview(text.encode("utf-8", "surrogateescape"))
    while data:
        data = data[posix.write(fd, data) :]


def tell(fd: int, text: str) -> None:
    """Write `text` as far as it is taken. Never fails: there is nobody left to tell."""
    try:
        put(fd, text)
    except OSError:
        pass


def say(program: str, text: object) -> None:
    """One line on standard error, `<program>: <text>`, if it is taken."""
    tell(2, f"{program}: {text}\n")


def guarded(program: str, work: Callable[[], int]) -> int:
    """The exit code that `work` returns, or that of what it raises, which becomes a line on standard error.

    A bug of ours also shows its traceback.
    """
    try:
        return work()
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as raised:
        error = raised if isinstance(raised, NvcError) else unforeseen(raised)
        say(program, error.line())
        if isinstance(error, InternalError):
            try:
                sys.excepthook(*sys.exc_info())  # prints without importing `traceback`
                sys.stderr.flush()
            except OSError:
                pass
        return error.exit_code


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's clean-up, which takes time."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, AttributeError):  # nobody reads on, or the descriptors were closed from the start
        pass
    posix._exit(code)


def programs() -> str:
    """The directory of this installation's programs, "" where this code is not installed."""
    found = (entry[: -len(_CODE)] + "/bin" for entry in sys.path if entry.endswith(_CODE))
    return next(found, "")


def show_as(name: str, words: list[str]) -> None:
    """Show this process as the program `name` with `words`, for which the kernel has those of the interpreter.

    By name in `pgrep -x`, `pidof` and `top`, with its words in `ps -f` and htop. What the kernel does not let be
    written stays. Where the last byte of the words is not zero, /proc/PID/cmdline ends with the first zero
    (fs/proc/base.c), as for setproctitle(3).
    """
    import shlex

    title = shlex.join([name, *words]).encode("utf-8", "surrogateescape")
    try:
        _write("/proc/self/comm", name.encode()[:_NAME_MAX])
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start - 2
        if start and room > 0:
            _write("/proc/self/mem", title[:room].ljust(room + 1, b"\0") + b"\1", start)
    except OSError:
        pass  # a kernel or a security module that does not allow it: this is for people only


def _write(path: str, data: bytes, offset: int = 0) -> None:
    with open(path, "r+b", 0) as file:
        if offset:
            file.seek(offset)  # `comm` has no place to seek to
        file.write(data)

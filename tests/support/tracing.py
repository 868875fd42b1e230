"""What the tests of the tracer share: a file system bpf, and a program that makes the driver's ioctls."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from nvc.kernel.objects import News
from nvc.kernel.tracer import Tracer, flat_path

from . import CLEAN_ENV, REPO, need, run, until
from .builds import kept

WARN = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Werror")
_libc = ctypes.CDLL(None, use_errno=True)


def unmount(directory: str) -> None:
    """Take a file system away; what is pinned in it goes with it."""
    if _libc.umount2(os.fsencode(directory), 2) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)


def build_calls(bits: str) -> str:
    """tests/kernel/rm_calls.c as a program of 32 or 64 bits."""

    def build(directory: str) -> str:
        program = os.path.join(directory, "rm_calls")
        source = os.path.join(REPO, "tests/kernel/rm_calls.c")
        run(need("gcc"), f"-m{bits}", *WARN, "-O1", "-o", program, source, "-lpthread")
        return program

    return kept(f"rm_calls-{bits}", build)


class Caller:
    """The program, which does what it is told a line at a time."""

    def __init__(self, program: str, path: str = "/dev/null", before: Sequence[str] = ()) -> None:
        """`before`: words that start the program."""
        self.process = subprocess.Popen(
            [*before, program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN_ENV, bufsize=0
        )
        self.pid = self.process.pid

    def __enter__(self) -> Caller:
        self.expect("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def tell(self, line: str) -> None:
        """Have it do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def hear(self) -> str:
        """The next line that it writes; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def expect(self, line: str) -> None:
        """Fail unless that is what it writes next."""
        assert self.hear() == line

    def ask(self, line: str) -> list[str]:
        """What it answers in one line, as words."""
        self.tell(line)
        return self.hear().split()

    def all(self) -> list[str]:
        """End its input; all that it still writes."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        return self.process.stdout.read().decode().splitlines()


def wait_for(tracer: Tracer, kind: int, pid: int) -> list[News]:
    """All news of a process, until there is some of that kind."""
    seen: list[News] = []

    def come() -> bool:
        seen.extend(each for each in tracer.news() if each.pid == pid)
        return any(each.kind == kind for each in seen)

    until(come, lambda: f"no news {kind} of {pid}: {seen}")
    return seen


def changed(directory: Path, **entries: int) -> str:
    """The program as another version would have it: other bytes, and maps of other sizes."""
    head, _, code = Path(flat_path()).read_bytes().partition(b"\n")
    document = json.loads(head)
    for each in document["maps"]:
        each["entries"] = entries.get(each["name"], each["entries"])
    path = directory / "other.bin"
    path.write_bytes(json.dumps(document).encode() + b" \n" + code)
    return str(path)

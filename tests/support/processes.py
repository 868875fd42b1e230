"""Children of a test that may change who they are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator

from . import CLEAN_ENV, PATIENCE

#: Children that outlive the test that started them: daemons of what many tests share.
SHARED: set[int] = set()


def children() -> set[int]:
    """The processes that this one has started and not waited for, apart from SHARED."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
    return found - SHARED


def in_child(function: Callable[[], str]) -> str:
    """What `function` returns, or the text of its error, in a forked child that may change who it is."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(send, text.encode()[:4096])
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(pid, 0)
    return text


def become(user: int) -> None:
    """Makes this process an ordinary user's, for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def enter_user_namespace(setgroups: bool) -> None:
    """Root of a user namespace that knows root alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (
        ("setgroups", "allow" if setgroups else "deny"),
        ("uid_map", "0 0 1"),
        ("gid_map", "0 0 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


@contextlib.contextmanager
def in_namespace(script: str) -> Iterator[int]:
    """A process in a mount namespace of its own, once the script has mounted there what a test wants."""
    words = ["unshare", "--mount", "--propagation=private", "sh", "-ec", f"{script}\necho ready\nexec cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=CLEAN_ENV) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(timeout=PATIENCE)

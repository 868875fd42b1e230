"""What is compiled for tests: once, though several processes of tests run at a time, and kept for the next run."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator

from . import REPO, run
from .sources import sources

_KEPT = os.path.join(REPO, "build/tests")


@contextlib.contextmanager
def alone(what: str = "") -> Iterator[None]:
    """Wait until no other process of tests builds this in this checkout; without a name, what installations have.

    Others go on meanwhile: a build under sanitizers takes as long as hundreds of tests that do not want it. Neither
    the wait nor what is built counts as time of a test (support/bound.py): compilers have bounds of their own.
    """
    os.makedirs(_KEPT, exist_ok=True)
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with open(os.path.join(_KEPT, f".lock{what}"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)


def make(*words: str, folder: str = ".", out: str = "", then: Callable[[], object] = lambda: None) -> None:
    """Run make with these goals and variables in the checkout, or in a folder of it that builds into `out`.

    `then` is called before another process of tests may make the same: it can take what the goals write anew. With
    settings of its own, what is built into `out` is no part of an installation.
    """
    what = f"-{os.path.basename(out)}" if out and words else ""
    if out:  # make splits names at spaces: below the checkout, names say nothing of where that is
        words = (f"OUT={os.path.relpath(out, os.path.join(REPO, folder))}", *words)
    with alone(what):
        command = ("make", "-s", "--no-print-directory", "-C", os.path.join(REPO, folder))
        run(*command, *words, timeout=600, env=dict(os.environ))
        then()


@functools.cache
def _state() -> str:
    """A digest of all C code in the checkout."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sources(".c", ".h", ".def", ".map", "Makefile", "builds.py"):
        with open(os.path.join(REPO, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def kept(name: str, build: Callable[[str], str]) -> str:
    """The path of what `build(directory)` makes in that directory and returns the path of.

    It is made when the first test wants it, and again when any C code of the checkout has changed. `name` says
    what it is; two builds with different flags have different names.
    """
    directory = os.path.join(_KEPT, name)
    mark = os.path.join(directory, ".made")
    with alone(f"-{name}"):
        try:
            with open(mark, encoding="utf-8") as text:
                state, _, path = text.read().partition(" ")
            if state == _state():
                return path
        except FileNotFoundError:
            pass
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        path = build(directory)
        with open(mark, "w", encoding="utf-8") as text:
            text.write(f"{_state()} {path}")
        return path

"""What the tests share: a container's rootfs, real runtimes to run it, and the staged tree under test."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STAGE = os.environ.get("NVC_STAGE", os.path.join(REPO, "build", "stage"))
#: Where the bundle keeps programs for hosts that lack them.
TOOLS = os.environ.get("NVC_TOOLS", "")

#: Bytes.
MIB, GIB = 1 << 20, 1 << 30
#: Seconds that a test waits for what must come, on a machine that may be busy with anything else.
PATIENCE = 180.0
#: Whether random choices differ from run to run, as in `make nightly`; otherwise each run makes the same ones.
EXPLORE = "NVC_EXPLORE" in os.environ


def examples(many: int) -> int:
    """How many examples a property test tries: `many` when it explores, else a tenth, the same ones each time."""
    return many if EXPLORE else max(10, many // 10)


T = TypeVar("T")

#: What a hook gets from a careful caller, and what every child of a test gets unless it says more.
CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def need(tool: str) -> str:
    """The path of a program that a test cannot do without. A missing one is a failure, never a skip."""
    found = shutil.which(tool, path=f"{TOOLS}:{CLEAN_ENV['PATH']}" if TOOLS else CLEAN_ENV["PATH"])
    if found is None:
        raise AssertionError(f"{tool} is missing: run `make setup`")
    return found


def run(
    *argv: str | os.PathLike[str],
    check: bool = True,
    env: dict[str, str] | None = None,
    timeout: float = PATIENCE,
    **options: object,
) -> subprocess.CompletedProcess[str]:
    """Run a program with its output captured as text; a failure shows what it printed.

    The environment is `CLEAN_ENV` unless `env` is given. `timeout` is in seconds.
    """
    from .begun import placed, shared, takes

    done: subprocess.CompletedProcess[str]
    place, words = placed(argv)
    if env in (None, CLEAN_ENV) and not options and takes(words):
        done = shared(STAGE)(*words[1:], check=False, place=place)
    else:
        done = subprocess.run(  # type: ignore[call-overload]
            argv,
            env=CLEAN_ENV if env is None else env,
            timeout=timeout,
            **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options},
        )
    if check and done.returncode != 0:
        shown = f"{done.stdout or ''}{done.stderr or ''}"
        raise AssertionError(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{shown}")
    return done


def until(found: Callable[[], T], about: Callable[[], object] = lambda: "it did not come about") -> T:
    """What `found()` returns, once that is true. For what no file descriptor tells of: it is asked again and again.

    Raises AssertionError with what `about()` says when PATIENCE is over.
    """
    begin = time.monotonic()
    while not (seen := found()):
        waited = time.monotonic() - begin
        assert waited < PATIENCE, about()
        select.select([], [], [], min(0.01 + waited / 10, 0.1))  # to ask costs more than to be a little late
    return seen

"""Tenants of a real GPU side by side, by programs of PyTorch (tests/gpu/loads.py): plain, or each in a slice."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import STAGE, gpus

PROGRAM = os.path.join(os.path.dirname(__file__), "../gpu/loads.py")
READY = 90.0  # seconds until all have begun


class Tenant(NamedTuple):
    """One program: its kind of tests/gpu/loads.py, and the options of `vgpu run`; None: without a slice."""

    kind: str
    options: tuple[str, ...] | None = None
    rate: float = 0.0  # rounds of a kernel in a microsecond, as measured alone
    before: tuple[str, ...] = ()  # words in front of the program's
    processes: int = 1  # of the slice, all with the same work


class Had(NamedTuple):
    """What one tenant had in the window."""

    kind: str
    steps: int
    p50: float  # milliseconds of a step
    p99: float
    longest: float
    seconds: tuple[int, ...]  # steps in each second of the window
    rate: float

    def a_second(self) -> float:
        return self.steps / len(self.seconds)


class Failed(AssertionError):
    """A tenant that gave no figures, with what it said."""


def together(
    tenants: Sequence[Tenant], seconds: float = 10, meanwhile: Callable[[], object] = lambda: None,
    late: float = 30,
) -> list[Had]:  # fmt: skip
    """Run them at the same time, and return what each had in a window of so many seconds.

    `meanwhile` is called 2 s before the window begins. The last step may end `late` seconds after the window.
    """
    with tempfile.TemporaryDirectory(prefix="nvc-loads-") as scratch:
        os.chmod(scratch, 0o755)
        go = os.path.join(scratch, "go")
        running = [_start(one, go, seconds, f"{scratch}/{at}") for at, one in enumerate(tenants)]
        try:
            until = time.monotonic() + READY
            rates = [float(_line(process, until, errors).split()[1]) for process, errors in running]
            with open(f"{go}.new", "w", encoding="ascii") as file:
                file.write(str(time.monotonic_ns() + 2_000_000_000))
            os.rename(f"{go}.new", go)
            meanwhile()
            until = time.monotonic() + seconds + late
            found = [json.loads(_line(process, until, errors)) for process, errors in running]
        finally:
            for process, _ in running:
                process.kill()
                process.wait()
    return [_had(one, rate) for one, rate in zip(found, rates)]


def _start(tenant: Tenant, go: str, seconds: float, errors: str) -> tuple[subprocess.Popen[bytes], str]:
    python = shutil.which("python3") or "python3"  # the one that has PyTorch, which runs these tests or not
    options = f"--go={go}", f"--seconds={seconds}", f"--rate={tenant.rate}", f"--processes={tenant.processes}"
    words = [*tenant.before, python, PROGRAM, tenant.kind, *options]
    if tenant.options is not None:
        words = [os.path.join(STAGE, "bin/nvc-cli"), "vgpu", "run", *tenant.options, "--", *words]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NVC_STAGE")}
    environment |= gpus.visible()
    with open(errors, "wb") as file:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, env=environment), errors


def _line(process: subprocess.Popen[bytes], until: float, errors: str) -> str:
    assert process.stdout is not None
    data = b""
    while not data.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise Failed(f"nothing in time; {_said(errors)}")
        part = os.read(process.stdout.fileno(), 1)
        if not part:
            raise Failed(f"it ended with {process.wait()}; {_said(errors)}")
        data += part
    return data.decode()


def _said(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()[-1500:].strip()


def _had(found: dict[str, Any], rate: float) -> Had:
    return Had(
        found["kind"], found["steps"], found["p50"], found["p99"], found["longest"], tuple(found["seconds"]), rate
    )

"""Programs in slices that share an MPS server."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

from . import CLEAN_ENV, PATIENCE, REPO
from .begun_run import started
from .nvcd import Place

with open(os.path.join(REPO, "tests/support/mps_tenant.py"), encoding="utf-8") as file:
    PROGRAM = file.read()  # as text: not every user may read the file


class Tenant:
    """One program, in a slice of `vgpu run` with these options."""

    def __init__(self, place: Place, launcher: str, driver: str, *words: str, **variables: str) -> None:
        command = place.sliced(launcher, driver, *words)
        self.process = started(
            [*command, "/usr/bin/python3", "-c", PROGRAM], {**CLEAN_ENV, **variables}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        assert said[:1] == ["ready"], self.process.communicate(timeout=PATIENCE)[1]
        self.pid = int(said[1])

    def do(self, command: str) -> tuple[int, str]:
        """The driver's code for a command, and a value."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        code, value = self.process.stdout.readline().split()
        return int(code), value

    def kill(self) -> None:
        """End it as the kernel does when memory is short."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)

    def end(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.communicate(timeout=PATIENCE)


class Tenants:
    """All of a test."""

    def __init__(self, place: Place, launcher: str, driver: str) -> None:
        self.place, self.launcher, self.driver = place, launcher, driver
        self.all: list[Tenant] = []

    def start(self, *words: str, **variables: str) -> Tenant:
        """One that runs."""
        found = Tenant(self.place, self.launcher, self.driver, *words, **variables)
        self.all.append(found)
        return found

    def end(self) -> None:
        """End all."""
        for one in self.all:
            one.end()


def shared(state: dict[str, Any]) -> dict[str, Any]:
    """What nvcd says of the one server that slices share; {}: there is none."""
    return next((one for one in state["mps"] if one["key"] == "shared"), {})

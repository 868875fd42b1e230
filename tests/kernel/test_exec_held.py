"""A tenant's process whose execve(2) never ends: who reads most of its /proc waits. Nobody may be held by it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, REPO, run
from support.nvcd import Place, ask, eventually
from support.rootfs import LIBS

from nvc.kernel import processes
from nvc.kernel.processes import has_ended, open_root, start_of
from nvc.slices.store.process_info import is_ending, is_here, mount_namespace

HELD = (sys.executable, os.path.join(REPO, "tests/support/silentfs.py"))
Start = Callable[..., "Held"]


class Held:
    """Such a process, started in a session of its own by `words`."""

    def __init__(self, path: str, *words: str, **variables: str) -> None:
        open(path, "w", encoding="ascii").close()
        pipe, env = subprocess.PIPE, {**CLEAN_ENV, **variables}
        words = (*words, *HELD, path, "exec")
        self.process = subprocess.Popen(words, stdout=pipe, env=env, start_new_session=True)
        assert self.process.stdout is not None
        self.pid = int(self._line())
        assert self._line() == b"held\n"

    def _line(self) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None and select.select([stdout], [], [], PATIENCE)[0]
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(stdout.fileno(), 1)
        return line

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def held() -> Iterator[Start]:
    """Starts one."""
    started: list[Held] = []

    def start(*words: str, **variables: str) -> Held:
        started.append(Held(*words, **variables))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_it_is_waited_for_once(scratch: str, held: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "looks", processes.Looks())
    one = held(f"{scratch}/file", "unshare", "--mount", "--propagation=private")
    begun = time.monotonic()
    assert mount_namespace(one.pid)[1] == one.pid and not has_ended(f"/proc/{one.pid}")
    assert not is_ending(one.pid)
    assert time.monotonic() - begun < processes.PATIENCE / 2
    with pytest.raises(TimeoutError, match="execve"):
        open_root(one.pid)
    for _ in range(1000):  # it is remembered
        assert is_here(one.pid, 1)
        with pytest.raises(TimeoutError, match="execve"):
            start_of(f"/proc/{one.pid}")
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.driver(gpus=1)
@pytest.mark.usefixtures("shim")
def test_others_are_served(place: Place, driver: str, launcher: str, scratch: str, held: Start) -> None:
    """By nvcd, which finds it at its start, and when it looks again; by `vgpu ls` and `vgpu run`."""
    libraries = f"{driver}{LIBS}"
    one = held(f"{scratch}/before", *place.sliced(launcher, driver, "--memory=64m"), LD_LIBRARY_PATH=libraries)
    place.start(f"--root={driver}")
    two = held(f"{scratch}/after", *place.sliced(launcher, driver, "--memory=64m"), LD_LIBRARY_PATH=libraries)
    other = place.tenant(uuids=(ask(place)["devices"][0]["uuid"],))
    eventually(place, lambda state: other.key in [each["key"] for each in state["slices"]])
    first = ask(place)["now"]
    eventually(place, lambda state: state["now"] - first > 5.5e9)  # by then it has looked at everything anew
    listed: Any = json.loads(run(*place.enter(launcher, "vgpu", "ls", "--format=json"), timeout=PATIENCE).stdout)
    assert len(listed["slices"]) == 3, listed
    words = place.sliced(launcher, driver, "--memory=64m")
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": libraries}
    assert run(*words, "echo", "runs", env=env, timeout=PATIENCE).stdout == "runs\n"
    assert one.process.poll() is None and two.process.poll() is None

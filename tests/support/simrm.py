"""The simulated driver's resource manager (native/simdriver/rm): a server for a root.

    def test_stop(sim_root, simrm):
        root = sim_root()
        with serve(root, simrm) as rm:            # rm.path is what /dev/nvidiactl is elsewhere
            ...

In a World, `serve(root, simrm, world)`: the server looks at that clock and takes no part. Nothing stays mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from nvc.testing.sim import state
from nvc.testing.sim.layout import RM
from support import CLEAN_ENV, PATIENCE

from .builds import kept, make
from .virtual import World

MNT_DETACH = 2  # umount2(2)
libc = ctypes.CDLL(None, use_errno=True)


class Group(NamedTuple):
    """A channel group that computes, as the resource manager of tests has it."""

    client: int
    handle: int
    pid: int  # as the resource manager sees it
    slot: int  # of the owner, -1 if it has none
    partition: int
    timeslice: int  # microseconds
    channels: int
    stopped: int  # of them


def groups(path: str) -> list[Group]:
    """The groups that a resource manager keeps for the processes of a simulated driver with this state."""
    with open(path, "rb") as file:
        file.seek(state.GROUPS_AT)
        data = file.read(state.GROUPS * state.GROUP.size)
    return [
        Group(identity >> 32, identity & 0xFFFFFFFF, pid, slot - 1, *rest[:4])
        for identity, pid, slot, *rest in state.GROUP.iter_unpack(data)
        if identity
    ]


class Served:
    """A server that runs."""

    def __init__(self, root: str, process: subprocess.Popen[str]) -> None:
        self.root, self.process = root, process
        self.path = os.path.join(root, RM, "nvidiactl")

    def fault(self, *lines: str) -> None:
        """Switch faults on, native/simdriver/rm/faults.c; `none` switches all off."""
        with open(os.path.join(self.root, RM, "faults"), "w", encoding="ascii") as file:
            file.write("\n".join(lines))

    def stop(self) -> int:
        """End it, as when the driver is unloaded. Returns its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serve(root: str, program: str, world: World | None = None) -> Iterator[Served]:
    """Serve the simulated driver in `root` until the end of the block."""
    clock = {"NVC_SIM_CLOCK": world.variables()["NVC_SIM_CLOCK"]} if world else {}
    process = subprocess.Popen(
        [program, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**CLEAN_ENV, **clock}
    )
    served = Served(root, process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{program} {root} does not start"
        yield served
        status = served.stop()
        assert status == 0, f"the resource manager ended with {status}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        directory = os.path.join(root, RM)
        while os.path.ismount(directory) or not _answers(directory):
            if libc.umount2(os.fsencode(directory), MNT_DETACH) != 0:
                break


def _answers(path: str) -> bool:
    """False: the server behind a mount is gone."""
    try:
        os.stat(path)
        return True
    except OSError:
        return False


def build(directory: str, *settings: str) -> str:
    """The server as a program in `directory`."""
    out = os.path.join(directory, f"of-{os.path.basename(directory)}")  # whose lock is not the caller's
    make(*settings, "rm", folder="native/simdriver", out=out)
    return os.path.join(out, "simrm")


@pytest.fixture(scope="session")
def simrm() -> str:
    """The server's program."""
    return kept("simrm", build)


@pytest.fixture(scope="session")
def simrm_sanitized() -> str:
    """A build that stops at a bad access, a leak or undefined behaviour."""
    return kept("simrm-sanitized", lambda path: build(path, "SANITIZE=address,undefined"))

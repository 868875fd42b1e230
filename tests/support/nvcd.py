"""nvcd in tests: a daemon with a /run/nvc of its own, and slices that know it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from nvc.model.slices.policy import POLICIES

from . import CLEAN_ENV, PATIENCE, REPO, until
from .begun import at_home
from .forked import fork
from .realtime import REAL, Time

GPU = "GPU-00000000-1111-2222-3333-44444444444{}"
KEEP = "mkdir -p /run/nvc && mount -t tmpfs -o mode=700 none /run/nvc && echo ready && exec cat"
PATHS = [os.path.join(REPO, "build/stage/lib/nvc/python"), os.path.join(REPO, "tests")]
#: nvcd without its launcher, which lets no variables of the loader pass.
DIRECT = f"import sys;sys.path[:0]={PATHS};from nvc_cli.daemon import main;main('nvcd')"
#: nvc-cli, likewise.
CLI = f"import sys;sys.path[:0]={PATHS};from nvc_cli.boot import main;main('nvc-cli')"

SECOND = 1_000_000_000
#: What nvcd does now and then, it does more often for tests in real time.
QUICK = {
    "nvc.daemon.main.SECOND": SECOND // 5,
    "nvc.daemon.daemon.CENSUS": SECOND,
    "nvc.daemon.places.AGAIN": SECOND // 5,
    "nvc.daemon.web.page.AGAIN": SECOND // 5,
    "nvc.daemon.web.server.TICK": 0.1,
    "nvc.daemon.mps.shared.UNUSED": SECOND,
    "nvc.daemon.mps.shared.REMEMBERED": SECOND // 2,
    "nvc.daemon.mps.servers.REMEMBERED": SECOND // 2,
    "nvc.daemon.suspend.hooks.SIGNAL_TIME": SECOND // 5,
}
ANEW = 1.1 * QUICK["nvc.daemon.daemon.CENSUS"]  # in so many nanoseconds it has looked at everything


class Place:
    """A mount namespace with a /run/nvc of its own, in which daemons and slices are started."""

    def __init__(self, stage: str, scratch: str, time: Time = REAL) -> None:
        self.stage, self.scratch, self.time = stage, scratch, time
        self.tenants: list[Tenant] = []
        self.daemon: Daemon | None = None
        self.words: tuple[str, ...] = ()
        self.interpreter, self.paths = sys.executable, PATHS  # of what runs in tenants
        self.program: tuple[str, ...] = (os.path.join(stage, "bin/nvcd"),)
        if time is not REAL:  # the launcher would keep what is preloaded from the interpreter
            self.program = (sys.executable, "-B", "-c", DIRECT)
        self._keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", KEEP],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN_ENV,
        )  # fmt: skip
        self.keeper = self._keeper.pid
        self.forks = time is REAL  # nvcd starts without its launcher
        self.constants = dict(QUICK)  # of nvcd's modules; a test may make more of them short
        assert self._keeper.stdout is not None and self._keeper.stdout.readline() == b"ready\n"
        self.root = f"/proc/{self._keeper.pid}/root"
        self.run = f"{self.root}/run/nvc"

    def enter(self, *words: str) -> list[str]:
        """The command in this place."""
        return ["nsenter", "-t", str(self._keeper.pid), "-m", *words]

    def sliced(self, launcher: str, driver: str, *words: str) -> list[str]:
        """`vgpu run` with these words in this place; a program follows."""
        return self.enter(launcher, f"--root={driver}", "vgpu", "run", *words, "--")

    def begin(self, *words: str, **variables: str) -> Daemon:
        """A daemon that is about to start."""
        self.words = words
        self.daemon = Daemon(self, words, variables)
        return self.daemon

    def start(self, *words: str, **variables: str) -> Daemon:
        """A daemon that is ready."""
        return self.begin(*words, **variables).wait()

    def tenant(
        self, policy: str = "first", devices: int = 1, uuids: tuple[str, ...] = (), **more: Any
    ) -> Tenant:
        """A slice and a process in it."""
        names = uuids or tuple(GPU.format(number) for number in range(devices))
        wanted = [
            {"memory_limit": 1 << 30, "policy": POLICIES.index(policy), **more, "uuid": name}
            for name in names
        ]
        self.tenants.append(Tenant(self, wanted))
        return self.tenants[-1]

    def end(self) -> None:
        for tenant in self.tenants:
            tenant.end()
        try:
            if self.daemon is not None:
                self.daemon.end()
        finally:
            assert self._keeper.stdin is not None and self._keeper.stdout is not None
            self._keeper.stdin.close()
            self._keeper.stdout.close()
            self._keeper.wait(timeout=PATIENCE)
        if self.daemon is not None:
            print(self.daemon.said())  # shown where a test fails


class Daemon:
    """A running nvcd."""

    def __init__(self, place: Place, words: tuple[str, ...], variables: dict[str, str]) -> None:
        self.log = os.path.join(place.scratch, "nvcd.log")
        address = os.path.join(place.scratch, f"notify{time.monotonic_ns()}")
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(address)
        self.place = place
        every = {**CLEAN_ENV, "NOTIFY_SOCKET": address, **variables}
        self.process: Any  # Popen, or what has its methods
        with open(self.log, "ab") as log:
            if place.forks and not variables and at_home():
                paths = ("/dev/null", self.log, self.log)
                self.process = fork(
                    place.stage, "nvcd", words, paths, str(place.keeper), every, constants=place.constants
                )
            else:
                self.process = place.time.start(
                    place.enter(*place.program, *words), every, stderr=log, stdin=subprocess.DEVNULL
                )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> Daemon:
        """Until it is ready."""
        for _ in range(round(PATIENCE)):
            assert self.process.poll() is None, self.said()
            if self.place.time.wait([self.notified], 1) and b"READY=1" in self.notified.recv(4096):
                return self
        raise AssertionError(f"not ready: {self.said()}")

    def is_ready(self) -> bool:
        """Whether it has said so, without waiting."""
        return bool(select.select([self.notified], [], [], 0)[0]) and b"READY=1" in self.notified.recv(4096)

    def said(self) -> str:
        """What it wrote to its log."""
        with open(self.log, encoding="utf-8") as log:
            return log.read()

    def family(self) -> list[int]:
        """It and its helpers."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
            return [self.pid, *map(int, file.read().split())]

    def proportional(self) -> int:
        """The bytes of it and its helpers together; what they share is counted once."""
        return sum(map(proportional, self.family()))

    def kill(self) -> None:
        self.place.time.kill(self.process)
        self.notified.close()

    def end(self) -> None:
        """It must end by itself, and well."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                assert self.place.time.finish(self.process) == 0, self.said()
        finally:
            self.notified.close()


def proportional(pid: int) -> int:
    """The bytes of a process, its part of what it shares; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


class Tenant:
    """A process in a slice; see nvcd_tenant.py."""

    def __init__(self, place: Place, devices: list[dict[str, Any]]) -> None:
        program = os.path.join(REPO, "tests/support/nvcd_tenant.py")
        self.process = subprocess.Popen(
            place.enter(place.interpreter, program, json.dumps(devices)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**CLEAN_ENV, "PYTHONPATH": os.pathsep.join(place.paths)},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        about = json.loads(line)
        self.key, self.pid = about["key"], about["pid"]
        self.directory = f"{place.run}/vgpu/{self.key}"

    def set(self, **fields: int) -> None:
        """Change the quota of its devices."""
        from nvc.model.slices import quota
        from nvc.model.slices.entry import announce

        fd = os.open(f"{self.directory}/quota", os.O_RDWR)
        quota.write(fd, tuple(device.replace(**fields) for device in quota.read(fd)))
        os.close(fd)
        announce(self.directory)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
            self.process.wait(timeout=PATIENCE)
            assert self.process.stdout is not None
            self.process.stdout.close()


def ask(place: Place, question: str = "state", **more: object) -> Any:
    """What nvcd answers to root."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.settimeout(PATIENCE)
        made.connect(f"{place.run}/nvcd/nvcd.sock")
        made.sendall(json.dumps({"ask": question, **more}).encode() + b"\n")
        data = b""
        while place.time.wait([made], PATIENCE) and (part := made.recv(1 << 16)):
            data += part
    return json.loads(data)


def eventually(place: Place, condition: Callable[[Any], bool]) -> Any:
    """nvcd's state, once the condition holds of it."""

    def look() -> Any:
        found = ask(place)
        if condition(found):
            return found
        ask(place, "look")
        return None

    return until(look, lambda: f"{ask(place)}\n{place.daemon and place.daemon.said()}")

"""The live page in tests: an nvcd that serves it, crowds of slices, and requests that no browser sends."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
from typing import Any

from nvc.testing.sim.report import report

from . import CLEAN_ENV, PATIENCE, REPO
from .nvcd import PATHS, Daemon, Place


def free_port() -> int:
    """A port of this machine's own that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Shown:
    """An nvcd with the page."""

    def __init__(self, place: Place, *words: str) -> None:
        self.port = free_port()
        self.place = place
        self.daemon: Daemon = place.start(f"--web=127.0.0.1:{self.port}", *words)
        self.address = f"http://127.0.0.1:{self.port}/"
        with open(f"{place.run}/nvcd/page-token", encoding="ascii") as file:
            self.token = file.read().strip()

    @property
    def link(self) -> str:
        """Where a browser is sent."""
        return f"{self.address}#{self.token}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def get(self, path: str, token: str | None = None, host: str = "127.0.0.1", *lines: str) -> str:
        """The whole answer to a request; of one that does not end, the first line of the stream."""
        with self.connect() as made:
            made.sendall(self.request(path, token, host, *lines))
            data = b""
            while (part := made.recv(1 << 16)) and not (b"x-ndjson" in data and data.endswith(b"}\n")):
                data += part
                if b"x-ndjson" in data and data.endswith(b"}\n"):
                    break
        return data.decode()

    @staticmethod
    def request(path: str, token: str | None, host: str, *lines: str) -> bytes:
        given = [f"Authorization: Bearer {token}"] if token is not None else []
        return "\r\n".join((f"GET {path} HTTP/1.1", f"Host: {host}", *given, *lines, "", "")).encode()

    def state(self) -> Any:
        """What a viewer is shown first."""
        return json.loads(self.get("/state", self.token).partition("\r\n\r\n")[2].splitlines()[0])


class Crowd:
    """Slices of one process; see nvcd_crowd.py."""

    def __init__(self, place: Place, wanted: list[dict[str, Any]]) -> None:
        self.process = subprocess.Popen(
            place.enter(place.interpreter, os.path.join(REPO, "tests/support/nvcd_crowd.py")),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**CLEAN_ENV, "PYTHONPATH": os.pathsep.join(PATHS)},
        )  # fmt: skip
        self.keys = self.tell(wanted)

    def tell(self, words: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=PATIENCE)


def wanted(driver: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Slices on the GPUs of a simulated driver, each with 2 GiB and a cap."""
    gpus = report(driver).gpus
    return [
        {
            "name": f"job-{number}", "index": str(gpu.index), "uuid": gpu.uuid, "memory_limit": 2 << 30,
            "policy": 3, "cores": 4, **more,
        }
        for number, gpu in zip(range(count), itertools.cycle(gpus))
    ]  # fmt: skip

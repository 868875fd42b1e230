"""nvcd and what NVML says of utilisation: programs that use the simulated GPU, through the shim and around it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV
from support.nvcd import Place, ask, eventually
from support.vgpu import ensure_shim
from support.vgpucap import Worker, compile_work

LIBS = f"/usr/lib/{os.uname().machine}-linux-gnu"
CONFIG = '[nvcd]\non-overuse = "stop"\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n'


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_work(str(tmp_path_factory.mktemp("work")), "-O2")


@pytest.fixture
def place(stage: str, scratch: str) -> Iterator[Place]:
    ensure_shim(stage, scratch)
    made = Place(stage, scratch)
    yield made
    made.end()


class Programs:
    """Workers on one simulated driver; all have work all the time."""

    def __init__(self, place: Place, driver: str, launcher: str, program: str) -> None:
        self.place, self.driver, self.launcher, self.program = place, driver, launcher, program
        self.started: list[Worker] = []
        path = os.path.join(place.scratch, "config.toml")
        with open(path, "w", encoding="ascii") as out:
            out.write(CONFIG)
        place.start(f"--root={driver}", f"--config={path}")

    def sliced(self, *words: str, **arguments: object) -> Worker:
        """In a slice of its own."""
        run = ("vgpu", "run", "--memory=8g", *words, "--", self.program)
        before = self.place.enter(self.launcher, f"--root={self.driver}", *run)
        return self._start(f"{self.driver}{LIBS}", before, **arguments)

    def around(self, pid: int) -> Worker:
        """In the slice of another one; it opens the driver's own libcuda."""
        private = os.path.join(self.place.scratch, "private")
        os.mkdir(private)
        os.symlink(f"{self.driver}{LIBS}/nvc/real-libcuda.so.1", f"{private}/libcuda.so.1")
        return self._start(private, ["nsenter", "-t", str(pid), "-m", self.program])

    def _start(self, libraries: str, words: list[str], **arguments: object) -> Worker:
        wanted = {"ns": 1000000, "batch": 0, "warm": 0, "seconds": 120, **arguments}
        variables = {**CLEAN_ENV, "LD_LIBRARY_PATH": libraries}
        self.started.append(Worker(words[0], variables, *words[1:], **wanted))
        return self.started[-1].started()


@pytest.fixture
def programs(
    place: Place, sim_root: Callable[..., str], launcher: str, program: str
) -> Iterator[Callable[..., Programs]]:
    made = []

    def make(**wanted: Any) -> Programs:
        made.append(Programs(place, sim_root(**wanted), launcher, program))
        return made[-1]

    yield make
    for worker in (worker for one in made for worker in one.started):
        worker.kill()


def metrics(place: Place, name: str) -> list[float]:
    """The values of a metric."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.connect(f"{place.run}/nvcd/metrics.sock")
        made.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        data = b""
        while part := made.recv(1 << 16):
            data += part
    lines = [line for line in data.decode().splitlines() if line.startswith(f"{name}{{")]
    return sorted(float(line.rpartition(" ")[2]) for line in lines)


def test_who_works_around_the_shim_is_stopped(place: Place, programs: Callable[..., Programs]) -> None:
    """And nobody else: neither the slice beside it, nor the other process of its own slice."""
    made = programs(gpus=1)
    high, low = made.sliced("--cores=25"), made.sliced("--cores=10")
    state = eventually(place, lambda s: len(s["memory"]) == 2 and all(one["pids"] for one in s["memory"]))
    caps = {tenant["key"]: tenant["cores"] for tenant in state["devices"][0]["tenants"]}
    inside = {caps[one["key"]]: one["pids"][0] for one in state["memory"]}
    wrong = made.around(inside[10])
    state = eventually(place, lambda s: s["found"]["overuse"], 40)
    event = next(event for event in state["events"] if event["kind"] == "overuse")
    assert caps[event["key"]] == 10 and event["text"].endswith("and may have 10 %")
    assert event["action"] == f"stopped process {wrong.process.pid}"
    assert wrong.process.wait(timeout=20) == -9
    assert high.process.poll() is None is low.process.poll()
    eventually(place, lambda s: metrics(place, "nvc_slice_use_ratio")[-1] <= 0.4, 10)
    assert ask(place)["found"]["overuse"] == 1
    assert metrics(place, "nvc_slice_use_ratio") == metrics(place, "hami_container_device_utilization_ratio")


def test_who_has_no_turns(place: Place, programs: Callable[..., Programs]) -> None:
    """Slices without caps, of which one has a process that does not ask for its turns."""
    made = programs(gpus=1)
    for _ in range(2):
        made.sliced("--policy=preempt", idle=100)
    state = eventually(place, lambda s: len(s["memory"]) == 2 and all(one["pids"] for one in s["memory"]))
    key, pid = state["memory"][0]["key"], state["memory"][0]["pids"][0]
    wrong = made.around(pid)
    state = eventually(place, lambda s: s["found"]["overuse"], 40)
    event = next(event for event in state["events"] if event["kind"] == "overuse")
    assert event["key"] == key and event["text"].endswith("and had turns for 0 %")
    assert wrong.process.wait(timeout=20) == -9


def test_where_nvml_does_not_tell(place: Place, programs: Callable[..., Programs]) -> None:
    """It is said once, and everything else is verified."""
    made = programs(gpus=1, mig=("2x3g.40gb",))
    made.sliced("--device=0:0", "--cores=10", idle=100)
    state = eventually(place, lambda s: s["nvml"]["useNotTold"] and s["memory"][0]["pids"])
    assert state["nvml"]["useNotTold"] == {state["memory"][0]["uuid"]: 3}
    first = state["now"]
    eventually(place, lambda s: s["now"] - first > 2.5e9)
    assert place.daemon is not None and place.daemon.said().count("NVML does not tell") == 1

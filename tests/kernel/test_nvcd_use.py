"""nvcd and what NVML says of utilization: programs that use the simulated GPU, through the shim and around it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, run
from support.nvcd import Place, ask, eventually
from support.rootfs import LIBS
from support.vgpucap import Worker

CONFIG = '[nvcd]\non-overuse = "stop"\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n'
pytestmark = pytest.mark.driver(gpus=1)
LONG = {"warm": 0, "seconds": 600}


@pytest.fixture
def daemon(place: Place, driver: str) -> None:
    path = os.path.join(place.scratch, "config.toml")
    with open(path, "w", encoding="ascii") as out:
        out.write(CONFIG)
    place.start(f"--root={driver}", f"--config={path}")


@pytest.fixture
def around(place: Place, driver: str, work: str) -> Iterator[Callable[[int], Worker]]:
    """Starts a busy program in the slice of another one that opens the driver's own libcuda."""
    started = []

    def start(pid: int) -> Worker:
        private = os.path.join(place.scratch, "private")
        os.mkdir(private)
        os.symlink(f"{driver}{LIBS}/nvc/real-libcuda.so.1", f"{private}/libcuda.so.1")
        variables = {**CLEAN_ENV, "LD_LIBRARY_PATH": private}
        words = ("-t", str(pid), "-m", work)
        started.append(Worker("nsenter", variables, *words, ns=1000000, batch=0, **LONG))
        return started[-1].started()

    yield start
    for worker in started:
        worker.kill()


def slices(state: Any) -> bool:
    """Both have a process on the device."""
    return len(state["memory"]) == 2 and all(one["pids"] for one in state["memory"])


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


@pytest.mark.nightly
@pytest.mark.usefixtures("daemon")
def test_who_works_around_the_shim_is_stopped(place: Place, busy: Any, around: Any) -> None:
    """And nobody else: neither the slice beside it, nor the other process of its own slice."""
    high, low = busy("--cores=25", **LONG).started(), busy("--cores=10", **LONG).started()
    state = eventually(place, slices)
    caps = {tenant["key"]: tenant["cores"] for tenant in state["devices"][0]["tenants"]}
    inside = {caps[one["key"]]: one["pids"][0] for one in state["memory"]}
    wrong = around(inside[10])
    state = eventually(place, lambda s: s["found"]["overuse"])
    event = next(event for event in state["events"] if event["kind"] == "overuse")
    assert caps[event["key"]] == 10 and event["text"].endswith("and may have 10 %")
    assert event["action"] == f"stopped process {wrong.process.pid}"
    assert wrong.process.wait(timeout=PATIENCE) == -9
    assert high.process.poll() is None is low.process.poll()
    eventually(place, lambda _: metrics(place, "nvc_slice_use_ratio")[-1] <= 0.4)
    assert ask(place)["found"]["overuse"] == 1
    assert metrics(place, "nvc_slice_use_ratio") == metrics(place, "hami_container_device_utilization_ratio")


@pytest.mark.nightly
def test_who_uses_too_much_is_denied_until_it_is_over(
    place: Place, driver: str, launcher: str, busy: Any, around: Any
) -> None:
    """By default; and the log, the metrics and `vgpu show` have both."""
    path = os.path.join(place.scratch, "config.toml")
    with open(path, "w", encoding="ascii") as out:
        out.write(CONFIG.replace('on-overuse = "stop"\n', ""))
    daemon = place.start(f"--root={driver}", f"--config={path}")
    busy("--cores=10", **LONG).started()
    one = eventually(place, lambda s: s["memory"] and s["memory"][0]["pids"])["memory"][0]
    wrong = around(one["pids"][0])
    eventually(place, lambda s: s["denied"])
    assert metrics(place, "nvc_slice_denied") == [1.0]
    assert metrics(place, "nvc_slice_violation") == [1.0, 1.0]  # it has no account, too, which is reported
    shown = run(*place.enter(launcher, "vgpu", "show", one["key"])).stdout
    assert "denied more: overuse: used " in shown
    wrong.kill()
    eventually(place, lambda s: not s["ongoing"])
    assert metrics(place, "nvc_slice_violation") == metrics(place, "nvc_slice_denied") == []
    lines = [line for line in daemon.said().splitlines() if "nvcd: overuse: " in line]
    assert [line.rpartition("; ")[2] for line in lines] == ["deny", "allowed again"]
    shown = run(*place.enter(launcher, "vgpu", "show", one["key"])).stdout
    past = [line for line in shown.splitlines() if " overuse: " in line]
    assert [line.rpartition("; ")[2] for line in past] == ["deny", "allowed again"] and "denied more" not in shown


@pytest.mark.nightly
@pytest.mark.usefixtures("daemon")
def test_who_has_no_turns(place: Place, busy: Any, around: Any) -> None:
    """Slices without caps, of which one has a process that does not ask for its turns."""
    for _ in range(2):
        busy("--policy=first", idle=100, **LONG).started()
    one = eventually(place, slices)["memory"][0]
    wrong = around(one["pids"][0])
    state = eventually(place, lambda s: s["found"]["overuse"])
    event = next(event for event in state["events"] if event["kind"] == "overuse")
    assert event["key"] == one["key"] and event["text"].endswith("and had leases for 0 %")
    assert wrong.process.wait(timeout=PATIENCE) == -9


@pytest.mark.parametrize("driver", [{"mig": ("2x3g.40gb",)}], indirect=True)
@pytest.mark.usefixtures("daemon")
def test_where_nvml_does_not_tell(place: Place, busy: Any) -> None:
    """It is said once, and everything else is verified."""
    busy("--cores=10", device="0:0", idle=100, **LONG).started()
    state = eventually(place, lambda s: s["nvml"]["useNotTold"] and s["memory"][0]["pids"])
    assert state["nvml"]["useNotTold"] == {state["memory"][0]["uuid"]: 3}
    first = state["now"]
    eventually(place, lambda s: s["now"] - first > 2.5e9)
    assert place.daemon is not None and place.daemon.said().count("NVML does not tell") == 1

"""Slices that share an MPS server, under the policy `concurrent`, on a real driver."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from support import STAGE, gpus, run
from support.bundle import Bundle
from support.mps_clients import Tenant, Tenants, shared
from support.nvcd import Place, ask, eventually

pytestmark = pytest.mark.gpu
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
SLICE = ("--policy=concurrent", "--memory=4g")
Measured: TypeAlias = Callable[[str, object], None]


@pytest.fixture
def tenants() -> Iterator[Tenants]:
    place = Place(STAGE, tempfile.mkdtemp(prefix="concurrent-", dir="/tmp"))
    made = Tenants(place, os.path.join(STAGE, "bin/nvc-cli"), gpus.ROOT)
    try:
        place.start(f"--root={gpus.ROOT}")
        yield made
    finally:
        made.end()
        if place.daemon is not None and place.daemon.process.poll() is None:
            ask(place, "mps-stop", key="shared")
        place.end()


def file(tenants: Tenants, name: str = "log/control.log") -> str:
    """64 KiB of the end of what the control daemon and its servers print, or of another of its files."""
    with open(
        f"{tenants.place.run}/mps/shared/{gpus.uuid()}/{name}", encoding="utf-8", errors="replace"
    ) as text:
        return text.read()[-(1 << 16) :]


def clients(tenants: Tenants, count: int) -> None:
    """Wait until the server has so many."""
    eventually(tenants.place, lambda state: shared(state).get("clients") == count)


def begun(tenants: Tenants, *words: str) -> Tenant:
    """A client of the server."""
    one = tenants.start(f"--device={gpus.uuid()}", *SLICE, *words)
    code, _ = one.do("start")
    assert code == 0, (code, file(tenants))
    return one


def test_caps_are_parts_of_the_multiprocessors(tenants: Tenants, measured: Measured) -> None:
    sizes = {}
    for cap in (100, 50, 30, 10):
        code, sizes[cap] = tenants.start(f"--device={gpus.uuid()}", *SLICE, f"--cores={cap}").do("start")
        assert code == 0, (code, file(tenants))
    measured("multiprocessors at 100, 50, 30, 10 %", list(sizes.values()))
    clients(tenants, 4)
    assert [one.do("launch")[0] for one in tenants.all] == [0, 0, 0, 0]
    whole = int(sizes[100])
    assert all(int(size) <= whole * cap / 100 + 2 for cap, size in sizes.items())


def test_memory(tenants: Tenants) -> None:
    one = begun(tenants)
    assert one.do("take 3000")[0] == 0 and one.do("take 2000")[0] == OUT_OF_MEMORY


def test_another_user(tenants: Tenants) -> None:
    begun(tenants)
    assert begun(tenants, "--user=65534:65534").do("launch")[0] == 0
    clients(tenants, 2)


@pytest.mark.parametrize("kind", ["own namespaces", "own users"])
def test_a_container(tenants: Tenants, runc_bundle: Callable[..., Bundle], kind: str) -> None:
    """It is a client with a /dev/shm, processes, users and IPC of its own."""
    made: Any = runc_bundle()
    shutil.copy(os.path.join(STAGE, "bin/nvc-spin"), f"{made.rootfs}/usr/bin")
    if kind == "own users":
        made.user_namespace()
    words = (f"--device={gpus.uuid()}", "--compute", "--utility", "--vgpu-memory=4g")
    with made.created("runc") as container:
        container.start()
        head = (tenants.launcher, f"--root={tenants.driver}", "configure", f"--pid={container.pid}")
        limits = ("--vgpu-policy=concurrent", "--vgpu-cores=30")
        run(*tenants.place.enter(*head, *words, *limits, made.rootfs))
        assert "1.00 of 4.00 GiB taken" in container.exec("nvc-spin --memory 1GiB --seconds 2").stdout
    assert "NEW CLIENT" in file(tenants)


def test_a_fault_of_one_ends_all_and_the_next_start_works(tenants: Tenants, measured: Measured) -> None:
    good, bad = begun(tenants), begun(tenants)
    clients(tenants, 2)
    assert bad.do("fault")[0] == ILLEGAL_ADDRESS
    fault = time.monotonic()
    state = eventually(tenants.place, lambda s: s["found"]["fault"])
    measured("nvcd tells of a fault after, s", f"{time.monotonic() - fault:.2f}")
    measured("what it tells", state["events"])
    measured("the server's log", [line for line in file(tenants).splitlines() if str(bad.pid) in line][-3:])
    measured("code of the other", good.do("launch")[0])
    again = begun(tenants)
    measured("the next program runs after, s", f"{time.monotonic() - fault:.2f}")
    assert again.do("launch")[0] == 0 and state["events"][0]["pid"] == bad.pid


def test_a_server_that_was_killed(tenants: Tenants, measured: Measured) -> None:
    one = begun(tenants)
    clients(tenants, 1)
    control = file(tenants, "about").split()[0]
    with open(f"/proc/{control}/task/{control}/children", encoding="ascii") as children:
        (server,) = children.read().split()
    os.kill(int(server), signal.SIGKILL)
    killed = time.monotonic()
    eventually(tenants.place, lambda s: s["found"]["fault"])
    measured("nvcd tells of a killed server after, s", f"{time.monotonic() - killed:.2f}")
    measured("code of its client", one.do("launch")[0])
    assert begun(tenants).do("launch")[0] == 0
    measured("the next program runs after, s", f"{time.monotonic() - killed:.2f}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_control_daemon_that_ends_or_hangs(tenants: Tenants, measured: Measured, number: int) -> None:
    one = begun(tenants)
    clients(tenants, 1)
    before = int(file(tenants, "about").split()[0])
    os.kill(before, number)
    stopped = time.monotonic()

    def other(state: dict[str, Any]) -> bool:
        return shared(state).get("state") == "ready" and int(file(tenants, "about").split()[0]) != before

    eventually(tenants.place, other)
    assert begun(tenants).do("launch")[0] == 0
    measured(f"a program runs after signal {number}, s", f"{time.monotonic() - stopped:.2f}")
    measured("code of the client of before", one.do("launch")[0])


def test_twenty_that_are_killed_with_work_leave_the_others_alone(
    tenants: Tenants, measured: Measured
) -> None:
    stays, slowest, codes = begun(tenants), 0.0, []
    for _ in range(20):
        goes = begun(tenants)
        assert goes.do("queue 500")[0] == 0
        goes.kill()
        killed = time.monotonic()
        codes.append(stays.do("launch")[0])
        while codes[-1] and time.monotonic() - killed < 2:  # it starts over, as often as it must
            stays = tenants.start(f"--device={gpus.uuid()}", *SLICE)
            codes.append(stays.do("start")[0] or stays.do("launch")[0])
        slowest = max(slowest, time.monotonic() - killed)
        assert codes[-1] == 0, codes
    measured("codes of the other", sorted(set(codes)))
    measured("the other goes on within, s", f"{slowest:.2f}")
    measured("found", ask(tenants.place)["found"])
    assert slowest < 2


def test_turns_for_a_while(tenants: Tenants) -> None:
    """Clients of the server take turns under another policy, and run together again."""
    one, other = begun(tenants), begun(tenants)
    for policy in ("weight", "concurrent"):
        words = (tenants.launcher, f"--root={tenants.driver}", "vgpu", "policy", gpus.uuid(), policy)
        run(*tenants.place.enter(*words))
        eventually(tenants.place, lambda s: any(device["policy"] == policy for device in s["devices"]))  # noqa: B023
        assert (one.do("launch")[0], other.do("launch")[0]) == (0, 0)

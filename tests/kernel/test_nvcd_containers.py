"""nvcd and real containers: their processes are known by what the kernel says of them, and share devices."""

from __future__ import annotations

import shutil
import threading
from typing import Any

from support import CLEAN_ENV
from support.nvcd import Place, eventually
from support.vgpu import Inside
from support.vgpucap import Worker


def test_they_share_and_come_back(place: Place, driver: str, container: Any, work: str) -> None:
    """By weight, in pid namespaces of their own, and again when nvcd was killed."""
    place.start(f"--root={driver}")
    workers = []
    for weight in (1, 3):
        made = container(f"--vgpu-weight={weight}", place=place)
        shutil.copy(work, f"{made.bundle.rootfs}/tmp/work")
        words = (*made.bundle.command("runc"), "exec", made.name, "/tmp/work")
        workers.append(Worker(words[0], CLEAN_ENV, *words[1:], ns=1000000, batch=0, warm=0.5, seconds=600))
    for worker in workers:
        worker.started()

    def held(state: Any) -> dict[int, int]:
        return {one["weight"]: one["heldNs"] for one in state["devices"][0]["tenants"] if one["leases"] > 3}

    for _ in range(2):
        first = held(eventually(place, lambda state: bool(state["devices"]) and len(held(state)) == 2))
        eventually(place, lambda state: all(held(state)[weight] > had for weight, had in first.items()))  # noqa: B023
        assert place.daemon is not None
        place.daemon.kill()
        place.start(*place.words)
    assert all(worker.stop().kernels for worker in workers)


def test_turns_on_two_devices_at_once(place: Place, driver: str, container: Any, tool: str) -> None:
    """Programs that launch on both in turn: neither waits for the device that the other one has, for ever."""
    place.start(f"--root={driver}")
    over = threading.Event()

    def launch(inside: Inside) -> None:
        while not over.is_set():
            for command in ("primary 0", "launch m", "primary 1", "launch n"):
                assert inside.code(command) == 0

    programs = []
    for words in (("--vgpu-weight=1",), ("--vgpu-weight=2", "--vgpu-policy=weight")):
        inside = Inside(container(*words, device="all", place=place), tool)
        for command in ("init", "primary 0", "module m", "primary 1", "module n"):
            assert inside.code(command) == 0
        programs.append(inside)
    threads = [threading.Thread(target=launch, args=(inside,)) for inside in programs]
    for thread in threads:
        thread.start()

    def often(state: Any) -> bool:
        """Each has had several turns on each of the two devices."""
        tenants = [one for device in state["devices"] for one in device["tenants"]]
        return len(tenants) == 4 and all(one["leases"] > 5 for one in tenants)

    try:
        found = eventually(place, often)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for inside in programs:
        inside.end()
    assert len(found["devices"]) == 2

"""nvcd killed at any moment under busy slices: nobody fails, nobody has more than its cap, all are known again."""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.nvcd import Daemon, Place, ask, eventually
from support.vgpucap import Worker

from nvc.base.files import closing

SECONDS = float(os.environ.get("NVC_KILL_SECONDS", "30"))
POINTS = 0.05
#: Cap in percent, GPU and words of a slice. The oldest one of a GPU names its policy, and the caps of all hold.
SLICES = (
    (20, 0, "--cores=20"),
    (35, 0, "--cores=35", "--weight=2", "--policy=weight"),
    (15, 0, "--cores=15", "--policy=soft"),
    (40, 1, "--cores=40", "--weight=3", "--policy=weight"),
    (25, 1, "--cores=25", "--policy=fair"),
    (100, 1, "--policy=first"),
)


def ends_within(daemon: Daemon, seconds: float) -> bool:
    """Wait that long, or until the daemon has ended by itself."""
    with closing(os.pidfd_open(daemon.pid)) as process:
        return bool(select.select([process], [], [], seconds)[0])


def kill_again_and_again(place: Place, dice: random.Random, end: float) -> tuple[int, int]:
    """Until then; how often, and how often a daemon had come so far as to be ready."""
    kills = ready = 0
    assert place.daemon is not None
    while time.monotonic() < end:
        # Half of the moments are before it is ready or soon after, half when slices may have come back.
        assert not ends_within(place.daemon, dice.choice((0.15, 3)) * dice.random()), place.daemon.said()
        ready += place.daemon.is_ready()
        place.daemon.kill()
        kills += 1
        place.begin(*place.words)
    return kills, ready


def shares(worker: Worker, seconds: float) -> tuple[float, float]:
    """What a program of kernels of 1 ms had of its GPU: in so many seconds, and in the last fifth of them."""
    lines = [worker.progress()]
    while lines[-1][0] - lines[0][0] < seconds * 1e3:
        lines.append(worker.progress())
    late = next(line for line in lines if line[0] - lines[0][0] > seconds * 800)
    (began, none), (ended, all) = lines[0], lines[-1]
    return (all - none) / (ended - began), (all - late[1]) / (ended - late[0])


@pytest.mark.nightly
def test_nobody_fails_and_nobody_exceeds_its_cap(
    place: Place, driver: str, busy: Callable[..., Worker]
) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")  # shown where the test fails
    place.start(f"--root={driver}")
    workers = [busy(*words, device=device, seconds=round(SECONDS) + 570, trace=100) for _, device, *words in SLICES]
    for worker in workers:
        worker.started()
    kills, ready = kill_again_and_again(place, random.Random(seed), time.monotonic() + SECONDS)
    print("kills", kills)
    assert kills > 10 and 0 < ready < kills, (kills, ready)
    assert place.daemon is not None
    place.daemon.wait()

    def all_back(state: Any) -> bool:
        return sum(len(device["tenants"]) for device in state["devices"]) == len(SLICES)

    eventually(place, all_back)
    for (cap, *about), worker in zip(SLICES, workers):
        whole, late = shares(worker, SECONDS)
        print(cap, about, whole, late)
        assert max(whole, late) < cap / 100 + POINTS, (cap, about, whole, late)
        assert min(whole, late) > 0.04, (cap, about, whole, late)
        worker.stop()
    assert ask(place)["found"] == dict.fromkeys(ask(place)["found"], 0)

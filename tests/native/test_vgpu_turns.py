"""Turns of a program that is always busy: what their ends cost, and what is charged for them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import pytest
from support.turngiver import Talk, TurnGiver
from support.vgpucap import Capped

from nvc.daemon.wire import GRANT, WANT

FAIR = 0
MS = 1_000_000
TURNS, LENGTH = 20, 10 * MS


def give_turns(talk: Talk, ends: list[int]) -> None:
    """So many, each when the one before was given back; then no more."""
    while len(ends) <= TURNS:
        message = talk.receive()
        if message.kind != WANT:
            ends.append(time.monotonic_ns())
        if len(ends) < TURNS:
            talk.send(GRANT, len(ends) + 1, message.uuid, LENGTH)
        else:
            break


def switches(pid: int) -> int:
    """How often the shim's thread has slept."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as file:
            status = file.read()
        if status.startswith("Name:\tnvc-lease\n"):
            return int(re.findall(r"^voluntary_ctxt_switches:\t(\d+)", status, re.MULTILINE)[0])
    raise AssertionError("the shim has no thread")


@pytest.fixture
def turned(capped: Callable[..., Capped]) -> Capped:
    slice_ = capped()
    slice_.cap(0, FAIR)
    return slice_


def test_the_end_of_a_turn_is_slept_for(turned: Capped) -> None:
    """What runs is known to end about then: nobody looks all the time."""
    ends: list[int] = []
    with TurnGiver(turned) as nvcd:
        worker = turned.worker(ns=MS, batch=0, seconds=60, warm=0)
        talk = nvcd.accept()
        give_turns(talk, ends)
        assert switches(worker.process.pid) / TURNS < 36
        worker.kill()
    assert len(ends) == TURNS


def test_what_runs_at_the_end_of_a_turn_is_charged_for(turned: Capped) -> None:
    """No more and no less, and without another turn, though nobody waits until it has ended."""
    with TurnGiver(turned) as nvcd:
        worker = turned.worker(ns=MS, batch=0, seconds=60, warm=0, trace=20).started()
        give_turns(nvcd.accept(), [])
        end, at, before, kernels = time.monotonic() * 1000, 0.0, -1, 0
        while at < end or kernels != before:
            before, (at, kernels) = kernels, worker.progress()
        turned.eventually(lambda: turned.budget()[5] == kernels)  # launches that were looked at
        worker.kill()
    assert kernels >= TURNS * LENGTH // MS // 2
    assert turned.charged() == pytest.approx(kernels * MS / 1e9, rel=0.03)

"""Turns of a program that is always busy, in virtual time: what their ends cost, and what is charged for them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from pytest import approx
from support.turngiver import Message, Talk, TurnGiver
from support.vgpucap import Capped
from support.virtual import World, device_time

from nvc.daemon.io.wire import GRANT, RELEASE, WANT

FAIR = 0
MS = 1_000_000
TURNS, LENGTH = 20, 10 * MS


def give_turns(talk: Talk, length: int = LENGTH) -> list[Message]:
    """So many, each when it is wanted; then no more. What was said at their ends."""
    ends: list[Message] = []
    while True:
        message = talk.receive()
        if message.kind == RELEASE:
            ends.append(message)
        if len(ends) == TURNS:
            return ends
        if message.kind == WANT or not message.b:
            talk.send(GRANT, len(ends) + 1, message.uuid, length)


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
    with TurnGiver(turned) as nvcd:
        worker = turned.worker(ns=MS, batch=0, seconds=60, warm=0)
        give_turns(nvcd.accept())
        assert switches(worker.process.pid) / TURNS < 36


def test_what_runs_at_the_end_of_a_turn_is_charged_for(turned: Capped, world: World) -> None:
    """No more and no less, and without another turn, though nobody waits until it has ended."""
    with TurnGiver(turned) as nvcd:
        worker = turned.worker(ns=MS, batch=0, seconds=60, warm=0)
        give_turns(nvcd.accept())
        world.run(1)
        used = device_time(turned.root).of(worker.process.pid)
        # What is launched ahead, at most 5 ms, is waited for at a turn's end.
        assert TURNS * LENGTH <= used * 1e9 <= TURNS * (LENGTH + 5 * MS)
        assert turned.budget()[5] == round(used * 1e3)  # launches that were looked at
        assert turned.charged() == approx(used, rel=0.01)


@pytest.mark.parametrize("batch", [0, 1])
def test_who_waits_for_its_own_kernels_wants_more(turned: Capped, batch: int) -> None:
    """One that launches again as soon as it may: as one that has enough, it would lose what nvcd owes it."""
    with TurnGiver(turned) as nvcd:
        turned.worker(ns=10 * MS, batch=batch, seconds=60, warm=0)
        ends = give_turns(nvcd.accept())
        assert [end.b for end in ends] == [0] * TURNS


@pytest.mark.parametrize("batch", [0, 1])
def test_a_long_kernel_is_not_begun_at_the_end_of_a_turn(turned: Capped, world: World, batch: int) -> None:
    """It would go on into the next one's turn. The first of a turn is begun, however long it takes."""
    with TurnGiver(turned) as nvcd:
        worker = turned.worker(ns=12 * MS, batch=batch, seconds=60, warm=0)
        give_turns(nvcd.accept(), 14 * MS)
        world.run(1)
        kernels = device_time(turned.root).of(worker.process.pid) * 1e9 / (12 * MS)
        assert TURNS <= kernels <= TURNS + 2  # at first it is not known how long they are


def test_no_turn_is_asked_for_without_credit(turned: Capped, world: World) -> None:
    """One that is held is given back as soon as there is none, and the next is asked for when there is some."""
    turned.cap(10)
    with TurnGiver(turned) as nvcd:
        turned.worker(ns=20 * MS, batch=0, seconds=60, warm=0)
        talk = nvcd.accept()
        talk.send(GRANT, 1, talk.wanted(), 100 * MS)
        began = world.now
        back = talk.receive()
        assert (back.kind, back.round, back.b) == (RELEASE, 1, 1)
        assert 0.04 <= world.now - began < 0.0405  # two are launched before it is known how long they take
        assert talk.receive().kind == WANT
        assert 0.35 < world.now - began < 0.42


@pytest.mark.parametrize(
    "cap, length, wait",
    [(10, 5 * MS, 0.025), (50, 10 * MS, 0.01), (1, 5 * MS, 0.025)],
)
def test_a_turn_is_asked_for_with_credit_for_half_of_one(
    turned: Capped, world: World, cap: int, length: int, wait: float
) -> None:
    """Many that are shorter take time of others. With a small cap that would be long: nobody waits so long."""
    turned.cap(cap)
    with TurnGiver(turned) as nvcd:
        turned.worker(ns=5000, batch=0, seconds=60, warm=0)
        talk = nvcd.accept()
        waits: list[float] = []
        turn, ended = 0, world.now
        while len(waits) <= TURNS:
            message = talk.receive()
            if message.kind == WANT:
                waits.append(world.now - ended)
            ended = world.now
            if message.kind == WANT or not message.b:  # the turn was shorter than what there was credit for
                talk.send(GRANT, turn := turn + 1, message.uuid, length)
        # What was launched ahead as the credit ended, 50 us at most, is made up for, too.
        assert wait < min(waits[1:]) and max(waits[1:]) < wait + 0.005, waits


def test_work_that_may_wait_for_what_waits_for_a_turn(turned: Capped, world: World) -> None:
    """Nothing of it ends: nvcd is told once, and with another turn one more launch is made."""
    with TurnGiver(turned) as nvcd:
        turned.worker(ns=1000 * MS, batch=0, seconds=60, warm=0)
        talk = nvcd.accept()
        uuid = talk.wanted()
        for turn in (1, 2, 3):
            talk.send(GRANT, turn, uuid, LENGTH)
            began = world.now
            want = talk.receive()
            assert (want.kind, want.round) == (WANT, turn)
            assert 0.05 <= world.now - began < 0.06
            assert turned.budget()[5] == turn + 1  # launches: two before it is known how long they take
            assert not world.wait([talk.socket], 0.2)
            assert turned.budget()[5] == turn + 1

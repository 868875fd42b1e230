"""What the shim says to nvcd, and what it does when nvcd does not behave, in virtual time."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from pytest import approx
from support import GIB, run
from support.simdriver import SOURCES, WARN
from support.turngiver import Talk, TurnGiver
from support.vgpushim import Process, Slice
from support.virtual import World

from nvc.daemon.io.wire import DROP, FREE, GRANT, MESSAGE, NO_UUID, REFUSED, RELEASE, WANT
from nvc.slices.model import layout

FAIR, FIXED, NATIVE = 0, 3, 5
PAUSED = 1
LONG = 10_000_000_000  # ns; a lease that ends since nothing runs, however slow the machine is


@pytest.fixture
def timed_slice(world: World, plain_slice: Callable[..., Slice]) -> Callable[..., Slice]:
    """As plain_slice, in virtual time."""

    def make(**wanted: object) -> Slice:
        made = plain_slice(**wanted)
        made.time = world
        return made

    return make


def shared(plain_slice: Callable[..., Slice], **fields: int) -> Slice:
    slice_ = plain_slice()
    slice_.limit(*[2 * GIB] * len(slice_.uuids), **{"policy": FAIR, **fields})
    return slice_


def waited(slice_: Slice) -> int:
    """Nanoseconds that launches were held back, in the ledger."""
    with open(slice_.path("nvc/ledger/ledger"), "rb") as ledger:
        ledger.seek(layout.BUDGETS_OFFSET)
        return int(layout.BUDGET.unpack(ledger.read(layout.BUDGET.size))[4])


def charged(slice_: Slice) -> int:
    """Nanoseconds of GPU time in all, in the ledger."""
    with open(slice_.path("nvc/ledger/ledger"), "rb") as ledger:
        ledger.seek(layout.BUDGETS_OFFSET)
        return int(layout.BUDGET.unpack(ledger.read(layout.BUDGET.size))[3])


def ready(slice_: Slice) -> Process:
    """A process that can `launch m`."""
    return slice_.start().do("module m")


@contextlib.contextmanager
def asking(slice_: Slice) -> Iterator[tuple[Process, TurnGiver, Talk]]:
    """A program that launches, and has come to what stands for nvcd."""
    with TurnGiver(slice_) as nvcd:
        process = ready(slice_)
        process.send("launch m")
        yield process, nvcd, nvcd.accept()


def test_only_what_is_launched_on_is_asked_for(timed_slice: Callable[..., Slice], world: World) -> None:
    """A device that a process was done with long ago is not taken from others by what it does on another one."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        assert talk.wanted() == nvcd.uuids[0]
        talk.send(FREE, 1, nvcd.uuids[0])
        assert process.receive() == ["0"]
        process.do("context c 1", "module n").send("launch n")
        assert talk.wanted() == nvcd.uuids[1]
        talk.send(GRANT, 2, nvcd.uuids[1], 10_000_000)
        assert process.receive() == ["0"]
        back = talk.receive()
        assert (back.kind, back.round, back.b) == (RELEASE, 2, 1)
        process.do("primary 0")
        end = world.now + 0.1
        while world.now < end:
            process.do("launch m")
        talk.send(DROP, 1, nvcd.uuids[0])
        back = talk.receive()
        assert (back.kind, back.round, back.uuid) == (RELEASE, 1, nvcd.uuids[0])


def test_what_a_late_one_had_is_given_back(timed_slice: Callable[..., Slice], world: World) -> None:
    """nvcd says after a turn what of it another tenant had, which the cap was charged for."""
    slice_ = shared(timed_slice, policy=FIXED, cores=50)
    with asking(slice_) as (process, _, talk):
        uuid, before = talk.wanted(), charged(slice_)
        talk.send(GRANT, 1, uuid, 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE
        once = charged(slice_) - before
        talk.send(DROP, 1, uuid, 0, once)
        world.run(0.001)
        assert charged(slice_) == before


def test_that_a_context_is_made_is_said(timed_slice: Callable[..., Slice], world: World) -> None:
    """Before, since its process may be killed meanwhile; and when it is there. nvcd knows what it costs."""
    slice_ = shared(timed_slice, policy=FIXED, cores=50)
    with asking(slice_) as (_, nvcd, talk):
        assert talk.wanted() == nvcd.uuids[0]
        begun, made = talk.made
        assert (begun.uuid, begun.a, begun.b) == (nvcd.uuids[0], 1, 0)
        assert (made.uuid, made.a) == (nvcd.uuids[0], 0)
        assert charged(slice_) < layout.MAKING_TIME // 10  # this one takes no time


def test_a_lease_that_nobody_wants_any_more_is_given_back(
    timed_slice: Callable[..., Slice], world: World
) -> None:
    """nvcd may hand one out, by a change of policy, while the process gives back the one that it had."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE
        for kind, round in ((FREE, 2), (GRANT, 3)):
            talk.send(kind, round, nvcd.uuids[0], 10_000_000)
            back = talk.receive()
            assert (back.kind, back.round, back.b) == (RELEASE, round, 1)
        process.send("launch m")
        talk.send(GRANT, 4, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]


@pytest.mark.parametrize(
    "message",
    [b"", b"\x11", MESSAGE.pack(FREE, 0, 1, NO_UUID, 0, 0)[:-1], MESSAGE.pack(REFUSED, 0, 0, NO_UUID, 1, 0)],
    ids=("nothing", "a byte", "a byte less", "refused"),
)
def test_half_a_message(timed_slice: Callable[..., Slice], world: World, message: bytes) -> None:
    """Or what ends a connection: who waits goes on at once, and comes back later."""
    slice_ = shared(timed_slice)
    with TurnGiver(slice_) as nvcd:
        process = ready(slice_)
        began = world.now
        process.send("launch m")
        talk = nvcd.accept()
        talk.wanted()
        if message:
            talk.socket.send(message)
        else:
            talk.socket.close()
        assert process.receive() == ["0"]
        assert world.now - began < 1
        process.send("launch m")
        while nvcd.listener not in world.wait([nvcd.listener, process.process.stdout], 10):
            assert process.receive() == ["0"]
            world.run(0.01)
            process.send("launch m")
        assert world.now - began < 3
        talk = nvcd.accept()
        talk.send(FREE, 1, talk.wanted())
        assert process.receive() == ["0"]


def test_messages_about_nothing(timed_slice: Callable[..., Slice], world: World) -> None:
    """Of kinds, devices and leases that there are none of: they change nothing."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        uuid = talk.wanted()
        for kind, round, whose in (
            (999, 1, uuid), (WANT, 1, uuid), (DROP, 0, uuid), (GRANT, 7, b"\xff" * 16), (FREE, 7, NO_UUID),
        ):  # fmt: skip
            talk.send(kind, round, whose, 2**64 - 1)
        assert not world.wait([process.process.stdout], 0.1)
        talk.send(GRANT, 1, uuid, 2**64 - 1)
        assert process.receive() == ["0"]
        talk.send(DROP, 2, uuid)
        back = talk.receive()
        assert (back.kind, back.round) == (RELEASE, 1)  # for it has nothing more to do


def test_launches_of_a_thread_that_is_gone(timed_slice: Callable[..., Slice], world: World) -> None:
    """In its own default stream, which no other thread can look at: they do not keep the device for ever."""
    slice_ = shared(timed_slice, policy=FIXED, cores=90)
    process = ready(slice_)
    process.do("aside m 2000")
    with TurnGiver(slice_) as nvcd:
        while True:
            process.send("launch m")
            try:
                talk = nvcd.accept(0.05)
                break
            except TimeoutError:
                process.receive()
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE


def test_a_thread_that_is_cancelled(timed_slice: Callable[..., Slice]) -> None:
    """It still tells nvcd what the other threads count on."""
    slice_ = shared(timed_slice)
    with TurnGiver(slice_) as nvcd:
        process = ready(slice_)
        process.send("cancelaside m")
        talk = nvcd.accept()
        for round in range(1, 4):
            talk.send(GRANT, round, talk.wanted(), LONG)
            process.receive()
            assert talk.receive().kind == RELEASE
            process.send("cancelaside m" if round < 2 else "launch m")


@pytest.fixture
def leave(scratch: str) -> str:
    """What has threads leave the driver in the middle of a launch."""
    library = os.path.join(scratch, "leave.so")
    run("gcc", *WARN, "-shared", "-fPIC", "-o", library, os.path.join(SOURCES, "vgpu_leave.c"), "-ldl")
    return library


def test_a_thread_that_never_comes_back_from_a_launch(
    timed_slice: Callable[..., Slice], world: World, leave: str
) -> None:
    """Its turn ends once, late; those of others end as before."""
    slice_ = shared(timed_slice)
    with TurnGiver(slice_) as nvcd:
        process = slice_.process(LD_PRELOAD=leave).start().do("module m")
        process.send("launch m")
        talk = nvcd.accept()
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE
        for round in range(2, 5):
            process.send("aside m" if round < 4 else "launch m")
            talk.send(GRANT, round, talk.wanted(), 10_000_000)
            process.receive()
            began = world.now
            back = talk.receive()
            assert back.kind == RELEASE
            took = world.now - began
            if not back.b:  # it might have launched again: another turn shows that it does not
                talk.send(GRANT, round + 10, back.uuid, 10_000_000)
                assert (talk.receive().b, world.now - began < took + 0.005) == (1, True)
        assert took < 0.1


def test_what_never_came_back_is_not_waited_for(
    timed_slice: Callable[..., Slice], world: World, leave: str
) -> None:
    slice_ = shared(timed_slice, policy=FIXED, cores=90)
    process = slice_.process(LD_PRELOAD=leave).start().do("module m", *["aside m"] * 4, "launch m")
    began = world.now
    process.do(*["launch m"] * 50)
    assert world.now - began < 1


def test_a_connection_that_a_child_has_too(timed_slice: Callable[..., Slice], world: World) -> None:
    """When the process gives it up, nvcd hears of that."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        talk.send(FREE, 1, talk.wanted())
        assert process.receive() == ["0"]
        process.do("orphan c")
        talk.send(REFUSED, a=1)
        assert world.wait([talk.socket], 1) and talk.socket.recv(64) == b""
        os.kill(int(process.ask("show c")[0]), signal.SIGKILL)


def test_waiting_for_a_turn_is_seen(timed_slice: Callable[..., Slice], world: World) -> None:
    """In the ledger, where operators see how long launches were held back."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        uuid = talk.wanted()
        assert not world.wait([talk.socket], 0.2)
        talk.send(GRANT, 1, uuid, 10_000_000)
        assert process.receive() == ["0"]
    assert waited(slice_) == approx(0.2e9, rel=0.03)


def test_waiting_in_a_pause_is_seen(timed_slice: Callable[..., Slice], world: World) -> None:
    """Though it was for the first launch of all, and nothing is metered after it."""
    slice_ = shared(timed_slice, policy=NATIVE, flags=PAUSED)
    process = ready(slice_)
    process.send("launch m")
    assert not world.wait([process.process.stdout], 0.2)
    slice_.limit(*[2 * GIB] * len(slice_.uuids), policy=NATIVE)
    assert process.receive() == ["0"]
    assert waited(slice_) == approx(0.2e9, rel=0.03)


def test_a_queue_of_none(timed_slice: Callable[..., Slice], world: World) -> None:
    """Whatever is in the budget, no launch waits behind thousands that do not exist."""
    slice_ = shared(timed_slice, policy=FIXED, cores=50)
    process = ready(slice_).do("launch m")
    with open(slice_.path("nvc/ledger/ledger"), "r+b", buffering=0) as ledger:
        ledger.seek(layout.BUDGETS_OFFSET + 48)
        ledger.write(struct.pack("<II", 4000, 0))
    began = world.now
    while world.now - began < 0.1:
        process.do("launch m")
    assert world.now - began < 2


def test_an_nvcd_that_is_stopped(timed_slice: Callable[..., Slice], world: World) -> None:
    """Nobody waits for it twice; when it goes on, turns do."""
    slice_ = shared(timed_slice)
    with TurnGiver(slice_) as nvcd:
        process = ready(slice_)
        began = world.now
        process.do("launch m")
        assert 3 <= world.now - began < 3.1
        began = world.now
        while world.now - began < 1.5:
            world.run(0.01)
            launched = world.now
            process.do("launch m")
            assert world.now - launched < 0.1
        nvcd.listener.accept()[0].close()  # of then
        talk = nvcd.accept()
        process.send("launch m")
        while not world.wait([talk.socket], 0.01):
            process.receive()
            process.send("launch m")
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]


def test_who_asks_after_a_rest_waits_for_nvcd(timed_slice: Callable[..., Slice], world: World) -> None:
    """Nothing was asked of nvcd meanwhile, so its silence says nothing."""
    slice_ = shared(timed_slice)
    with asking(slice_) as (process, nvcd, talk):
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE
        world.run(4)
        process.send("launch m")
        uuid = talk.wanted()
        world.run(2)
        talk.send(GRANT, 2, uuid, 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE


def test_the_end_of_a_program(timed_slice: Callable[..., Slice], world: World) -> None:
    """The shim's thread ends before the driver does."""
    slice_ = shared(timed_slice)
    with TurnGiver(slice_) as nvcd:
        process = slice_.process().do("init", "endfewer", "primary 0", "module m")
        process.send("launch m")
        talk = nvcd.accept()
        talk.send(FREE, 1, talk.wanted())
        assert process.receive() == ["0"]
        process.do("thannow").end()
        assert process.process.returncode == 0


def hand_out(talk: Talk, turns: list[int]) -> None:
    """Turns that are over as soon as they have begun, until the process is gone."""
    try:
        while True:
            message = talk.receive()
            if message.kind == WANT or not message.b:
                turns.append(len(turns) + 1)
                talk.send(GRANT, turns[-1], message.uuid, 1)
                talk.send(DROP, turns[-1], message.uuid)
    except (struct.error, OSError):
        pass


def test_turns_that_end_while_contexts_and_streams_do(vgpu: Slice) -> None:
    """What the shim's thread reads is not what the program's thread has just destroyed."""
    vgpu.limit(2 * GIB, 2 * GIB, policy=FAIR)
    turns: list[int] = []
    with TurnGiver(vgpu) as nvcd:
        process = vgpu.process().do("init", "primary 0", "module m")
        process.send("launch m")
        server = threading.Thread(target=hand_out, args=(nvcd.accept(), turns))
        server.start()
        assert process.receive() == ["0"]
        for _ in range(40):
            process.do("context c 0", "module n", "launch n", "stream", "launch n", "launch n", "dropstream")
            process.do("defaultstream", "launch n", "aside m 3", "launch n", "dropcontext c")
            process.do("primary 0", "launch m", "stream", "launch m", "capture 0", "launch m", "captured g")
            process.do("launch m", "defaultstream", "reset 0", "primary 0", "module m", "launch m")
        process.end()
        server.join()
    assert process.process.returncode == 0
    assert len(turns) > 40

"""What nvcd and its timekeeper tell each other is checked by whoever takes it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator

import pytest
from support.gpumodel import always
from support.timehost import UUID, Host, demand

from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.keeper import wire
from nvc.daemon.keeper.device import ACCOUNT as ODD
from nvc.daemon.keeper.device import DeviceTime, SliceTime
from nvc.daemon.keeper.keeper import TELL, TELL_TURNS, Service
from nvc.daemon.keeper.plan import STRANGERS, DevicePlan, Group, Plan, SlicePlan
from nvc.daemon.time.client import SILENT, TimeClient

PLAN = Plan(
    (
        DevicePlan(
            UUID,
            (
                SlicePlan(
                    "a", (Group(1, 2, 3, 4, (5, 6), 7, 8, 9), Group(1, 2, 3, -1, ())), 4000, True, 1, 2, 3, 4
                ),
                SlicePlan("b", ()),
            ),
        ),
        DevicePlan("GPU-x"),
    )
)
ACCOUNT = wire.Account(
    1, 2, 3,
    (
        DeviceTime(
            UUID, 0, True, ((7, 8, 9),), (SliceTime("a", 1, 2, 3, 4, ((7, 5),), 6, 7),), 1, 2, 3,
            ((-1, 2), (0x56, 3)), "why",
        ),
        DeviceTime("GPU-x", -1, False, (), (), 0, 0, 0, (), ""),
    ),
)  # fmt: skip


def sent(message: dict[str, object]) -> object:
    """What arrives."""
    assembler = wire.Assembler()
    *first, last = [assembler.take(packet) for packet in wire.packets(message, 3)]
    assert first == [None] * len(first)
    return last


def test_what_is_sent_arrives() -> None:
    message = sent({"plan": PLAN})
    assert isinstance(message, dict) and wire.read_plan(message["plan"]) == PLAN
    message = sent(wire.account_message(ACCOUNT))
    assert isinstance(message, dict) and wire.read_account(message["account"]) == ACCOUNT
    records = tuple((UUID, number * 10**14, 1 + number % 3, number) for number in range(20_000))
    message = sent({"trace": records})
    assert isinstance(message, dict) and wire.read_records(message["trace"]) == records


def test_a_message_in_parts_survives_lost_ones() -> None:
    many = {"trace": [[UUID, number, 1, 7] for number in range(5000)]}
    assembler = wire.Assembler()
    packets = list(wire.packets(many, 1))
    assert len(packets) > 3
    for packet in packets[:2] + packets[3:]:
        assert assembler.take(packet) is None
    assert assembler.take(next(wire.packets({"began": 7}, 2))) == {"began": 7}
    with pytest.raises(wire.WireError, match="at most"):
        list(wire.packets({"x": "y" * wire.PART * wire.PARTS_MAX}, 1))


@pytest.mark.parametrize(
    "packet",
    [
        b"", b"1234567", wire.HEAD.pack(1, 1, 1), wire.HEAD.pack(1, 0, 60000) + b"{}",
        wire.HEAD.pack(1, 0, 1) + b"{",
        wire.HEAD.pack(1, 0, 1) + b"[]", wire.HEAD.pack(1, 0, 1) + b"\xff", wire.HEAD.pack(1, 0, 1) + b"[" * 50_000,
    ],
)  # fmt: skip
def test_what_is_no_message(packet: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.Assembler().take(packet)


def test_whatever_is_changed_in_a_message_is_refused_or_sound() -> None:
    odd: tuple[object, ...] = (None, -5, 1 << 70, 1.5, "x" * 5000, [], {}, True, [[]], "GPU")
    for seed in range(3000):
        chance = random.Random(seed)
        value = json.loads(json.dumps(PLAN if seed % 2 else ACCOUNT, default=tuple))
        where = value
        while (
            isinstance(inner := where[place := chance.randrange(len(where))], list)
            and inner
            and chance.random() < 0.9
        ):
            where = inner
        where[place] = chance.choice(odd)
        try:
            found = wire.read_plan(value) if seed % 2 else wire.read_account(value)
        except wire.WireError:
            continue
        assert isinstance(found, Plan if seed % 2 else wire.Account)


class Pair:
    """A client with the other end of its socket."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.said: list[str] = []
        self.accounts: list[wire.Account] = []
        self.other: socket.socket | None = None
        self.client = TimeClient(
            self.loop, self.begin, lambda one, now: self.accounts.append(one), self.said.append
        )

    def close(self) -> None:
        self.client.close()
        self.loop.epoll.close()
        if self.other is not None:
            self.other.close()

    def begin(self) -> tuple[int, socket.socket]:
        if self.other is not None:
            self.other.close()
        ours, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        return 0, ours

    def tell(self, message: dict[str, object], now: int) -> None:
        assert self.other is not None
        for packet in wire.packets(message, 1):
            self.other.send(packet)
        for handler in list(self.loop.handlers.values()):
            handler(now)

    def got(self) -> list[dict[str, object]]:
        assert self.other is not None
        found: list[dict[str, object]] = []
        assembler = wire.Assembler()
        while True:
            try:
                message = assembler.take(self.other.recv(1 << 17, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return found
            if message is not None:
                found.append(message)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_the_client_sends_each_plan_once_and_again_to_a_new_timekeeper(pair: Pair) -> None:
    pair.client.second(SECOND)
    pair.tell({"began": 77}, SECOND)
    pair.client.set(PLAN, SECOND)
    pair.client.set(PLAN, SECOND)
    assert [message["plan"] for message in pair.got() if message["plan"] != [[]]] == [
        json.loads(json.dumps(PLAN, default=tuple))
    ]
    pair.tell({"began": 78}, 2 * SECOND)
    assert len(pair.got()) == 1 and pair.said == ["time: the timekeeper was started again"]


def test_the_client_says_why_time_is_not_kept(pair: Pair) -> None:
    assert pair.client.problem(0) == "the timekeeper has not begun"
    pair.client.second(SECOND)
    assert pair.client.holds(UUID, SECOND) == "the timekeeper does not answer"
    pair.tell({"began": 77}, SECOND)
    pair.tell(wire.account_message(ACCOUNT), SECOND)
    assert pair.accounts == [ACCOUNT]
    assert pair.client.holds(UUID, SECOND) == "why" and pair.client.holds("GPU-x", SECOND) == ""
    assert pair.client.holds("GPU-x", SECOND + SILENT + 1) == "the timekeeper does not answer"
    pair.tell({"account": [1, 2]}, SECOND)
    assert "an answer that makes no sense" in pair.said[-1] and pair.client.problem(SECOND) == pair.said[-1]
    pair.client.second(SECOND)
    assert pair.client.restarts == 1 and not pair.loop.handlers, "not before a second has passed"
    pair.client.second(3 * SECOND)
    assert pair.loop.handlers


def test_a_socket_that_is_full_is_tried_again(pair: Pair) -> None:
    pair.client.second(SECOND)
    pair.tell({"began": 77}, SECOND)
    groups = tuple(Group(1, number, 3, 4, tuple(range(100)), 5) for number in range(2000))
    big = Plan((DevicePlan(UUID, (SlicePlan("a", groups),)),))
    pair.client.set(big, SECOND)
    assert pair.other is not None
    assembler, found, now = wire.Assembler(), None, SECOND
    while found is None or found.get("plan") == [[]]:
        try:
            found = assembler.take(pair.other.recv(1 << 17, socket.MSG_DONTWAIT))
        except BlockingIOError:
            now += SECOND
            assert now < 100 * SECOND
            pair.loop._timed(now)
    assert wire.read_plan(found["plan"]) == big


def test_a_trace_is_asked_for_once_for_all_who_wait(pair: Pair) -> None:
    answers: list[object] = []

    def ask() -> bool:
        return pair.client.trace(5, lambda records, _: answers.append(records), SECOND)

    assert not ask()
    pair.client.second(SECOND)
    assert ask() and ask()
    assert [message for message in pair.got() if "trace" in message] == [{"trace": 5}]
    pair.tell({"trace": [[UUID, 1, 1, 7]]}, SECOND)
    assert answers == [((UUID, 1, 1, 7),)] * 2


def test_who_waits_for_a_trace_is_told_why_there_is_none(pair: Pair) -> None:
    told: list[tuple[object, str]] = []

    def ask() -> None:
        assert pair.client.trace(60, lambda records, problem: told.append((records, problem)), SECOND)

    pair.client.second(SECOND)
    ask()
    pair.tell({"began": 77}, SECOND)
    assert not told
    pair.tell({"problem": "it is too long"}, SECOND)
    ask()
    pair.tell({"began": 78}, SECOND)
    ask()
    pair.tell({"trace": [[UUID, 1, 2, 3]]}, SECOND)
    ask()
    pair.client.close()
    assert told == [
        ((), "it is too long"), ((), "the timekeeper was started again"), (((UUID, 1, 2, 3),), ""),
        ((), "the timekeeper has ended"),
    ]  # fmt: skip


def test_a_trace_comes_though_nvcd_takes_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts that find no room are left out. What was asked for is answered, if only by why it cannot be."""
    host = Host(demand("a", "weight"))
    host.run(SECOND)
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, other:
        service = Service(other, host.keeper, host.gpu.clock)
        now, most = host.keeper.devices[UUID].accounts.now, host.keeper.trace.maxlen or 0
        host.keeper.trace.extend((UUID, now, 1, 7) for _ in range(most))
        for packet in (packet for number in range(2) for packet in wire.packets({"trace": 60}, number)):
            ours.send(packet)
            assert service.turn()
        assert service.outbox
        assembler, found = wire.Assembler(), []
        while (packet := take(ours)) or service.outbox:
            if packet:
                found.append(assembler.take(packet))
            else:
                service._flush()
        whole = [one for one in found if one is not None and "trace" in one]
        assert [len(one["trace"]) for one in whole] == 2 * [most]
        monkeypatch.setattr(wire, "PARTS_MAX", 2)
        service.send({"trace": host.keeper.records(60)})
        packet = take(ours)
        assert packet and not take(ours) and assembler.take(packet) == {
            "problem": f"the timekeeper cannot tell its trace: too long, at most {2 * wire.PART} bytes"
        }


def test_accounts_come_more_often_while_nvcd_may_have_to_act() -> None:
    host = Host(demand("a", "weight"))
    host.tenant("a", 1, always())
    host.run(SECOND)
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, other:
        service = Service(other, host.keeper, host.gpu.clock)
        assert service.telling == service.told + TELL
        host.demands = (demand("a", "weight", cores=50),)
        host.run(SECOND)
        assert service.telling == service.told + TELL
        host.told = in_turn
        host.run(SECOND)
        assert service.telling == service.told + TELL_TURNS
        host.tenant(STRANGERS, 100, always())
        host.run(SECOND)
        assert service.telling == service.told + ODD


def in_turn(plan: Plan) -> Plan:
    (device,) = plan.devices
    return Plan((device.replace(slices=tuple(one.replace(in_turn=True) for one in device.slices)),))


def take(channel: socket.socket) -> bytes:
    """A packet, if there is one."""
    try:
        return channel.recv(1 << 17, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""

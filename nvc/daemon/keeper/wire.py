"""What nvcd and its timekeeper tell each other over a SEQPACKET socket: JSON in parts, checked by whoever takes it.

To the timekeeper: {"plan": ...}, {"trace": SECONDS}. From it: {"began": PID}, {"account": ...}, {"trace": ...},
{"problem": TEXT}.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from nvc.base.value import Value
from nvc.daemon.keeper.device import DeviceTime, SliceTime
from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, SlicePlan

HEAD = struct.Struct("<IHH")  # number of the message, number of the part, parts
PART = 60_000  # bytes: a packet of this size finds room in any socket
PARTS_MAX = 400
WORD, LONG = 1 << 32, 1 << 63
TEXT_MAX, MANY = 4096, 1 << 20


class WireError(ValueError):
    """A message that makes no sense."""


class Account(Value):
    """What the timekeeper tells, two to ten times a second. Nanoseconds; all are totals since it began."""

    began: int  # CLOCK_MONOTONIC: another timekeeper counts from nothing
    now: int
    processor: int  # its own processor time
    devices: tuple[DeviceTime, ...] = ()


def account_message(account: Account) -> dict[str, Any]:
    """The message of an account, in plain lists: it is sent often, and values take ten times as long."""
    devices = [
        [
            one.uuid, one.instance, one.logged, one.pids,
            [
                [each.key, each.had_ns, each.doubtful_ns, each.stopped_ns, each.stops, each.broke, each.refused,
                 each.retimed]
                for each in one.slices
            ],
            one.lost, one.jumps, one.calls, one.failed, one.problem,
        ]
        for one in account.devices
    ]  # fmt: skip
    return {"account": [account.began, account.now, account.processor, devices]}


def packets(message: dict[str, Any], number: int) -> Iterator[bytes]:
    """The packets of a message. Raises WireError if it is too long."""
    data = json.dumps(message, separators=(",", ":"), default=tuple).encode()
    count = max((len(data) + PART - 1) // PART, 1)
    if count > PARTS_MAX:
        raise WireError(f"too long, at most {PARTS_MAX * PART} bytes")
    for place in range(count):
        yield HEAD.pack(number % WORD, place, count) + data[place * PART : (place + 1) * PART]


class Assembler:
    """Puts messages together from their packets."""

    def __init__(self) -> None:
        self._number = self._count = 0
        self._parts: list[bytes] = []

    def take(self, packet: bytes) -> dict[str, Any] | None:
        """The message that ends with this packet, if one does. A message whose parts are not all there is left out.

        Raises WireError for what is not one.
        """
        if len(packet) < HEAD.size:
            raise WireError(f"a packet of {len(packet)} bytes")
        number, place, count = HEAD.unpack_from(packet)
        if not place < count <= PARTS_MAX:
            raise WireError(f"part {place} of {count}")
        if place == 0:
            self._number, self._count, self._parts = number, count, []
        elif (number, count, place) != (self._number, self._count, len(self._parts)):
            self._parts = []
            return None
        self._parts.append(packet[HEAD.size :])
        if len(self._parts) < count:
            return None
        data, self._parts = b"".join(self._parts), []
        try:
            message = json.loads(data)
        except ValueError as error:  # UnicodeDecodeError is one, too
            raise WireError(str(error)) from None
        except RecursionError:
            raise WireError("nested too deeply") from None
        if not isinstance(message, dict):
            raise WireError("not an object")
        return message


def _number(value: object, least: int = 0, below: int = LONG) -> int:
    if type(value) is not int or not least <= value < below:
        raise WireError(f"{value!r:.40}: not a number of {least} to {below - 1}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise WireError(f"{value!r:.40}: not a text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{value!r:.40}: not true or false")
    return value


def _list(value: object, length: int = -1) -> list[Any]:
    if not isinstance(value, list) or length >= 0 and len(value) != length or len(value) > MANY:
        raise WireError(f"{value!r:.40}: not a list of {length if length >= 0 else 'that size'}")
    return value


def read_pid(value: object) -> int:
    """The process in a message. Raises WireError."""
    return _number(value, 1, WORD // 2)


def read_plan(value: object) -> Plan:
    """The plan in a message. Raises WireError."""
    (devices,) = _list(value, 1)
    return Plan(tuple(_device_plan(one) for one in _list(devices)))


def _device_plan(value: object) -> DevicePlan:
    uuid, slices = _list(value, 2)
    return DevicePlan(_text(uuid), tuple(_slice_plan(one) for one in _list(slices)))


def _slice_plan(value: object) -> SlicePlan:
    key, groups, length, stopped, quota, period, burst, slack, in_turn = _list(value, 9)
    return SlicePlan(
        _text(key), tuple(_group(one) for one in _list(groups)), _number(length, 0, WORD), _flag(stopped),
        _number(quota), _number(period, 1), _number(burst), _number(slack), _flag(in_turn),
    )  # fmt: skip


def _group(value: object) -> Group:
    client, handle, pid, fd, channels, serial, touched, opener = _list(value, 8)
    return Group(
        _number(client, 0, WORD), _number(handle, 0, WORD), _number(pid, 1, WORD // 2), _number(fd, -1, WORD // 2),
        tuple(_number(one, 0, WORD) for one in _list(channels)), _number(serial), _number(touched),
        _number(opener, 0, WORD),
    )  # fmt: skip


def read_account(value: object) -> Account:
    """The account in a message. Raises WireError."""
    began, now, processor, devices = _list(value, 4)
    return Account(
        _number(began), _number(now), _number(processor), tuple(_device_time(one) for one in _list(devices))
    )


def _device_time(value: object) -> DeviceTime:
    uuid, instance, logged, pids, slices, lost, jumps, calls, failed, problem = _list(value, 10)
    return DeviceTime(
        _text(uuid), _number(instance, -1, WORD), _flag(logged),
        tuple((_number(a, 0, WORD), _number(b), _number(c)) for a, b, c in (_list(one, 3) for one in _list(pids))),
        tuple(_slice_time(one) for one in _list(slices)),
        _number(lost), _number(jumps), _number(calls),
        tuple((_number(a, -LONG), _number(b)) for a, b in (_list(one, 2) for one in _list(failed))),
        _text(problem),
    )  # fmt: skip


def _slice_time(value: object) -> SliceTime:
    key, had, doubtful, stopped, stops, broke, refused, retimed = _list(value, 8)
    return SliceTime(
        _text(key), _number(had), _number(doubtful), _number(stopped), _number(stops),
        tuple((_number(a, 0, WORD), _number(b)) for a, b in (_list(one, 2) for one in _list(broke))),
        _number(refused), _number(retimed),
    )  # fmt: skip


def read_records(value: object) -> tuple[tuple[str, int, int, int], ...]:
    """Records of the log in a message: the device's UUID, nanoseconds, kind, process. Raises WireError."""
    found = []
    for one in _list(value):
        uuid, time, kind, pid = _list(one, 4)
        found.append((_text(uuid), _number(time), _number(kind, 0, 256), _number(pid, 0, WORD)))
    return tuple(found)

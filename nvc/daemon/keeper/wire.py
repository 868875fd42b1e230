"""What nvcd and its timekeeper tell each other over a SEQPACKET socket: JSON in parts, checked by whoever takes it.

To the timekeeper: {"plan": ...}, {"trace": SECONDS}. From it: {"began": PID}, {"account": ...}, {"trace": ...},
{"problem": TEXT}.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from nvc.base.fastjson import NUMBER, PID, POSITIVE, WORD, JsonError, checked, row
from nvc.base.value import Value
from nvc.daemon.keeper.device import DeviceTime, SliceTime
from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, SlicePlan

HEAD = struct.Struct("<IHH")  # number of the message, number of the part, parts
PART = 60_000  # bytes: a packet of this size finds room in any socket
PARTS_MAX = 400


WireError = JsonError  # a message that makes no sense


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
        yield HEAD.pack(number % (1 << 32), place, count) + data[place * PART : (place + 1) * PART]


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


_GROUP = (Group, WORD, WORD, PID, range(-1, 1 << 31), [WORD], NUMBER, NUMBER, WORD)
_SLICE_PLAN = (SlicePlan, str, [_GROUP], WORD, bool, NUMBER, POSITIVE, NUMBER, NUMBER, bool)
_PLAN = (Plan, [(DevicePlan, str, [_SLICE_PLAN])])
_SLICE_TIME = (SliceTime, str, NUMBER, NUMBER, NUMBER, NUMBER, [(row, WORD, NUMBER)], NUMBER, NUMBER)
_DEVICE_TIME = (
    DeviceTime, str, range(-1, 1 << 32), bool, [(row, WORD, NUMBER, NUMBER)], [_SLICE_TIME], NUMBER, NUMBER,
    NUMBER, [(row, range(-(1 << 63), 1 << 63), NUMBER)], str,
)  # fmt: skip
_ACCOUNT = (Account, NUMBER, NUMBER, NUMBER, [_DEVICE_TIME])
_RECORD = (row, str, NUMBER, range(256), WORD)


def read_pid(value: object) -> int:
    """The process in a message. Raises WireError."""
    return int(checked(value, PID))


def read_plan(value: object) -> Plan:
    """The plan in a message. Raises WireError."""
    found: Plan = checked(value, _PLAN)
    return found


def read_account(value: object) -> Account:
    """The account in a message. Raises WireError."""
    found: Account = checked(value, _ACCOUNT)
    return found


def read_records(value: object) -> tuple[tuple[str, int, int, int], ...]:
    """Records of the log in a message: the device's UUID, nanoseconds, kind, process. Raises WireError."""
    found: tuple[tuple[str, int, int, int], ...] = checked(value, [_RECORD])
    return found

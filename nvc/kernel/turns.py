"""Turns on devices that follow each other as laid down, without a decision (native/core/schedule/turns.c)."""

from __future__ import annotations

import os

from nvc._syscalls import ffi, lib

#: So many turns of a device, that of now included.
TURNS_MAX: int = lib.NVC_TURNS_MAX
#: Devices at once.
DEVICES_MAX = 16

TIME: int = lib.NVC_TURNS_TIME
EVENT: int = lib.NVC_TURNS_EVENT
END: int = lib.NVC_TURNS_END


class Turns:
    """Room for the turns of some devices; see native/core/schedule/turns.h. Nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._devices = ffi.new("struct nvc_turns[]", DEVICES_MAX)
        self._turns = ffi.new("struct nvc_turn[]", DEVICES_MAX * TURNS_MAX)
        # Made once: each access by index makes an object.
        self._device = [self._devices[number] for number in range(DEVICES_MAX)]
        self._turn = [self._turns[number] for number in range(DEVICES_MAX * TURNS_MAX)]

    def lay_down(
        self, number: int, uuid: bytes, patience: int, slack: int, turns: list[tuple[int, int, int, int, int]],
        began: int,
    ) -> None:  # fmt: skip
        """The turns of a device: descriptor, round, length, how long it is expected to be held, and how long the
        device rests before. The first one began at `began`."""
        device = self._device[number]
        device.uuid = uuid
        device.patience, device.slack, device.drift = patience, slack, 0
        device.count, device.place, device.error = len(turns), 0, 0
        place = number * TURNS_MAX
        for fd, round, length, foreseen, rest in turns:
            turn = self._turn[place]
            turn.fd, turn.round, turn.length, turn.foreseen = fd, round, length, foreseen
            turn.rest, turn.ended = rest, 0
            place += 1
        self._turn[number * TURNS_MAX].began = began

    def let_pass(self, epoll: int, count: int, until: int) -> int:
        """Let those of the first `count` devices follow each other, until something else is to be done: TIME, EVENT
        or END. Raises OSError."""
        code: int = lib.nvc_turns_pass(epoll, self._devices, self._turns, count, until)
        if code < 0:
            raise OSError(-code, os.strerror(-code))
        return code

    def passed(self, number: int) -> list[tuple[int, int]]:
        """When turns ended and those after them began, as many as have; 0: that one is not to begin yet."""
        first = number * TURNS_MAX
        last = first + self._device[number].place
        found = [
            (one.ended, after.began) for one, after in zip(self._turn[first:last], self._turn[first + 1 :])
        ]
        ended = self._turn[last].ended
        return [*found, (ended, 0)] if ended else found

    def error(self, number: int) -> int:
        """An errno where the last one that began could not be told so, else 0."""
        return int(self._device[number].error)

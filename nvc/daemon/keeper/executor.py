"""Calls the driver for one device: the only module here that does.

A call that names a channel which is gone is done in part. It is split then, so that every living channel is
reached, and the gone one is left out for a second: the driver writes to the kernel's log each time. A call that
fails otherwise is counted by its status and said once; the caller tries again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError
from nvc.daemon.keeper.plan import NATIVE_US, Group
from nvc.kernel.rm_abi import words

if TYPE_CHECKING:
    from nvc.daemon.keeper.driver import RmDriver
    from nvc.kernel.rm import Subdevice

OK, GONE = 0, 0x21  # NV_OK, NV_ERR_INVALID_CHANNEL
#: In place of a status: the call itself failed; the process or its descriptor is not there.
NO_ANSWER, NO_DESCRIPTOR = -1, -2
REST = 1_000_000_000  # nanoseconds until a channel that was gone, or a timeslice that failed, is tried again

SPLITS = 24  # calls in place of one, at most
REFUSED = 8  # calls; one slice's channels may be refused for a reason of its own

Channel = tuple[int, int]


class Executor:
    """Keeps what was asked of the driver for one device, and what came of it."""

    def __init__(
        self, subdevice: Subdevice, driver: RmDriver, clock: Callable[[], int], alive: Callable[[int], bool]
    ) -> None:
        self.subdevice = subdevice
        self.driver = driver
        self.clock = clock
        self.alive = alive
        self.off: dict[Channel, tuple[int, int]] = {}  # stopped channels; serial and process of their group
        self.lengths: dict[Channel, tuple[int, int, int]] = {}  # of groups: timeslice, serial, touched
        self.gone: dict[Channel, int] = {}  # channels that were not there, until when they are left out
        self.again: dict[Channel, int] = {}  # groups whose timeslice failed, until when it is left
        self.read: dict[Channel, int] = {}  # groups whose timeslice was read back, when
        self.calls = 0
        self.failed: dict[int, int] = {}  # by status
        self.refused = 0  # calls on end in which no channel was reached, and one was refused
        self.problem = ""  # why nothing can be stopped or started

    def stop(self, groups: Iterable[Group], again: bool = False) -> bool:
        """Stop what is not stopped yet of some groups; `again`: all of it. Whether nothing of them runs."""
        wanted = [
            ((group.client, channel), (group.serial, group.pid))
            for group in groups
            for channel in group.channels
            if again or self.off.get((group.client, channel)) != (group.serial, group.pid)
        ]
        reached, refused = self._call(self.subdevice.stop, [channel for channel, _ in wanted], "stop")
        self.off.update(one for one in wanted if one[0] in reached)
        return not refused

    def holds(self, pid: int, groups: Iterable[Group]) -> bool:
        """Whether all channels of a process were stopped, as they are now."""
        return all(
            self.off.get((group.client, channel)) == (group.serial, group.pid)
            for group in groups
            if pid in (group.pid, group.opener)
            for channel in group.channels
        )

    def start(self, groups: Iterable[Group]) -> bool:
        """Start the channels of some groups, also those that somebody else stopped. Whether all living ones run."""
        wanted = [(group.client, channel) for group in groups for channel in group.channels]
        return self.release(wanted)

    def release(self, channels: Sequence[Channel]) -> bool:
        """Start channels. Whether all living ones run."""
        _, refused = self._call(self.subdevice.start, channels, "start")
        for channel in channels:
            if channel not in refused:
                self.off.pop(channel, None)
        return not refused

    def _call(
        self, work: Callable[[Sequence[Channel]], int], channels: Sequence[Channel], name: str
    ) -> tuple[set[Channel], set[Channel]]:
        """The channels that were reached, and those that the driver refused; those that are gone are in neither."""
        now = self.clock()
        reached: set[Channel] = set()
        refused: set[Channel] = set()
        rest = [[one for one in channels if self.gone.get(one, 0) <= now]]
        status, calls = OK, 0
        while rest:
            part = rest.pop()
            if calls >= SPLITS:
                refused.update(part)  # for now: a process may have freed a thousand channels
                continue
            calls += bool(part)
            if not part:
                continue
            self.calls += 1
            try:
                status = work(part)
            except (OSError, NvcError):
                status = NO_ANSWER
            if status == OK:
                reached.update(part)
                continue
            if status != GONE:
                self.failed[status] = self.failed.get(status, 0) + 1
            if status != GONE and (len(part) == 1 or self.refused):
                refused.update(part)
            elif len(part) == 1:
                self.gone[part[0]] = now + REST
                self.off.pop(part[0], None)
            else:
                half = len(part) // 2
                rest += [part[half:], part[:half]]
        if reached:
            self.problem, self.refused = "", 0
        elif refused:
            self.refused += 1
            if self.refused >= REFUSED:
                self.problem = f"{name} channels: {words(status) if status > 0 else 'the call failed'}"
        return reached, refused

    def wants_length(self, group: Group, us: int) -> bool:
        """Whether a group's timeslice is to be set."""
        key = (group.client, group.handle)
        return (
            bool(us)
            and group.fd >= 0
            and self.lengths.get(key) != (us, group.serial, group.touched)
            and self.again.get(key, 0) <= self.clock()
        )

    def set_length(self, group: Group, us: int) -> bool:
        """Set a group's timeslice in microseconds. Whether it was set."""
        key = (group.client, group.handle)
        try:
            fd = self.driver.borrow(group.pid, group.fd)
        except (OSError, NvcError):
            status = NO_DESCRIPTOR
        else:
            try:
                self.calls += 1
                status = self.driver.set_timeslice(fd, group.client, group.handle, us)
            except (OSError, NvcError):
                status = NO_ANSWER
            finally:
                os.close(fd)
        if status == OK:
            self.lengths[key] = (us, group.serial, group.touched)
            self.again.pop(key, None)
            return True
        self.failed[status] = self.failed.get(status, 0) + 1
        self.again[key] = self.clock() + REST
        return False

    def differs(self, group: Group, us: int) -> bool:
        """Whether a group has another timeslice than the one that was set. It is to be set again, then."""
        key = (group.client, group.handle)
        if self.lengths.get(key) != (us, group.serial, group.touched):
            return False  # it is to be set anyhow
        self.read[key] = self.clock()
        try:
            fd = self.driver.borrow(group.pid, group.fd)
        except (OSError, NvcError):
            return False
        try:
            self.calls += 1
            status, found = self.driver.get_timeslice(fd, group.client, group.handle)
        except (OSError, NvcError):
            return False
        finally:
            os.close(fd)
        if status != OK or found == us:
            return False
        del self.lengths[key]
        return True

    def give_back(self, groups: Iterable[Group]) -> None:
        """Set the driver's own timeslice again where another one was set."""
        for group in groups:
            length = self.lengths.get((group.client, group.handle))
            if length is not None and length[0] != NATIVE_US and self.alive(group.pid):
                self.set_length(group, NATIVE_US)

    def forget(self, groups: Sequence[Group]) -> None:
        """Only these groups are left: start what is stopped of the others whose processes live, forget the rest."""
        handles = {(group.client, group.handle) for group in groups}
        channels = {(group.client, channel) for group in groups for channel in group.channels}
        left: dict[tuple[int, int], list[Channel]] = {}
        for key, (_, pid) in self.off.items():
            if key not in channels:
                left.setdefault((key[0], pid), []).append(key)
        for (_, pid), few in left.items():
            if self.alive(pid):
                self._let_go(few)
        now = self.clock()
        self.lengths = {key: value for key, value in self.lengths.items() if key in handles}
        self.again = {key: value for key, value in self.again.items() if key in handles}
        self.read = {key: value for key, value in self.read.items() if key in handles}
        self.off = {key: value for key, value in self.off.items() if key in channels}
        self.gone = {key: value for key, value in self.gone.items() if key in channels and value > now}

    def _let_go(self, channels: Sequence[Channel]) -> None:
        """Start what nobody stops any more. Most often its process has freed it: then there is nothing to start."""
        self.calls += 1
        try:
            status = self.subdevice.start(channels)
        except (OSError, NvcError):
            status = NO_ANSWER
        if status not in (OK, GONE):
            self.failed[status] = self.failed.get(status, 0) + 1

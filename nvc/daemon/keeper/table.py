"""Which channel groups compute on each device, from what the tracer sees. Pure.

A group computes unless it, or its channels, are of another engine: what cannot be told is held as well. A channel
that was made without a group is one of its own. Handles are used again, and descriptors are passed on: an object
belongs to the client that it is in, and lives as long as a process that has made something in that client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from nvc.daemon.keeper.plan import Group
from nvc.kernel.objects import (
    CLIENT,
    CLIENT_FREED,
    DEVICE,
    EXITED,
    FREED,
    GROUP,
    NEW,
    TIMESLICE,
    News,
    Object,
)

DEPTH = 8  # of parents; no honest chain is longer
NO_DESCRIPTOR = -1  # of a channel without a group: it has no timeslice to set
UNKNOWN = -1  # device: the process did not let us read which one it asked for

Placed = tuple[int, Group]


class Table:
    """Objects by client. `groups` tells what of them computes."""

    def __init__(self) -> None:
        self._clients: dict[int, dict[int, Object]] = {}
        self._touched: dict[tuple[int, int], int] = {}  # of groups: how often a process set the timeslice
        self._found: dict[int, tuple[Placed, ...]] = {}  # by client, as far as it is known
        self._dead: set[int] = set()  # processes that ended, of which objects live on

    def load(self, objects: Iterable[Object]) -> None:
        """Begin anew with the whole of the tracer's table, as after news were lost."""
        self._clients.clear()
        self._found.clear()
        self._dead.clear()
        for one in objects:
            self._clients.setdefault(one.client, {})[one.handle] = one
        self._touched = {
            key: count for key, count in self._touched.items() if self._object(*key) is not None
        }

    def take(self, news: Iterable[News]) -> bool:
        """Take news in their order. Whether groups may have changed."""
        changed = False
        for one in news:
            if one.kind == NEW and one.object is not None:
                self._dead.discard(one.pid)
                self._clients.setdefault(one.client, {})[one.handle] = one.object
            elif one.kind == FREED:
                self._free(one.client, one.handle)
            elif one.kind == CLIENT_FREED:
                self._clients.pop(one.client, None)
                self._found.pop(one.client, None)
            elif one.kind == TIMESLICE:
                if self._object(one.client, one.handle) is None:
                    continue
                key = (one.client, one.handle)
                self._touched[key] = self._touched.get(key, 0) + 1
            elif one.kind == EXITED:
                changed = self._exited(one.pid) or changed
                continue
            else:
                continue
            self._found.pop(one.client, None)
            changed = True
        return changed

    def purge(self, alive: Callable[[int], bool]) -> bool:
        """Forget processes that have ended unseen. Whether groups may have changed."""
        pids = {one.pid for objects in self._clients.values() for one in objects.values()} - self._dead
        ended = [pid for pid in pids if not alive(pid)]
        for pid in ended:
            self._exited(pid)
        return bool(ended)

    def pids(self) -> frozenset[int]:
        """The living processes that have objects."""
        found = {one.pid for objects in self._clients.values() for one in objects.values()}
        return frozenset(found - self._dead)

    def counts(self) -> dict[int, int]:
        """How many objects each living process has."""
        found = Counter(one.pid for objects in self._clients.values() for one in objects.values())
        return {pid: count for pid, count in found.items() if pid not in self._dead}

    def groups(self) -> dict[int, tuple[Group, ...]]:
        """The groups that compute, by the driver's number of the device; UNKNOWN for those that hide it."""
        found: dict[int, list[Group]] = {}
        for client in self._clients:
            if client not in self._found:
                self._found[client] = tuple(self._computing(client))
            for instance, group in self._found[client]:
                found.setdefault(instance, []).append(group)
        return {instance: tuple(groups) for instance, groups in found.items()}

    def _object(self, client: int, handle: int) -> Object | None:
        return self._clients.get(client, {}).get(handle)

    def _free(self, client: int, handle: int) -> None:
        """Forget an object and all below it."""
        objects = self._clients.get(client, {})
        if handle == client:
            self._clients.pop(client, None)
            return
        rest = [handle]
        while rest:
            gone = rest.pop()
            objects.pop(gone, None)
            self._touched.pop((client, gone), None)
            rest += [one.handle for one in objects.values() if one.parent == gone]

    def _exited(self, pid: int) -> bool:
        """A process has ended. A client in which another one has made something lives on."""
        changed = False
        for client, objects in list(self._clients.items()):
            makers = {one.pid for one in objects.values()}
            if pid not in makers:
                continue
            changed = True
            self._found.pop(client, None)
            if makers - self._dead - {pid}:
                self._dead.add(pid)
            else:
                del self._clients[client]
        self._touched = {key: count for key, count in self._touched.items() if key[0] in self._clients}
        return changed

    def _computing(self, client: int) -> list[Placed]:
        objects = self._clients[client]
        root = objects.get(client)
        inside: dict[int, list[Object]] = {}
        found: list[Placed] = []
        for one in objects.values():
            if not one.is_channel:
                continue
            parent = objects.get(one.parent)
            if parent is not None and parent.kind == GROUP:
                # A channel that is older than its group was in one that had the same handle.
                if one.serial >= parent.serial:
                    inside.setdefault(one.parent, []).append(one)
            elif one.computes or not one.engine:
                found.append(self._placed(objects, one, (one,), root))
        for one in objects.values():
            channels = inside.get(one.handle, [])
            engines = {one.engine, *(channel.engine for channel in channels)} - {0}
            if one.kind == GROUP and (one.computes or not engines or any(c.computes for c in channels)):
                found.append(self._placed(objects, one, tuple(channels), root))
        return found

    def _placed(
        self, objects: dict[int, Object], one: Object, channels: tuple[Object, ...], root: Object | None
    ) -> Placed:
        """A group, or a channel without one, with its device."""
        pid, fd = one.pid, one.fd
        if pid in self._dead:
            others = (other for other in objects.values() if other.pid not in self._dead)
            pid, fd = next((other.pid, other.fd) for other in others)
        opener = root.pid if root is not None and root.kind == CLIENT else 0
        group = Group(
            one.client, one.handle, pid, fd if one.kind == GROUP else NO_DESCRIPTOR,
            tuple(sorted(channel.handle for channel in channels)),
            max([one.serial, *(channel.serial for channel in channels)]),
            self._touched.get((one.client, one.handle), 0), opener,
        )  # fmt: skip
        return self._device(objects, one), group

    def _device(self, objects: dict[int, Object], one: Object) -> int:
        for _ in range(DEPTH):
            parent = objects.get(one.parent)
            if parent is None:
                break
            if parent.kind == DEVICE:
                return parent.device
            one = parent
        return UNKNOWN

"""Who holds the memory of a process that has ended: its children have its descriptors of the driver's nodes.

NVML lists that memory for the number of the process that is gone. Which process of the slice has the descriptor
nobody tells, so it is looked for among the descriptors of all processes of the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.base.files import closing
from nvc.daemon.io.identity import slice_of
from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.discovery.devices.nodes import nvidia_major
from nvc.discovery.devices.proc import char_majors
from nvc.kernel import checked
from nvc.kernel.processes import open_files, start_of
from nvc.slices.store.process_info import ENDED
from nvc.slices.store.process_view import CpuLimit

LOOK_TIME = 50_000_000  # nanoseconds of a processor for one look; the next one goes on where it ended


class HolderFinder:
    """Looks for processes of slices that have a node of the driver open.

    A tenant can have a million descriptors, and nobody is to wait for that: a look ends after LOOK_TIME.
    """

    def __init__(self, slices: SliceIndex) -> None:
        self.slices = slices
        #: By slice, where its last look ended: tenants cannot have each other's begin again.
        self._rests: dict[str, Iterator[tuple[int, int] | None]] = {}

    def find(self, key: str, listed: frozenset[int]) -> tuple[int, int] | None:
        """Number and start of a process of the slice that has a node open, and is none of the `listed` ones.

        None: no such process was found in this look.
        """
        limit = CpuLimit(LOOK_TIME)
        living = {entry.key for entry in self.slices.living()}
        self._rests = {name: rest for name, rest in self._rests.items() if name in living}
        for rest in (self._rests.get(key, iter(())), self._processes(key)):
            self._rests[key] = rest
            for found in rest:
                if found is not None and found[0] not in listed:
                    return found
                if limit.is_over():
                    return None
        return None

    def _processes(self, key: str) -> Iterator[tuple[int, int] | None]:
        """Number and start of each process of a slice that has a node open; None after some descriptors of any."""
        with open("/proc/devices", "rb") as devices:
            major = nvidia_major(char_majors(devices.read()))
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    for has_node in self._descriptors(name, major):
                        yield None
                        if has_node:
                            entry = slice_of(self.slices.kernel, int(name), self.slices.living())
                            if entry is not None and entry.key == key:
                                yield int(name), start_of(f"/proc/{name}")
                            break
                except OSError as error:
                    if error.errno not in ENDED:
                        self.slices.say(f"process {name} may hold memory of one that has ended: {error}")

    def _descriptors(self, pid: str, major: int) -> Iterator[bool]:
        """Whether some descriptors of a process, and then others, are of nodes of the driver. Raises OSError.

        None is open in between: who asks may never come back, and the tenant's files would be busy.
        """
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for some in open_files(one.path for one in descriptors):
                nodes = [self._is_node(pid, fd, major) for fd in some]
                yield any(nodes)

    def _is_node(self, pid: str, opened: int, major: int) -> bool:
        try:
            with closing(checked(opened)) as fd:
                found = self.slices.kernel.identity(fd)
        except OSError as error:
            if error.errno not in ENDED:  # a tenant's file, that hides nothing behind it
                self.slices.say(f"process {pid} has a file whose status cannot be read: {error.strerror}")
            return False  # or closed meanwhile
        return stat.S_ISCHR(found.mode) and os.major(found.node) == major

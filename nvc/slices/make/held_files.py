"""Files of the driver and of nvc that containers see, held open.

The root of a container owns them as the host's root does, so it may take a lease on one (fcntl(2), F_SETLEASE),
also through a read-only mount. Whoever opens the file then waits for 45 s (/proc/sys/fs/lease-break-time). The
kernel refuses the lease while another process has the file open for reading.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError, NvcError
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.slices.make import shim


class HeldFiles:
    """Read descriptors of what containers see, for as long as this process lives."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._root = ""
        self._paths: frozenset[str] = frozenset()  # in the driver root
        self._open: dict[tuple[str, str], int] = {}  # by root and path

    def hold(self, facts: HostFacts) -> str:
        """Hold the files of this driver and of each installed shim; see `look`."""
        lists = (
            facts.libraries, facts.libraries32, facts.binaries, facts.firmwares, facts.manifests, facts.modules,
        )  # fmt: skip
        self._root = facts.driver_root
        self._paths = frozenset(one.path for found in lists for one in found)
        return self.look()

    def look(self) -> str:
        """Hold what lies at the paths now, and let go of what did. What cannot be held: why, or "".

        A file on which somebody has a lease is opened by a later call, when the kernel has ended the lease.
        """
        try:
            shims = shim.paths()
        except OSError as error:
            return f"the shim's files are not held: {error}"
        wanted = {(self._root, path) for path in self._paths} | {("/", path) for path in shims}
        for place in set(self._open) - wanted:
            os.close(self._open.pop(place))
        problems = []
        for base in sorted({base for base, _ in wanted}):
            try:
                root = HostRoot.at(self._kernel, base)
            except NvcError as error:  # such as a driver's container that has ended: its files must not stay in use
                problems.append(str(error))
                for place in [place for place in self._open if place[0] == base]:
                    os.close(self._open.pop(place))
                continue
            root.patience = 0.0
            with root:
                problems += filter(None, (self._at(root, at) for found, at in sorted(wanted) if found == base))
        return problems[0] if problems else ""

    def _at(self, root: HostRoot, path: str) -> str:
        place = root.path, path
        held = self._open.get(place, -1)
        try:
            if held >= 0 and os.path.samestat(os.fstat(held), root.stat(path)):
                return ""
            fd, _ = root.open_regular(path)
        except (FileNotFoundError, DetectionError):
            fd = -1
        except (OSError, NvcError) as error:
            return f"{path} is not held: {error}"
        if held >= 0:
            os.close(held)
        self._open.pop(place, None)
        if fd >= 0:
            self._open[place] = fd
        return ""

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

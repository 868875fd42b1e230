"""Which slices live, which processes they have, and what their ledgers say: from /proc of the host.

A slice lives while one of these holds, whatever its processes do to what they see:

- its first process, the container's first, exists: same number, same start time;
- a process is in its mount namespace;
- a process has the slice's quota among its mounts, at any path;
- it was made for a claim that is prepared.

No path is looked up in the container. In doubt a slice lives: one that is kept by mistake denies somebody a start,
but one that is dropped by mistake gives its share away twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys

from nvc.kernel import O_PATH
from nvc.slices.model import layout, ledger
from nvc.slices.model.ledger import Account, Budget, LedgerError
from nvc.slices.store.process_info import ENDED, is_here, namespace_id_of, namespace_link, start_of
from nvc.slices.store.process_view import ProcessView, is_quota
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.kernel import Kernel
    from nvc.slices.store.registry import Entry

#: fcntl(2): ask whether somebody else holds an open file description lock. Python 3.10 has no name for it.
F_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit machines
#: So many processes of a slice are asked for its ledger: one may have changed its root directory.
TRIES = 16
#: Bytes of a list of mounts: more than a tenant can make of 100,000 mounts (sysctl fs.mount-max) with usual names.
MOUNTS_MAX = 64 << 20


class Life(Value):
    """Why a slice counts as living."""

    pids: tuple[int, ...]  # its processes, as /proc numbers them
    doubt: str = ""  # without any: what could not be read, for which it is taken to live


class LedgerReading(Value):
    """What a slice's ledger says at one moment."""

    accounts: tuple[Account, ...]
    budgets: tuple[Budget, ...] = ()  # by position of the device in the quota
    problem: str = ""  # why that is not known


def living(kernel: Kernel, entries: tuple[Entry, ...]) -> dict[str, Life]:
    """The living slices by key, each with all of its processes. Examines every process of the host."""
    host = _Host(kernel)
    found = {}
    for entry in entries:
        life = host.life_of(entry)
        if life is not None:
            found[entry.key] = life
    return found


def living_of(kernel: Kernel, entries: tuple[Entry, ...]) -> dict[str, Life]:
    """The living slices by key, each with at least one of its processes.

    Examines every process of the host only if the first process of a slice has ended: with thousands of processes
    that takes longer than others should wait for a lease.
    """
    found = {entry.key: Life((entry.pid,)) for entry in entries if is_here(entry.pid, entry.start)}
    found |= {entry.key: _prepared(entry) for entry in entries if entry.claim}
    rest = tuple(entry for entry in entries if entry.key not in found)
    return found | living(kernel, rest) if rest else found


def _prepared(entry: Entry) -> Life:
    """The life of a slice whose claim is prepared: it lives whether containers have begun or not."""
    return Life((), f"prepared for the claim {entry.claim}")


class _Host:
    """The processes of this host by mount namespace, at one moment."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: What could not be read, and when the process began that it is of.
        self.doubts: list[tuple[int, str]] = []
        self.pids: dict[int, list[int]] = {}
        self._mounts: dict[int, list[bytes]] = {}  # lines of the lists of mounts, by process
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError as error:
            names = []
            self.doubts.append((sys.maxsize, f"/proc: {error.strerror}"))
        for name in names:
            try:
                link, thread = namespace_link(int(name))
            except OSError as error:
                self._doubt(name, "ns/mnt", error)
                continue
            self.pids.setdefault(int(link[5:-1]), []).append(thread)
        for pids in self.pids.values():
            pids.sort()

    def life_of(self, entry: Entry) -> Life | None:
        """Why the slice lives; None if it does not."""
        own = tuple(self.pids.get(entry.namespace, ()))
        try:
            device = os.stat(entry.quota).st_dev
        except FileNotFoundError:
            device = -1  # nobody can be found by it
        except OSError as error:
            return Life(own, f"{entry.quota}: {error.strerror}")
        if entry.claim:
            return self._claimed(entry, device)
        if own and self._is_of(own, entry, device):
            return Life(own)
        if is_here(entry.pid, entry.start):
            return Life((entry.pid,))
        if device >= 0:
            for namespace, pids in self.pids.items():
                one = next((pid for pid in pids[:TRIES] if self._lines(pid)), 0)
                if one and namespace != entry.namespace and self._shows(one, entry, device):
                    return Life(tuple(pids))
        # Nobody is in a slice who began before the first process in it did.
        doubt = next((text for began, text in self.doubts if began >= entry.start), "")
        return Life((), doubt) if doubt else None

    def _claimed(self, entry: Entry, device: int) -> Life:
        """The life of a slice that several containers share, with the processes of all of them."""
        found: list[int] = []
        for pids in self.pids.values():
            one = next((pid for pid in pids[:TRIES] if self._lines(pid)), 0)
            if device >= 0 and one and self._shows(one, entry, device):
                found += pids
        return Life(tuple(sorted(found))) if found else _prepared(entry)

    def _doubt(self, pid: str, name: str, error: OSError) -> None:
        # Of one that has just ended the kernel says that its list of mounts is an invalid argument.
        # And the first process of all is in no slice.
        if error.errno in (*ENDED, errno.EINVAL) or pid == "1":
            return
        try:
            began = start_of(f"/proc/{pid}")
        except OSError as second:
            if second.errno in ENDED:
                return
            began = sys.maxsize
        self.doubts.append((began, f"/proc/{pid}/{name}: {error.strerror}"))

    def _is_of(self, pids: tuple[int, ...], entry: Entry, device: int) -> bool:
        """Whether the namespace of these processes is the one that the slice was made for, not a later one."""
        for pid in pids:
            try:
                number = namespace_id_of(str(pid)) if entry.mounts else 0
                if number:
                    return number == entry.mounts
                if device >= 0 and self._shows(pid, entry, device):
                    return True
                if self._may_be_inside(pid, entry):
                    return True
            except OSError as error:
                if error.errno not in ENDED:
                    return True
        return False

    def _shows(self, pid: int, entry: Entry, device: int) -> bool:
        """Whether the process has the slice's quota among its mounts."""
        end = f"/{entry.key}/quota".encode()
        found = (line.split(b" ", 5) for line in self._lines(pid) if end in line)
        return any(len(words) == 6 and is_quota(words, entry, device) for words in found)

    def _lines(self, pid: int) -> list[bytes]:
        """The lines of /proc/PID/mountinfo (proc(5)); none for a process that has ended."""
        if pid not in self._mounts:
            self._mounts[pid] = []
            try:
                with open(f"/proc/{pid}/mountinfo", "rb") as mounts:
                    self._mounts[pid] = mounts.read(MOUNTS_MAX).splitlines()
            except OSError as error:
                self._doubt(str(pid), "mountinfo", error)
        return self._mounts[pid]

    def _may_be_inside(self, pid: int, entry: Entry) -> bool:
        """Whether a process that does not show the quota may be of the slice. Raises OSError.

        Asked where the kernel has no number for its namespace. It has the root directory that the slice was made
        for, and the quota was unmounted; or one that is no mount, and sees only what is mounted below that. In the
        host's own root directory only the host's root unmounts something.
        """
        root = os.open(f"/proc/{pid}/root", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = self.kernel.identity(root)
        finally:
            os.close(root)
        if f"{found.device:x}-{found.inode:x}" == "-".join(entry.key.split("-")[1:3]):
            here = os.stat("/")
            return (found.device, found.inode) != (here.st_dev, here.st_ino)
        return not any(line.split(b" ", 5)[4:5] == [b"/"] for line in self._lines(pid))


def use_of(kernel: Kernel, entry: Entry, pids: tuple[int, ...], devices: int) -> LedgerReading:
    """Memory and time of the slice's first `devices` devices, as its ledger says. Never raises: see `problem`."""

    def whole(fd: int) -> LedgerReading:
        data = os.pread(fd, layout.LEDGER_SIZE, 0)
        live = frozenset(account.slot for account in ledger.parse(data, 0) if is_held(fd, account.slot))
        budgets = ledger.parse_budgets(data[layout.BUDGETS_OFFSET :], devices)
        return LedgerReading(ledger.parse(data, devices, live), budgets)

    return _asked(kernel, entry, pids, whole)


def budgets_of(kernel: Kernel, entry: Entry, pids: tuple[int, ...], devices: int) -> LedgerReading:
    """How much time the slice's processes have used on its first `devices` devices. Reads less than `use_of`."""

    def part(fd: int) -> LedgerReading:
        data = os.pread(fd, layout.BUDGET.size * layout.DEVICES, layout.BUDGETS_OFFSET)
        return LedgerReading((), ledger.parse_budgets(data, devices))

    return _asked(kernel, entry, pids, part)


def _asked(
    kernel: Kernel, entry: Entry, pids: tuple[int, ...], read: Callable[[int], LedgerReading]
) -> LedgerReading:
    """What `read` makes of the ledger, opened through the first process that can be asked."""
    problem = "no process to ask"
    for pid in pids[:TRIES]:
        fd = -1
        try:
            with ProcessView(kernel, pid) as view:
                fd = view.open_ledger(entry)
            return read(fd)
        except OSError as error:
            problem = f"ledger: {(error.strerror or str(error)).lower()}"
        except LedgerError as error:
            problem = f"ledger: {error.cause}"
        finally:
            if fd >= 0:
                os.close(fd)
    return LedgerReading((), problem=problem)


def is_held(fd: int, slot: int) -> bool:
    """Whether a process holds the lock on the slot's byte."""
    answer = fcntl.fcntl(fd, F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def is_remnant(path: str) -> bool:
    """Whether the directory of an entry is what a removal left that was killed."""
    try:
        return not {"about", "quota"}.intersection(os.listdir(path))
    except OSError:
        return False  # it counts as a slice

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
from collections.abc import Callable

from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.kernel.processes import open_root, start_of
from nvc.model.slices import layout, ledger
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import Account, Budget, LedgerError
from nvc.slices.store.process_info import ENDED, is_here, mount_namespace, namespace_id_of
from nvc.slices.store.process_view import CpuLimit, ProcessView, root_within

#: fcntl(2): ask whether somebody else holds an open file description lock. Python 3.10 has no name for it.
F_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit machines
#: So many processes of a slice are asked for its ledger: one may have changed its root directory.
TRIES = 16
PART = 1 << 16  # bytes of a list of mounts that are read at a time
#: Nanoseconds of a processor for all lists of mounts: a tenant can make many namespaces with 100,000 mounts each
#: (sysctl fs.mount-max), and a line for each as long as it likes. Where leases wait for it, it is LEASES_TIME.
LISTS_TIME, LEASES_TIME = 2_000_000_000, 50_000_000
#: Likewise, for which processes of a ledger live: of 512 that is a few milliseconds. A tenant can lock many bytes.
LOCKS_TIME = 20_000_000


class Life(Value):
    """Why a slice counts as living."""

    pids: tuple[int, ...]  # its processes, as /proc numbers them
    doubt: str = ""  # without any: what could not be read, for which it is taken to live


class LedgerReading(Value):
    """What a slice's ledger says at one moment."""

    accounts: tuple[Account, ...]
    budgets: tuple[Budget, ...] = ()  # by position of the device in the quota
    problem: str = ""  # why that is not known


def living(kernel: Kernel, entries: tuple[Entry, ...], most: int = LISTS_TIME) -> dict[str, Life]:
    """The living slices by key, each with all of its processes. Examines every process of the host.

    Lists of mounts that cannot be read in `most` nanoseconds of a processor leave it in doubt who has ended.
    """
    host = _Host(kernel, entries, most)
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
    return found | living(kernel, rest, LEASES_TIME) if rest else found


def _prepared(entry: Entry) -> Life:
    """The life of a slice whose claim is prepared: it lives whether containers have begun or not."""
    return Life((), f"prepared for the claim {entry.claim}")


class _Host:
    """The processes of this host by mount namespace, at one moment."""

    def __init__(self, kernel: Kernel, entries: tuple[Entry, ...], most: int) -> None:
        self.kernel = kernel
        self._keys = frozenset(entry.key.encode() for entry in entries)
        #: What could not be read, and when the process began that it is of.
        self.doubts: list[tuple[int, str]] = []
        self.pids: dict[int, list[int]] = {}
        self._mounts: dict[int, _Mounts] = {}  # by process
        self._root = b""  # of the registry, in lists of mounts
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]
        except OSError as error:
            names = []
            self.doubts.append((sys.maxsize, f"/proc: {error.strerror}"))
        if entries:
            registry = os.path.dirname(entries[0].directory)
            try:
                self._root = root_within(kernel, registry)
            except OSError as error:
                self.doubts.append((sys.maxsize, f"{registry}: {error.strerror}"))
        for name in names:
            try:
                namespace, thread = mount_namespace(int(name))
            except OSError as error:
                self._doubt(name, "ns/mnt", error)
                continue
            self.pids.setdefault(namespace, []).append(thread)
        for pids in self.pids.values():
            pids.sort()
        self._limit = CpuLimit(most)  # of a host with many processes, to look at all of them takes longer

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
                one = next((pid for pid in pids[:TRIES] if self._list(pid).lines), 0)
                if one and namespace != entry.namespace and self._shows(one, entry, device):
                    return Life(tuple(pids))
        # Nobody is in a slice who began before the first process in it did.
        doubt = next((text for began, text in self.doubts if began >= entry.start), "")
        return Life((), doubt) if doubt else None

    def _claimed(self, entry: Entry, device: int) -> Life:
        """The life of a slice that several containers share, with the processes of all of them."""
        found: list[int] = []
        for pids in self.pids.values():
            one = next((pid for pid in pids[:TRIES] if self._list(pid).lines), 0)
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
                number = namespace_id_of(pid) if entry.mounts else 0
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
        number = f"{os.major(device)}:{os.minor(device)}".encode()
        return (number, entry.key.encode()) in self._list(pid).quotas

    def _list(self, pid: int) -> _Mounts:
        """What /proc/PID/mountinfo says (proc(5)); nothing for a process that has ended."""
        found = self._mounts.get(pid)
        if found is None:
            found = self._mounts[pid] = _Mounts(self._keys, self._root)
            try:
                if not found.read(pid, self._limit):
                    self._doubt(str(pid), "mountinfo", OSError(errno.EFBIG, "too long to be read"))
            except OSError as error:
                self._doubt(str(pid), "mountinfo", error)
        return found

    def _may_be_inside(self, pid: int, entry: Entry) -> bool:
        """Whether a process that does not show the quota may be of the slice. Raises OSError.

        Asked where the kernel has no number for its namespace. It has the root directory that the slice was made
        for, and the quota was unmounted; or one that is no mount, and sees only what is mounted below that. In the
        host's own root directory only the host's root unmounts something.
        """
        with closing(open_root(pid)) as root:
            found = self.kernel.identity(root)
        if f"{found.device:x}-{found.inode:x}" == "-".join(entry.key.split("-")[1:3]):
            here = os.stat("/")
            return (found.device, found.inode) != (here.st_dev, here.st_ino)
        return not self._list(pid).has_root


class _Mounts:
    """What is of interest in the mounts of a process. It does not grow with their number."""

    __slots__ = ("keys", "root", "lines", "quotas", "has_root")

    def __init__(self, keys: frozenset[bytes], root: bytes) -> None:
        self.keys = keys
        self.root = root
        self.lines = False  # whether there are any
        self.quotas: set[tuple[bytes, bytes]] = set()  # device and key of each
        self.has_root = False  # whether its root directory is a mount

    def read(self, pid: int, limit: CpuLimit) -> bool:
        """Read the list; False: it is too long for the limit. Raises OSError."""
        with closing(os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            rest = b""
            while not limit.is_over():
                part = os.read(fd, PART)
                if not part:
                    return True
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._take(line)
        return False

    def _take(self, line: bytes) -> None:
        self.lines = True
        if b"/quota " not in line and b" / " not in line:
            return
        words = line.split(b" ", 5)
        if len(words) == 6:
            self.has_root |= words[4] == b"/"
            above, _, name = words[3].rpartition(b"/")
            root, _, key = above.rpartition(b"/")
            if name == b"quota" and key in self.keys and root == self.root:
                self.quotas.add((words[2], key))


def use_of(kernel: Kernel, entry: Entry, pids: tuple[int, ...], devices: int) -> LedgerReading:
    """Memory and time of the slice's first `devices` devices, as its ledger says. Never raises: see `problem`."""

    limit = CpuLimit(LOCKS_TIME)  # for all that are asked

    def whole(fd: int) -> LedgerReading:
        data = os.pread(fd, layout.LEDGER_SIZE, 0)
        budgets = ledger.parse_budgets(data[layout.BUDGETS_OFFSET :], devices)
        return LedgerReading(held(fd, ledger.parse(data, devices), limit), budgets)

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


def held(fd: int, accounts: tuple[Account, ...], limit: CpuLimit) -> tuple[Account, ...]:
    """The accounts of living processes: somebody holds the lock on the slot. Raises OSError, LedgerError."""
    living = []
    for account in accounts:
        if limit.is_over():  # the kernel goes through all locks of a file for each slot
            raise LedgerError("read ledger", "", "too many locks")
        if is_held(fd, account.slot):
            living.append(account)
    return tuple(living)


def is_held(fd: int, slot: int) -> bool:
    """Whether a process holds the lock on the slot's byte."""
    answer = fcntl.fcntl(fd, F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

"""Which processes a slice has, and what they say that they hold. Found through /proc, from the host."""

from __future__ import annotations

import fcntl
import os
import struct

from nvc.value import Value
from nvc.vgpu import layout, ledger
from nvc.vgpu.ledger import Account, Budget, LedgerError
from nvc.vgpu.sight import Sight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.kernel import Kernel
    from nvc.vgpu.registry import Entry

#: fcntl(2): ask whether somebody else holds an open file description lock. Python 3.10 has no name for it.
F_OFD_GETLK = 36
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit machines
#: So many processes of a namespace are tried: one may have changed its root directory.
TRIES = 16


class Use(Value):
    """What the processes of a slice hold at one moment."""

    accounts: tuple[Account, ...]
    budgets: tuple[Budget, ...] = ()  # by position of the device in the quota
    problem: str = ""  # why that is not known


def processes_of(kernel: Kernel, entries: tuple[Entry, ...]) -> dict[str, tuple[int, ...]]:
    """The processes of each slice that has any, by key; process ids are those of /proc."""
    wanted = {entry.namespace for entry in entries}
    by_namespace: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            link = os.readlink(f"/proc/{name}/ns/mnt")  # mnt:[4026531841]
        except OSError:
            continue
        namespace = int(link[5:-1])
        if namespace in wanted:
            by_namespace.setdefault(namespace, []).append(int(name))
    found = {}
    for entry in entries:
        pids = sorted(by_namespace.get(entry.namespace, ()))
        if any(_sees(kernel, pid, entry) for pid in pids[:TRIES]) or (entry.pid in pids and _lives(entry)):
            found[entry.key] = tuple(pids)
    return found


def living_of(kernel: Kernel, entries: tuple[Entry, ...]) -> set[str]:
    """Keys of the slices that have processes.

    All processes of the host are gone through where the one that a slice was made for has ended, and not otherwise:
    of some thousand that takes longer than others should wait for a turn.
    """
    found = {entry.key for entry in entries if _is_at_home(entry)}
    rest = tuple(entry for entry in entries if entry.key not in found)
    return found | set(processes_of(kernel, rest)) if rest else found


def _is_at_home(entry: Entry) -> bool:
    """Whether the process that the entry was made for is still there, and in its namespace."""
    try:
        link = os.readlink(f"/proc/{entry.pid}/ns/mnt")
    except OSError:
        return False
    return link == f"mnt:[{entry.namespace}]" and _lives(entry)


def _lives(entry: Entry) -> bool:
    """Whether the process that the entry was made for is still there: its quota may not be bound yet."""
    from nvc.vgpu.registry import start_of

    try:
        return start_of(f"/proc/{entry.pid}") == entry.start
    except OSError:
        return False


def _sees(kernel: Kernel, pid: int, entry: Entry) -> bool:
    """Whether the process sees the very quota of the entry."""
    try:
        with Sight(kernel, pid) as sight:
            return sight.sees(entry)
    except OSError:
        return False


def use_of(kernel: Kernel, entry: Entry, pids: tuple[int, ...], devices: int) -> Use:
    """What the slice's processes say that they hold of its `devices` devices, and have used of their time."""

    def whole(fd: int) -> Use:
        data = os.pread(fd, layout.LEDGER_SIZE, 0)
        live = frozenset(account.slot for account in ledger.parse(data, 0) if is_held(fd, account.slot))
        budgets = ledger.parse_budgets(data[layout.BUDGETS_OFFSET :], devices)
        return Use(ledger.parse(data, devices, live), budgets)

    return _asked(kernel, entry, pids, whole)


def budgets_of(kernel: Kernel, entry: Entry, pids: tuple[int, ...], devices: int) -> Use:
    """Of that only the time; a fraction of the work."""

    def part(fd: int) -> Use:
        data = os.pread(fd, layout.BUDGET.size * layout.DEVICES, layout.BUDGETS_OFFSET)
        return Use((), ledger.parse_budgets(data, devices))

    return _asked(kernel, entry, pids, part)


def _asked(kernel: Kernel, entry: Entry, pids: tuple[int, ...], read: Callable[[int], Use]) -> Use:
    """What `read` makes of the ledger that the first process sees that can be asked."""
    problem = "no process to ask"
    for pid in pids[:TRIES]:
        fd = -1
        try:
            with Sight(kernel, pid) as sight:
                fd = sight.open_ledger(entry)
            return read(fd)
        except OSError as error:
            problem = f"ledger: {(error.strerror or str(error)).lower()}"
        except LedgerError as error:
            problem = f"ledger: {error.cause}"
        finally:
            if fd >= 0:
                os.close(fd)
    return Use((), problem=problem)


def is_held(fd: int, slot: int) -> bool:
    """Whether a process holds the lock on the slot's byte."""
    answer = fcntl.fcntl(fd, F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def is_remnant(path: str) -> bool:
    """Whether the directory of an entry is what a removal left that was killed."""
    try:
        return not {"about", "quota"}.intersection(os.listdir(path))
    except OSError:
        return False

"""The open ledgers of slices: found through their processes, looked for again, and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex
from nvc.model.slices import layout, ledger
from nvc.model.slices.ledger import Account, Budget, LedgerError
from nvc.slices.store.liveness import LOCKS_TIME, held
from nvc.slices.store.process_info import ENDED
from nvc.slices.store.process_view import CpuLimit, ProcessView

LOOK_TIME = 5_000_000  # nanoseconds of a processor, for the ledger of one slice
AT_ONCE = 4  # open ledgers that are looked for again: each look takes a millisecond of a processor


class _NotShown(Exception):
    """No process that can be asked sees the ledger."""


_NOBODY = "no process shows one"


def cause_of(error: OSError | LedgerError) -> str:
    """Why a ledger cannot be read, for people."""
    return str(error.cause if isinstance(error, LedgerError) else error.strerror).lower()


class Ledgers:
    """Reads each slice's ledger through a descriptor that is kept."""

    def __init__(self, slices: SliceIndex, processes: Callable[[str], Iterable[int]]) -> None:
        """`processes` tells those of a slice that NVML shows."""
        self.slices = slices
        self.accounts: dict[str, tuple[Account, ...]] = {}  # of each slice; missing: not known
        self.unread: dict[str, str] = {}  # slices whose ledger could not be read in this look, and why
        self._processes = processes
        self._open_ones: dict[str, int] = {}  # descriptors
        self._stamps: dict[str, int] = {}  # of the slices whose ledgers those are
        self._unopened: dict[str, str] = {}  # slices whose ledger could not be opened since the last look, and why

    def begin(self) -> None:
        """A look begins: what could not be read is tried again."""
        self.unread.clear()
        self._unopened.clear()

    def shown(self, keys: Iterable[str]) -> None:
        """Try those again of which no process could be asked: NVML shows one."""
        for key in [key for key in keys if self.unread.get(key) == _NOBODY]:
            del self.unread[key]  # the first process of a claim's slice
            self._unopened.pop(key, None)

    def model(self, known: IndexedSlice) -> tuple[int, ...]:
        """The bytes that the slice's ledger records, by position of the device; zeros if it cannot be read."""
        key = known.entry.key
        self.accounts.pop(key, None)
        if key in self.unread:
            return (0,) * len(known.devices)
        try:
            accounts = _read(self.open(known), len(known.devices))
        except (OSError, LedgerError) as error:
            self.forget(key)
            self.unread[key] = cause_of(error)
            return (0,) * len(known.devices)
        self.accounts[key] = accounts
        return ledger.totals(accounts, len(known.devices))

    def open(self, known: IndexedSlice) -> int:
        """A descriptor of the slice's ledger. Raises OSError, LedgerError.

        If that fails, it is not tried again before the next look: a tenant can make it laborious.
        """
        key = known.entry.key
        if self._stamps.get(key, known.stamp) != known.stamp:
            self.forget(key)  # another slice: the number of a mount namespace is given again
        fd = self.descriptor(key)
        if fd >= 0:
            return fd
        if key in self._unopened:
            raise LedgerError("read ledger", "", self._unopened[key])
        try:
            fd = self._open_ones[key] = self._open(known)
        except _NotShown as error:
            self._unopened[key] = str(error)
            raise LedgerError("read ledger", "", error) from None
        except (OSError, LedgerError) as error:
            self._unopened[key] = cause_of(error)
            raise
        self._stamps[key] = known.stamp
        return fd

    def _open(self, known: IndexedSlice, before: int = -1) -> int:
        """Open the ledger through a process of the slice; returns `before` if that is the same file.

        Raises OSError, LedgerError, and _NotShown where no process can be asked.
        """
        entry = known.entry
        pids = [entry.pid, *self._processes(entry.key)]
        problem: OSError | LedgerError | _NotShown = _NotShown(_NOBODY)
        limit = CpuLimit(LOOK_TIME)
        for pid in dict.fromkeys(pids):
            if limit.is_over():
                break
            try:
                with ProcessView(self.slices.kernel, pid) as view:
                    if view.sees(entry):
                        return view.open_ledger(entry, before, writable=True)
            except (OSError, LedgerError) as error:
                if not isinstance(error, OSError) or error.errno not in ENDED:
                    problem = error
        raise problem

    def descriptor(self, key: str) -> int:
        """A descriptor of the slice's ledger; -1: it is not open."""
        return self._open_ones.get(key, -1)

    def forget(self, key: str) -> None:
        """Close the slice's ledger, which is then opened again when it is needed."""
        self._stamps.pop(key, None)
        fd = self._open_ones.pop(key, -1)
        if fd >= 0:
            os.close(fd)

    def open_again(self) -> None:
        """Check of some open ledgers that they are still those of their slices, and open the others again."""
        self._unopened.clear()  # also where NVML does not answer
        for key, fd in tuple(self._open_ones.items())[:AT_ONCE]:
            self._open_ones[key] = self._open_ones.pop(key)  # the others are next
            try:
                found = self._open(self.slices.by_key[key], fd)
                if found != fd:
                    os.close(fd)
                self._open_ones[key] = found
            except _NotShown:
                pass  # of those who are asked nobody lives: the others have what they had
            except (KeyError, OSError, LedgerError):
                self.forget(key)

    def budgets(self, key: str) -> tuple[Budget, ...]:
        """The time that the slice's ledger records, by position of the device; () if unknown."""
        fd = self._open_ones.get(key, -1)
        if fd < 0:
            return ()
        try:
            count = len(self.slices.by_key[key].devices)
            data = os.pread(fd, layout.BUDGET.size * count, layout.BUDGETS_OFFSET)
            return ledger.parse_budgets(data, count)
        except (OSError, LedgerError):
            self.forget(key)
            return ()


def _read(fd: int, devices: int) -> tuple[Account, ...]:
    """The accounts of living processes; no more of the file is read than that. Raises OSError, LedgerError."""
    if os.fstat(fd).st_size < layout.LEDGER_SIZE:
        raise LedgerError("read ledger", "", "cut short")
    data = os.pread(fd, ledger.slots_size(devices), 0)
    return held(fd, ledger.parse_slots(data, devices), CpuLimit(LOCKS_TIME))

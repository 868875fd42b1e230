"""Has the processes of a slice move their memory themselves: the quota asks them, and they answer in the ledger.

It takes the place of the driver's checkpoint calls: see calls.py, and native/vgpu/swap/mover.h for the other side.
A tenant writes its ledger. So what it says decides about its own memory alone: that this has left, NVML tells.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Set

from nvc.base.value import Value
from nvc.daemon.audit.accountant import Accountant, User
from nvc.daemon.io.loop import SECOND
from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex
from nvc.daemon.suspend.calls import (
    CHECKPOINTED,
    IS_FAILED,
    IS_SUSPENDED,
    NOT_READY,
    OUT_OF_MEMORY,
    RUNNING,
    CallFailed,
    Lives,
    Outcome,
    Told,
    back,
)  # fmt: skip
from nvc.daemon.suspend.room import GPU_SPARE, Refusal, host_refusal, resident, size_refusal
from nvc.model.slices import layout, quota
from nvc.model.slices.ledger import Account, LedgerError, parse_slots, slots_size
from nvc.model.slices.sizes import size_text
from nvc.model.slices.suspension import Saved, Suspension
from nvc.slices.store.process_info import is_here, pid_inside

OUT, IN = "swap out", "swap in"
_STEP = 0.002
#: Work in flight ends within 10 s, or it is given up; a second for each GIB that the host's memory takes.
_PATIENCE, _GIB = 20.0, 1 << 30
GIVEN_BACK, _MINUTE = 5 * SECOND, 60 * SECOND  # in which memory of the host is; see HostMemory
CHECKPOINT = "`nvc-cli vgpu set SLICE --suspend-by checkpoint`"
NOT_SWAPPED = Refusal(
    "", "none of its processes has memory that can be swapped: 2 MiB or more at once by cuMemAlloc, on one GPU",
    CHECKPOINT,
)  # fmt: skip


class Files(Value):
    """Descriptors of a slice's own."""

    quota: int
    ledger: int


def _staged(account: Account, pid: int) -> int:
    """What a process keeps of the host's memory. Who lies has as much of it for something else."""
    return min(account.staged, resident(pid))


def planned(
    shown: Iterable[Saved], accounts: Iterable[Account]
) -> tuple[tuple[Saved, ...], tuple[Saved, ...]]:
    """What processes have that move some of it, and what that takes of the host's memory.

    NVML shows what they have. They say what they can move, and what they have of the host's memory for it already.
    """
    by_number = {one.pid: one for one in accounts if one.swapped}
    saved: list[Saved] = []
    taken: list[Saved] = []
    for one in shown:
        account = by_number.get(_inside(one.pid))
        if account is not None and (count := min(account.movable, one.bytes)):
            saved.append(one.replace(stays=one.bytes - count))
            taken.append(one.replace(bytes=max(0, count - _staged(account, one.pid))))
    return tuple(saved), tuple(taken)


class Proof:
    """Slices that say that they have left: NVML has to show that, too."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[Suspension, int]] = {}  # and answers of NVML; the first may be of before

    def left(self, one: Suspension) -> None:
        """One says so."""
        self._left[one.key] = one, 2

    def lies(self, users: Iterable[User]) -> dict[str, Refusal]:
        """With an answer of NVML: the slices that have not left, and how that is seen."""
        found = {}
        self._left = {key: (one, count - 1) for key, (one, count) in self._left.items()}
        for key in [key for key, (_, count) in self._left.items() if not count]:
            most = {(each.pid, each.uuid): each.stays + GPU_SPARE for each in self._left.pop(key)[0].saved}
            lies = [one for one in users if one.used > most.get((one.pid, one.uuid), one.used)]
            if lies:
                cause = f"NVML shows {size_text(lies[0].used)} of it still, so its memory has not left"
                found[key] = Refusal(f"process {lies[0].pid}", cause, CHECKPOINT)
        return found


def keepers(
    slices: Mapping[str, IndexedSlice], accounts: Mapping[str, Iterable[Account]], moving: Set[str]
) -> dict[str, int]:
    """The slices that run and keep memory of the host for the next time, and the quota of each."""
    kept = {key for key, each in accounts.items() if any(one.staged and not one.away for one in each)}
    return {key: slices[key].quota for key in sorted(kept & slices.keys() - moving)}


class HostMemory:
    """The host's memory for what leaves. Slices that run are asked for what they keep where there is too little."""

    def __init__(
        self, size: int, slices: SliceIndex, accountant: Accountant, records: Mapping[str, Suspension]
    ) -> None:
        """`size`: the most that all may take, of which `records` have what has left; 0: what the host has."""
        self.size, self.slices, self.accountant, self.records = size, slices, accountant, records
        self._since: dict[str, int] = {}  # when slices were asked, by who leaves

    def refusal(
        self, key: str, taken: Iterable[Saved], leaving: Iterable[Saved], moving: Set[str], now: int
    ) -> tuple[Refusal | None, bool]:
        """Why there is no room for what a slice takes, and whether it is to wait: there may be some soon."""
        kept = self._kept(moving)
        full = size_refusal(self.size, self.used(kept), taken)  # whatever they give back
        short = full or host_refusal(taken) or size_refusal(self.size, self.used(), taken)
        if short is not None:
            return short, full is None and self._come(key, kept, now)
        return None, bool(leaving) and host_refusal(taken, leaving) is not None  # until they have left

    def used(self, but: Container[str] = ()) -> int:
        """Bytes that what has left takes, or is to, and that running slices, without those, keep for it."""
        found = Counter[int]()
        for each in (each for one in self.records.values() for each in one.saved):
            found[each.pid] += each.moved if is_here(each.pid, each.start) else 0
        for user in self.accountant.users:
            for one in self.accountant.ledgers.accounts.get(user.key, ()) if user.key not in but else ():
                if one.staged and one.pid == user.inside:
                    found[user.pid] = max(found[user.pid], _staged(one, user.pid))
        return found.total()

    def document(self) -> dict[str, int | None]:
        """For programs."""
        used = self.used()
        return {"size": self.size or None, "used": used, "kept": used - self.used(self.slices.by_key)}

    def second(self, moving: Set[str], now: int) -> None:
        """Have given back what is kept beyond a size that was lowered."""
        if self.size and self.used() > self.size:
            self._come("", self._kept(moving), now)

    def _kept(self, moving: Set[str]) -> dict[str, int]:
        return keepers(self.slices.by_key, self.accountant.ledgers.accounts, moving)

    def _come(self, key: str, kept: Mapping[str, int], now: int) -> bool:
        """Whether to wait for it, having asked once in a minute; `kept`: the quota of each that keeps some."""
        self._since = {each: at for each, at in self._since.items() if now - at < _MINUTE}
        for fd in kept.values() if key not in self._since else ():
            try:
                quota.ask_to_move(fd, layout.SWAP_FREE)
            except OSError:
                pass  # it keeps it
        return bool(kept) and now - self._since.setdefault(key, now) < GIVEN_BACK


def _inside(pid: int) -> int:
    try:
        return pid_inside(pid)
    except OSError:
        return 0  # it has ended


class Swap:
    """A `Driver` of calls.py that asks the processes."""

    def __init__(self, files: Files, pids: Iterable[int], lives: Lives) -> None:
        self._files, self._lives = files, lives
        self._stuck = False  # a process does not come back: the others do all the same
        self._numbers = {pid: _inside(pid) for pid in pids}

    def _account(self, pid: int) -> Account | None:
        try:
            found = parse_slots(os.pread(self._files.ledger, slots_size(0), 0), 0)
        except (OSError, LedgerError):
            raise CallFailed("a look into the ledger", pid, NOT_READY) from None
        return next((one for one in found if one.pid == self._numbers[pid] and one.swapped), None)

    def _asked(self) -> int:
        try:
            return quota.asked_to_move(self._files.quota)
        except OSError:
            return 0

    def state(self, pid: int) -> int:
        """Whoever has not answered yet counts as away: it may be on its way."""
        account = self._account(pid)
        if account is None:
            return RUNNING
        return CHECKPOINTED if account.away or account.swapped != self._asked() else RUNNING

    def take(self, step: str, pid: int) -> None:
        """`checkpoint` and `restore`; the gate closes and opens with them. Raises CallFailed."""
        if step == "checkpoint" and not self._stuck:
            try:
                self._move(pid, layout.SWAP_OUT, OUT)
            except CallFailed:
                self._ask(layout.SWAP_IN)  # who answers late comes back, too
                raise
        elif step == "restore":
            self._move(pid, layout.SWAP_IN, IN)

    def _ask(self, what: int, again: bool = False) -> int:
        word = self._asked()
        try:
            return word if word & 0xFF == what and not again else quota.ask_to_move(self._files.quota, what)
        except OSError:
            return 0  # which nobody answers

    def _move(self, pid: int, what: int, step: str) -> None:
        account = self._account(pid)
        if account is None:
            return  # it moves nothing
        word = self._ask(what)
        if account.swapped == word and account.movable and account.away != (what == layout.SWAP_OUT):
            word = self._ask(what, again=True)  # it could not
        end = time.monotonic() + _PATIENCE + account.movable / _GIB
        while time.monotonic() < end:
            account = self._account(pid)
            if account is None or not self._lives(pid):
                return
            if account.swapped == word:
                if account.swap_error:
                    raise CallFailed(step, pid, account.swap_error)
                return
            time.sleep(_STEP)
        self._stuck = what == layout.SWAP_IN
        raise CallFailed(f"{step}, which is not answered,", pid, NOT_READY)


def swapped_back(driver: Swap, pids: tuple[int, ...], told: Told, lives: Lives) -> Outcome:
    """Bring the memory of all back. Where the GPU has no room, all of it stays in the host's."""
    found = back(driver, pids, told, lives)
    full = found.state == IS_FAILED and (found.step, found.code) == (IN, OUT_OF_MEMORY)
    return found.replace(state=IS_SUSPENDED) if full else found

"""Whose a process is that uses a GPU: a slice's, or a stranger's. Kept as long as the process lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nvc.base.value import Value
from nvc.daemon.io.identity import slice_of
from nvc.kernel import Kernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import Entry

STRANGER = ""  # in no slice
#: So often, once a second, a process in no slice is looked at again. A slice is in the registry before its
#: container sees it, and a start takes seconds at most.
LOOKS = 5


class Owner(Value):
    """What is known of a process."""

    start: int  # clock ticks since boot: another process with this number has another
    key: str  # of its slice, or STRANGER
    looks: int = 0  # at one in no slice, before this one
    due: bool = False


class Owners:
    """Looks a process up once, and again when the slices have changed and it was in none."""

    def __init__(self, kernel: Kernel, entries: Callable[[], list[Entry]], say: Callable[[str], None]) -> None:
        self._kernel = kernel
        self._entries = entries
        self._say = say
        self._known: dict[int, Owner] = {}
        self._searched: frozenset[str] = frozenset()

    def of(self, pids: Iterable[int]) -> dict[int, str]:
        """The key of each process's slice, STRANGER for one in none; those that have ended are left out."""
        entries = self._entries()
        keys = frozenset(entry.key for entry in entries)
        if not keys <= self._searched:  # who was in no slice may be in one that is new
            self._known = {pid: owner for pid, owner in self._known.items() if owner.key}
        self._searched = keys
        found: dict[int, Owner] = {}
        for pid in pids:
            owner = self._look(pid, entries, keys)
            if owner is not None:
                found[pid] = owner
        self._known = found
        return {pid: owner.key for pid, owner in found.items()}

    def doubt(self) -> None:
        """Look again at processes in no slice, a few times."""
        for pid, owner in self._known.items():
            if not owner.key and owner.looks < LOOKS:
                self._known[pid] = owner.replace(looks=owner.looks + 1, due=True)

    def _look(self, pid: int, entries: list[Entry], keys: frozenset[str]) -> Owner | None:
        known = self._known.get(pid)
        try:
            start = start_of(f"/proc/{pid}")
            if known is not None and known.start != start:
                known = None
            if known is not None and (known.key in keys if known.key else not known.due):
                return known
            entry = slice_of(self._kernel, pid, entries)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:  # what cannot be looked at is held like the slice that it was in
            self._say(f"process {pid} uses a GPU, and its slice is not known: {error}")
            return known
        if entry is not None:
            return Owner(start, entry.key)
        return Owner(start, STRANGER, known.looks if known is not None else 0)

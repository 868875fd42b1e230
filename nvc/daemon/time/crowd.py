"""What the tracer has no room for: who lacks objects there, and whose process ends to make room. Pure.

The tracer takes 4,096 objects of a process and 65,536 in all. An honest process has some hundred at most. Several
together can fill the table, and then it misses what others make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvc.daemon.time.owners import STRANGER
from nvc.kernel.objects import CROWDED, EXITED, FULL, News


class Crowd:
    """Takes the tracer's news."""

    def __init__(self) -> None:
        self.lacking: set[int] = set()  # living processes of which the full table lacks objects
        self.blamed: set[str] = set()  # slices that have filled it
        self.is_full = False  # it lacked room since `begin`

    def begin(self) -> None:
        """Whether the table is full is asked anew."""
        self.is_full = False

    def take(self, news: Iterable[News]) -> list[str]:
        """The texts to be logged."""
        texts = []
        for one in news:
            if one.kind == EXITED:
                self.lacking.discard(one.pid)
            elif one.kind == FULL:
                self.is_full = True
                if one.pid not in self.lacking:
                    self.lacking.add(one.pid)
                    texts.append(
                        f"process {one.pid} has channels that nvcd does not see: the tracer's table is full; the "
                        "shim limits the time of its slice until it is started again"
                    )
            elif one.kind == CROWDED:
                texts.append(f"process {one.pid} has 4,096 objects of the driver: nvcd sees no more of it")
        return texts

    def whose_end(self, counts: Mapping[int, int], owners: Mapping[int, str]) -> tuple[int, str, int] | None:
        """The process with the most objects of the slice with the most: its number, the slice's key, its objects.

        `counts`: objects by process; `owners`: keys of slices. None: a process in no slice has the most, or nobody.
        """
        totals: dict[str, int] = {}
        for pid, count in counts.items():
            if pid in owners:
                place = owners[pid] if owners[pid] != STRANGER else f"{STRANGER}{pid}"
                totals[place] = totals.get(place, 0) + count
        most = max(totals, key=lambda key: totals[key], default=STRANGER)
        mine = [(count, pid) for pid, count in counts.items() if most and owners.get(pid) == most]
        if not mine:
            return None
        count, pid = max(mine)
        self.blamed.add(most)
        return pid, most, count

    def excuses(self, pid: int, key: str) -> bool:
        """Whether the channels of a process of a slice were lost for want of room, and are not hidden by it."""
        return pid in self.lacking and key not in self.blamed

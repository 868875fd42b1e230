"""Figures of the plugin itself."""

from __future__ import annotations

import threading


class Counts:
    """What has happened since the start. Counted by any thread."""

    BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.registrations = 0
        self.durations = [0] * (
            len(self.BUCKETS) + 1
        )  # of preparations, by the first bucket that holds them
        self.seconds = 0.0
        self.failures: dict[str, int] = {"prepare": 0, "unprepare": 0, "allocate": 0, "publish": 0}

    def prepared(self, seconds: float) -> None:
        """A claim was prepared in that time."""
        place = sum(seconds > most for most in self.BUCKETS)
        with self._lock:
            self.durations[place] += 1
            self.seconds += seconds

    def failed(self, what: str) -> None:
        """Something went wrong: `prepare`, `unprepare`, `allocate` or `publish`."""
        with self._lock:
            self.failures[what] += 1

"""Follows changes of objects at the API server, in a thread of its own, from the version of a list on.

A watch that ends is taken up again where it ended. One that the API server no longer knows the beginning of (410)
needs another list.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvc.base.errors import NvcError
from nvc.kubernetes.api.client import Api, Stream
from nvc.kubernetes.errors import GONE, ApiError

#: Seconds that the API server is asked to keep one watch, at least; at most twice as many.
SECONDS = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
#: Seconds that a watch has to last for the next one to begin after the first pause.
LASTING = 10.0
#: Seconds without a change by others after which the next one is acted on after the first pause.
QUIET = 60.0
STEP = "watch at the API server"


class Backoff:
    """Pauses, each up to twice as long as the one before. Nodes that begin together soon do not act together."""

    def __init__(self, first: float) -> None:
        self.first = first
        self.reset()

    def reset(self) -> None:
        self._next = self.first

    def pause(self) -> float:
        """Seconds of the next pause."""
        pause, self._next = self._next, min(2 * self._next, max(self.first, LONGEST_PAUSE))
        return pause * random.uniform(0.5, 1.0)


@dataclass
class Watch:
    """One thread that follows; it begins at the first `since`.

    `foreign` gets each event's type and object, and says whether others made the change. After such a change,
    and where changes may have been missed, `look` is called.
    """

    api: Api
    path: str  # with a query
    foreign: Callable[[str, dict[str, Any]], bool]
    look: Callable[[], None]
    told: Callable[[NvcError], None]  # hears why a watch cannot begin
    first_pause: float
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        self._said = ""
        self.version = ""  # after which changes are news; "" where a list has to say it
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._listed, self._ended = threading.Event(), threading.Event()
        self._again, self._pace = Backoff(self.first_pause), Backoff(self.first_pause)
        self._acted = 0.0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def following(self) -> bool:
        return self._stream is not None

    def start(self) -> None:
        """Follow, as soon as there is a version to begin with."""
        self._thread.start()

    def since(self, version: str) -> None:
        """Somebody has listed the objects: changes after this version are news. A watch that goes on is kept."""
        with self._lock:
            if self._stream is None:
                self.version = version
        self._listed.set()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._listed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.interrupt()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self.version:
                self._listed.wait()
                self._listed.clear()
                continue
            begin = time.monotonic()
            try:
                self._follow()
            except NvcError as error:
                self._failed(error)
            if time.monotonic() - begin > LASTING:
                self._again.reset()
            self._ended.wait(self._again.pause())

    def _failed(self, error: NvcError) -> None:
        if self._ended.is_set():
            return
        if isinstance(error, ApiError) and error.status == GONE:
            with self._lock:
                self.version = ""
            self._listed.clear()
            self.look()
        elif str(error) != self._said:
            self._said = str(error)
            self.told(error)

    def _follow(self) -> None:
        """Follow until the answer ends. Raises NvcError."""
        seconds = self.seconds * random.uniform(1.0, 2.0)
        words = urllib.parse.urlencode({
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": max(1, round(seconds)),
        })  # fmt: skip
        stream = self.api.stream(f"{self.path}&{words}", seconds + self.api.timeout)
        with self._lock:
            self._stream = stream
        try:
            if self._ended.is_set():
                return
            self._said = ""
            for line in stream:
                self._take(line)
                if self._ended.is_set():
                    return
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _take(self, line: bytes) -> None:
        """Act on one event. Raises ApiError on one that ends the watch."""
        path = self.path.partition("?")[0]
        try:
            event = json.loads(line)
            kind, found = event["type"], event["object"]
            meta = found.get("metadata") or {}
            version = str(meta.get("resourceVersion") or "")
            by_others = kind not in ("ERROR", "BOOKMARK") and self.foreign(kind, found)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ApiError(STEP, path, "not a valid event of a watch", status=GONE) from None
        if kind == "ERROR":
            # Whatever it is, what was missed is seen by another list.
            raise ApiError(STEP, path, f"HTTP {found.get('code')}: {found.get('message')}", status=GONE)
        if by_others:
            self._act()
        if version:
            self.version = version

    def _act(self) -> None:
        """Have somebody look: at once, and later and later while others change what was just put right."""
        if time.monotonic() - self._acted > QUIET:
            self._pace.reset()
        self._ended.wait(self._pace.pause())
        self._acted = time.monotonic()
        self.look()

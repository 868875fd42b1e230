"""Keeps the node's ResourceSlices at the API server as they should be.

They are compared with what is there when devices have changed and when the kubelet has registered the plugin. A
watch tells when others have changed or removed objects, as the kubelet does when it starts. Every few minutes they
are compared in any case. What fails is tried again, after longer and longer pauses.
"""

from __future__ import annotations

import random
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from nvc.base.errors import NvcError, unforeseen
from nvc.kubernetes.api.client import Api
from nvc.kubernetes.api.pool import Mark, Owner, changes, foreign, mark_of
from nvc.kubernetes.api.watch import FIRST_PAUSE, Backoff, Watch
from nvc.kubernetes.claims.devices import Device
from nvc.kubernetes.errors import CONFLICT, GONE, MISSING, ApiError

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: Seconds between two looks at what the API server has.
AGAIN = 300.0
#: Conflicts in a row that are settled at once, by looking again.
CONFLICTS = 5


class Publisher:
    """One thread that publishes, and one that watches; `want` and `look` may be called from any."""

    def __init__(
        self,
        api: Api,
        driver: str,
        node: str,
        told: Callable[[NvcError | None], None],
        again: float = AGAIN,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """`told` hears of each attempt: the error, or None. It also hears why there is no watch."""
        self.api = api
        self.driver = driver
        self.node = node
        self.told = told
        self.again = again
        self.devices: tuple[Device, ...] | None = None
        self.published = 0  # attempts that succeeded
        chosen = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={node},spec.driver={driver}"})
        self.path = f"{SLICES}?{chosen}"  # of the objects of this driver and node
        self._owner: Owner | None = None
        self._written: dict[str, Mark] = {}
        # Held while objects are written, so that a watch knows what it is told of.
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._pauses = Backoff(first_pause)
        self.watch = Watch(api, self.path, self._foreign, self.look, told, first_pause)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to publish what `want` was told."""
        self._thread.start()
        self.watch.start()

    def want(self, devices: tuple[Device, ...]) -> None:
        """Have these devices published, soon."""
        self.devices = devices
        self._wake.set()

    def look(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """End the threads; what is published stays, as pods may run."""
        self._ended = True
        self._wake.set()
        self.watch.stop()
        self._thread.join()

    def _run(self) -> None:
        failed = False
        while not self._ended:
            # Nodes that start together shall not ask together ever after.
            wait = self._pauses.pause() if failed else self.again * random.uniform(0.9, 1.1)
            if failed or self.devices is None or self.published:
                self._wake.wait(wait)
            self._wake.clear()
            if self._ended or self.devices is None:
                continue
            try:
                self.publish()
                failed = False
                self._pauses.reset()
                self.told(None)
            except Exception as error:  # also for an answer of another shape: nobody else publishes
                failed = True
                self.told(error if isinstance(error, NvcError) else unforeseen(error))

    def _foreign(self, kind: str, slice: dict[str, Any]) -> bool:
        with self._writing:
            return foreign(self._written, kind, slice)

    def publish(self) -> None:
        """Bring the objects up to date, once. Raises ApiError."""
        assert self.devices is not None
        for attempt in range(CONFLICTS):
            try:
                with self._writing:
                    self._once(self.devices)
            except ApiError as error:
                if error.status not in (CONFLICT, GONE) or attempt == CONFLICTS - 1:
                    raise
                self._owner = None  # the Node may be another one by now
                continue
            self.published += 1
            return

    def _once(self, devices: tuple[Device, ...]) -> None:
        there = self.there()
        for name in self._written.keys() - {slice["metadata"]["name"] for slice in there}:
            del self._written[name]
            self._owner = None  # where the Node is another one, its slices are collected as garbage
        if self._owner is None:
            node = self.api.get(f"/api/v1/nodes/{urllib.parse.quote(self.node)}")
            self._owner = Owner(self.driver, self.node, str(node.get("metadata", {}).get("uid", "")))
        wanted = changes(self._owner, devices, there, self._written)
        for made in wanted.create:
            self._write("POST", SLICES, made)
        for changed in wanted.update:
            self._write("PUT", f"{SLICES}/{changed['metadata']['name']}", changed)
        for name in wanted.delete:
            self._written.pop(name, None)
            try:
                self.api.request("DELETE", f"{SLICES}/{name}")
            except ApiError as error:
                if error.status != MISSING:
                    raise

    def _write(self, method: str, path: str, slice: dict[str, Any]) -> None:
        """Raises ApiError; its status is that of a conflict where the object was removed meanwhile."""
        try:
            found = self.api.request(method, path, slice)
        except ApiError as error:
            if method == "PUT" and error.status == MISSING:
                error.status = CONFLICT
            raise
        self._written[slice["metadata"]["name"]] = mark_of(found)

    def there(self) -> list[dict[str, Any]]:
        """The objects that the API server has of this driver and node. Raises ApiError."""
        found = self.api.get(self.path)
        self.watch.since(str((found.get("metadata") or {}).get("resourceVersion") or ""))
        items = found.get("items")
        return items if type(items) is list else []

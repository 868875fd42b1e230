"""Keeps the node's ResourceSlices at the API server as they should be.

Published is when something has changed, when kubelet has registered the plugin, and every few minutes, since others
may remove objects. What fails is tried again, after longer and longer pauses.
"""

from __future__ import annotations

import random
import threading
import urllib.parse

from nvc.kubernetes.errors import ApiError
from nvc.kubernetes.pool import Owner, changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.errors import NvcError
    from nvc.kubernetes.api import Api
    from nvc.kubernetes.devices import Device

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: Seconds between two looks at what the API server has, and pauses after a failure.
AGAIN = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
#: Conflicts in a row that are settled at once, by looking again.
CONFLICTS = 5
CONFLICT, GONE = 409, 410


class Publisher:
    """One thread that publishes; `wanted` may be set from any."""

    def __init__(
        self,
        api: Api,
        driver: str,
        node: str,
        told: Callable[[NvcError | None], None],
        again: float = AGAIN,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """`told` hears of each attempt: the error, or None."""
        self.api = api
        self.driver = driver
        self.node = node
        self.told = told
        self.again = again
        self.first_pause = first_pause
        self.devices: tuple[Device, ...] | None = None
        self.published = 0  # attempts that succeeded
        self._owner: Owner | None = None
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to publish what `want` was told."""
        self._thread.start()

    def want(self, devices: tuple[Device, ...]) -> None:
        """Have these devices published, soon."""
        self.devices = devices
        self._wake.set()

    def look(self) -> None:
        """Compare with what the API server has, soon."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; what is published stays, as pods may run."""
        self._ended = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        pause, failed = self.first_pause, False
        while not self._ended:
            # Nodes that start together shall not ask together ever after.
            wait = pause * random.uniform(0.8, 1.2) if failed else self.again * random.uniform(0.9, 1.1)
            if failed or self.devices is None or self.published:
                self._wake.wait(wait)
            self._wake.clear()
            if self._ended or self.devices is None:
                continue
            try:
                self.publish()
                failed, pause = False, self.first_pause
                self.told(None)
            except ApiError as error:
                pause = min(2 * pause, LONGEST_PAUSE) if failed else self.first_pause
                failed = True
                self.told(error)

    def publish(self) -> None:
        """Bring the objects up to date, once. Raises ApiError."""
        assert self.devices is not None
        for attempt in range(CONFLICTS):
            try:
                self._once(self.devices)
            except ApiError as error:
                if error.status not in (CONFLICT, GONE) or attempt == CONFLICTS - 1:
                    raise
                self._owner = None  # the Node may be another one by now
                continue
            self.published += 1
            return

    def _once(self, devices: tuple[Device, ...]) -> None:
        if self._owner is None:
            node = self.api.get(f"/api/v1/nodes/{urllib.parse.quote(self.node)}")
            self._owner = Owner(self.driver, self.node, str(node.get("metadata", {}).get("uid", "")))
        wanted = changes(self._owner, devices, self.there())
        for made in wanted.create:
            self.api.request("POST", SLICES, made)
        for changed in wanted.update:
            self.api.request("PUT", f"{SLICES}/{changed['metadata']['name']}", changed)
        for name in wanted.delete:
            try:
                self.api.request("DELETE", f"{SLICES}/{name}")
            except ApiError as error:
                if error.status != 404:
                    raise

    def there(self) -> list[dict[str, object]]:
        """The objects that the API server has of this driver and node. Raises ApiError."""
        chosen = urllib.parse.urlencode(
            {"fieldSelector": f"spec.nodeName={self.node},spec.driver={self.driver}"}
        )
        items = self.api.get(f"{SLICES}?{chosen}").get("items")
        return items if type(items) is list else []

"""Names of slices for metrics and answers: looked up once, and again after a while if not found."""

from __future__ import annotations

from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.discovery.containers import ContainerName
from nvc.discovery.containers.lookup import Lookup
from nvc.slices.store.status import container_of

UNNAMED = ContainerName()
AGAIN = 60_000_000_000  # nanoseconds until files are read again for slices without a name


class Names:
    """Containers of the slices in the index, by key."""

    def __init__(self, slices: SliceIndex) -> None:
        self.slices = slices
        self._known: dict[str, ContainerName] = {}
        self._since = 0

    def of(self, key: str, now: int) -> ContainerName:
        """The container of a slice; nothing is known of a program's."""
        if now >= self._since + AGAIN:
            self._since = now
            found = self.slices.by_key
            self._known = {key: name for key, name in self._known.items() if name.name and key in found}
        if key not in self._known and key in self.slices.by_key:
            self._known[key] = container_of(self.slices.by_key[key].entry, Lookup())
        return self._known.get(key, UNNAMED)

    def label(self, key: str, now: int) -> str:
        """What people call a slice: NAMESPACE/POD/NAME in Kubernetes, else its container or program; "" unknown."""
        known = self.slices.by_key.get(key)
        return self.of(key, now).label or (known.entry.program if known is not None else "")

    def labels(self, key: str, now: int) -> tuple[str, str, str]:
        """Namespace, pod and container for metrics: a program's name, or the key, where no engine has one."""
        found = self.of(key, now)
        known = self.slices.by_key.get(key)
        program = known.entry.program if known is not None else ""
        return found.namespace, found.pod, found.name or program or found.short_id or key

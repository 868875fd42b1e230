"""Names of slices for the log, metrics and answers: looked up once, and again after a while if not found."""

from __future__ import annotations

from collections.abc import Callable

from nvc.discovery.containers import ContainerName
from nvc.discovery.containers.lookup import Lookup
from nvc.model.slices.entry import Entry
from nvc.slices.store.status import container_of

UNNAMED = ContainerName()
AGAIN = 60_000_000_000  # nanoseconds until files are read again for slices without a name


class Names:
    """Containers of slices, by key."""

    def __init__(self, entry_of: Callable[[str], Entry | None]) -> None:
        self._entry_of = entry_of
        self._known: dict[str, ContainerName] = {}
        self._since = 0

    def of(self, key: str, now: int) -> ContainerName:
        """The container of a slice; nothing is known of a program's."""
        if now >= self._since + AGAIN:
            self._since = now
            self._known = {key: name for key, name in self._known.items() if name.name and self._entry_of(key)}
        if key not in self._known and (entry := self._entry_of(key)) is not None:
            self._known[key] = container_of(entry, Lookup())
        return self._known.get(key, UNNAMED)

    def label(self, key: str, now: int) -> str:
        """What people call a slice: NAMESPACE/POD/NAME in Kubernetes, else its container or program; "" unknown."""
        return self.of(key, now).label or self._program(key)

    def labels(self, key: str, now: int) -> tuple[str, str, str]:
        """Namespace, pod and container for metrics: a program's name, or the key, where no engine has one."""
        found = self.of(key, now)
        return found.namespace, found.pod, found.name or self._program(key) or found.short_id or key

    def _program(self, key: str) -> str:
        entry = self._entry_of(key)
        return entry.program if entry is not None else ""

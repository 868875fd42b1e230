"""The slices that live, with their limits of now, and those of which that cannot be read.

The second kind denies what depends on it: whoever decides about a device asks `check` first.
"""

from __future__ import annotations

from nvc.slices.model.quota import QuotaError, uuid_bytes
from nvc.slices.store import registry
from nvc.slices.store.limits import sound_quota
from nvc.slices.store.living import living_of
from nvc.slices.store.registry import Entry, RegistryError
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.slices.model.quota import QuotaDevice


class Unread(Value):
    """A slice that lives, or may, and of which something cannot be read."""

    key: str
    uuids: frozenset[bytes]  # its devices; none: it may have any
    path: str
    cause: str

    def error(self, step: str) -> RegistryError:
        """What is said to whoever is denied something for it."""
        return RegistryError(
            step, self.path, f"{self.cause}, so what slice {self.key} has is not known",
            f"stop its container, then `nvc-cli vgpu rm --force {self.key}`",
        )  # fmt: skip


class Census(Value):
    """All that live at one moment."""

    slices: tuple[tuple[Entry, tuple[QuotaDevice, ...]], ...]
    unread: tuple[Unread, ...]

    def unread_on(self, uuid: str, but: str = "") -> Unread | None:
        """One that cannot be read and has this device or may; `but` is a key that does not count."""
        for one in self.unread:
            if one.key != but and (not one.uuids or uuid_bytes(uuid) in one.uuids):
                return one
        return None

    def check(self, step: str, uuid: str, but: str = "") -> None:
        """Raise RegistryError where not everything is known of who has this device."""
        one = self.unread_on(uuid, but)
        if one is not None:
            raise one.error(step)


def census(kernel: Kernel, locked: bool) -> Census:
    """Read all slices. `locked`: the caller holds the registry's lock. Raises OSError for the registry itself."""
    base = registry.base_directory()
    entries: list[Entry] = []
    broken: dict[str, RegistryError] = {}
    for name in registry.entry_names(base):
        try:
            entries.append(registry.read_entry(f"{base}/{name}"))
        except RegistryError as error:
            broken[name] = error
            entries.append(Entry(name, f"{base}/{name}", 0, 0, "", "", 0, ()))
    lives = living_of(kernel, tuple(entries))
    found: list[tuple[Entry, tuple[QuotaDevice, ...]]] = []
    unread: list[Unread] = []
    for entry in entries:
        if entry.key not in lives:
            continue
        wrong = broken.get(entry.key)
        try:
            devices, _ = sound_quota(kernel, entry, locked)
            if wrong is None:
                found.append((entry, devices))
                continue
        except (OSError, QuotaError) as error:
            devices = ()
            cause = error.strerror if isinstance(error, OSError) else str(error.cause)
            wrong = wrong or RegistryError("read slice", entry.quota, cause)
        uuids = [device.uuid for device in entry.devices] + [device.uuid for device in devices]
        unread.append(Unread(entry.key, frozenset(map(uuid_bytes, uuids)), wrong.path, str(wrong.cause)))
    return Census(tuple(found), tuple(unread))

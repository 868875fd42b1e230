"""Limits of memory that the operator lowered below what a slice has in use.

Nobody takes memory back from a program, and one that may launch nothing cannot free any. So `vgpu set` keeps
the limit from before with the slice: until NVML and the ledger show the slice within the new limit, nvcd acts only
on what exceeds the old one. After that the new limit counts alone. Of a suspended slice NVML shows nothing, so its
old limit stays.
"""

from __future__ import annotations

import os

from nvc.base.errors import NvcError
from nvc.base.files import closing
from nvc.daemon.audit.accountant import Accountant, Balance
from nvc.daemon.schedule.slice_index import LOCK_TIME
from nvc.kernel import Kernel
from nvc.model.slices.entry import Entry, read_entry, text_of, write_about
from nvc.slices.store import registry


def limit_to_act_on(accountant: Accountant, balance: Balance) -> int:
    """The bytes above which a slice has too much of a device."""
    known = accountant.slices.by_key.get(balance.key)
    devices = known.entry.devices if known is not None else ()
    before = next((device.lowered for device in devices if device.uuid == balance.uuid), 0)
    return max(balance.limit, before)


def settle(accountant: Accountant, balance: Balance) -> None:
    """Forget the old limit of a slice that is within the new one. What fails is logged, and tried again later."""
    known = accountant.slices.by_key[balance.key]
    try:
        forget(accountant.kernel, known.entry, balance.uuid)
    except (OSError, NvcError) as error:
        whose = accountant.slices.whose(balance.key)
        accountant.slices.say(f"{whose}: the limit before the last one counts on: {error}")


def forget(kernel: Kernel, entry: Entry, uuid: str) -> None:
    """Remove the old limit of one device from a slice's entry. Raises RegistryError, OSError."""
    with closing(registry.locked(kernel, LOCK_TIME)):
        if not os.path.lexists(entry.directory):
            return  # it has just gone
        now = read_entry(entry.directory)
        devices = tuple(one.replace(lowered=0) if one.uuid == uuid else one for one in now.devices)
        if devices != now.devices:
            write_about(now.directory, text_of(now.replace(devices=devices)))

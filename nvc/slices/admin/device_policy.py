"""Shows and changes device policies, for `nvc-cli vgpu policy`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nvc.base.errors import InputError, counted
from nvc.base.value import Value
from nvc.discovery.containers.lookup import Lookup
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.model.request import Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices.entry import RegistryError
from nvc.model.slices.layout import POLICY_NATIVE
from nvc.model.slices.policy import CAP, POLICIES, policy_of
from nvc.model.slices.sizes import size_text
from nvc.model.slices.slice import SliceDevice, resolve
from nvc.slices.client.nvcd import not_kept
from nvc.slices.policy import policies
from nvc.slices.policy.policies import SETTINGS, DevicePolicy
from nvc.slices.store import registry
from nvc.slices.store.admission import Sharer, check_server, given, sharers
from nvc.slices.store.limits import edit
from nvc.slices.store.snapshot import Snapshot, snapshot
from nvc.slices.store.status import label_of


class SharedDevice(Value):
    """One device of the host, with its policy and the slices on it."""

    uuid: str
    index: str
    name: str
    memory: int  # bytes; 0: not known
    own: DevicePolicy
    sharers: tuple[Sharer, ...]

    @property
    def weight(self) -> int:
        return sum(one.weight for one in self.sharers)

    @property
    def free_weight(self) -> int | None:
        """What is free of the maximum sum of weights; None if there is no maximum."""
        total = self.own.total_weight
        return max(total - self.weight, 0) if total else None

    @property
    def most(self) -> int:
        """What these may add up to, bytes; 0: anything."""
        return self.memory * self.own.oversubscribe // 100

    @property
    def limits(self) -> int:
        """The sum of their limits of memory, bytes."""
        return given(self.memory, self.sharers)

    def document(self) -> dict[str, Any]:
        """For programs."""
        own = self.own
        return {
            "uuid": self.uuid,
            "index": self.index,
            "name": self.name,
            "policy": None if own.policy == policies.NONE else POLICIES[own.policy],
            "instances": len(self.sharers),
            "weight": self.weight,
            "freeWeight": self.free_weight,
            "limits": self.limits,
            "maxLimits": self.most or None,
            **{row.key: getattr(own, row.field) or None for row in SETTINGS},
        }


def shared_devices(kernel: Kernel, facts: HostFacts, selectors: tuple[str, ...]) -> tuple[SharedDevice, ...]:
    """The devices that `selectors` name, in that order: of a GPU in MIG mode its MIG devices.

    Raises DeviceError, PolicyError, RegistryError for a slice that cannot be read.
    """
    known = snapshot(kernel, locked=False)
    return tuple(
        SharedDevice(
            d.uuid, d.index, d.name, d.memory, policies.read(d.uuid), sharers(known, d.uuid, "show policy")
        )
        for d in devices_named(facts, selectors)
    )


def devices_named(facts: HostFacts, selectors: tuple[str, ...]) -> tuple[SliceDevice, ...]:
    """The devices that `selectors` name; of a GPU in MIG mode its MIG devices. Raises DeviceError."""
    selection = select(facts, Request(devices=selectors))
    named = {gpu.index for gpu, _ in selection.mig}
    parts = [(gpu, part) for gpu in selection.gpus if gpu.index not in named for part in gpu.mig]
    return resolve(facts, selection.replace(mig=(*selection.mig, *parts)), SliceRequest())


def set_device_policy(
    kernel: Kernel, uuids: tuple[str, ...], change: Callable[[DevicePolicy], DevicePolicy] | None
) -> tuple[str, ...]:
    """Change the policies of devices, for the slices that run too. Returns warnings for the operator.

    Without a `change` the policy is removed, also one that cannot be read.

    Raises InputError for a policy that a slice cannot have, RegistryError, PolicyError. Then nothing has changed.
    """
    lock = registry.locked(kernel)
    try:
        known = snapshot(kernel, locked=True)
        slices = known.living
        for uuid in uuids if change else ():
            known.check("change policy", uuid)
        new = {uuid: change(policies.read(uuid)) if change else DevicePolicy() for uuid in uuids}
        told: list[str] = []
        for uuid, own in new.items():
            users = [
                (entry, share)
                for entry, found in slices
                for share in found
                if share.uuid == uuid and share.memory_limit
            ]
            if policy_of(own.effective(POLICY_NATIVE)).server and uuid.startswith("MIG-"):
                cause = "the policy concurrent does not work on MIG devices"
                raise InputError(uuid, cause=cause, hint="choose another policy")
            for entry, _ in users:
                check_server(entry, uuid, own.effective(POLICY_NATIVE))
            uncapped = [entry for entry, share in users if not share.cores]
            if uncapped and policy_of(own.effective(POLICY_NATIVE)).bound == CAP:
                names = [label_of(entry, Lookup()) for entry in uncapped]
                raise InputError(
                    uuid,
                    cause=f"{counted(len(names), 'slice')} without a cap for the policy {POLICIES[own.policy]}: "
                    + ", ".join(names),
                    hint=f"`nvc-cli vgpu set {names[0]} --cores N` gives one",
                )  # fmt: skip
            told += _too_much(known, uuid, own)
        for uuid, own in new.items():
            policies.write(uuid, own)
        for entry, shares_of_entry in slices:
            changed = tuple(
                share.replace(policy=new[share.uuid].effective(device.asked_policy))
                if share.uuid in new and share.memory_limit
                else share
                for share, device in zip(shares_of_entry, entry.devices)
            )
            if changed != shares_of_entry:
                edit(entry, changed, entry.devices)
    except OSError as error:
        raise RegistryError.of("change policy", error.filename or "", error) from None
    finally:
        os.close(lock)
    for uuid, own in new.items():
        more = (row.option.lstrip("-") for row in SETTINGS if row.by_nvcd and getattr(own, row.field))
        told += not_kept(uuid, own.effective(POLICY_NATIVE), *more)
    return tuple(told)


def _too_much(known: Snapshot, uuid: str, own: DevicePolicy) -> list[str]:
    """What of the bounds of a device its slices exceed, which run on."""
    users = sharers(known, uuid, "change policy") if own.bounds else ()
    memory = max((one.memory for entry, _ in known.living for one in entry.devices if one.uuid == uuid), default=0)
    now = SharedDevice(uuid, "", "", memory, own, users)
    told = []
    if own.max_instances and len(users) > own.max_instances:
        told.append(f"{len(users)} slices share it already")
    if own.total_weight and now.weight > own.total_weight:
        told.append(f"its slices have a weight of {now.weight} already")
    if own.oversubscribe and now.limits > now.most:
        told.append(f"the limits of its slices are {size_text(now.limits)} already, of {size_text(now.most)}")
    return [f"{uuid}: {what}; no more are let in until some have ended" for what in told]

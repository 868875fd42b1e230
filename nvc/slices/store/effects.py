"""What settings of a slice do not bring about now, as lines for whoever made them.

They are stored all the same, and take effect once another policy is in force, or nvcd keeps time.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvc.discovery.containers.lookup import Lookup
from nvc.kernel import Kernel
from nvc.model.request import SliceRequest
from nvc.model.slices.entry import Entry
from nvc.model.slices.hook import OFF
from nvc.model.slices.layout import POLICY_NATIVE
from nvc.model.slices.policy import POLICIES, policy_of
from nvc.slices.client.nvcd import not_kept
from nvc.slices.policy import policies
from nvc.slices.policy.entitlement import Demand, InForce, holds, in_force
from nvc.slices.store.limits import demand_of
from nvc.slices.store.snapshot import Snapshot, snapshot
from nvc.slices.store.status import label_of


def without_effect(
    kernel: Kernel, key: str, wanted: SliceRequest, devices: Mapping[str, int]
) -> tuple[str, ...]:
    """What of `wanted` has no effect on the slice that has just got it, or one on others.

    `devices` of the slice, by UUID: the policy that was in force for it. Raises NvcError, OSError.
    """
    known = snapshot(kernel, locked=False)
    told: list[str] = []
    for uuid, before in devices.items():
        sharing = _sharing(known, uuid)
        if key not in sharing:  # it is gone, or cannot be read
            continue
        device = policies.read(uuid)
        force = in_force(device, tuple(demand for _, demand in sharing.values()))
        now = policy_of(holds(force)[key][0])
        asked = now.number if wanted.policy is None else wanted.policy.value
        ignored = [f"policy {POLICIES[asked]}"] if asked != now.number else []
        ignored += ["the weight"] if wanted.weight is not None and not now.weighs else []
        ignored += ["the cap"] if wanted.cores and wanted.cores[0].value and not now.caps else []
        if ignored:
            whose = "that of the device" if device.policy >= 0 else _decider(force, key, sharing)
            told.append(f"{uuid}: without effect now: {', '.join(ignored)}; {now.name} is in force, {whose}")
        elif wanted.policy is None and force.policy.number not in (before, POLICY_NATIVE):
            was = policy_of(before)
            told += [f"{uuid}: {force.policy.name} is in force now, {was.name} before"] if was.timed else []
        idle = wanted.idle_suspend not in ("", OFF)
        told += not_kept(uuid, now.number, *(["idle-suspend"] if idle else []))
    return tuple(told)


def _sharing(known: Snapshot, uuid: str) -> dict[str, tuple[Entry, Demand]]:
    return {
        entry.key: (entry, demand_of(entry, device))
        for entry, limits in known.living
        for device in limits
        if device.uuid == uuid and device.memory_limit
    }


def _decider(force: InForce, key: str, sharing: dict[str, tuple[Entry, Demand]]) -> str:
    """Whose policy is in force, for people."""
    first = next((terms.key for terms in force.terms if terms.timed), key)
    return "its own" if first == key else f"that of the oldest slice, {label_of(sharing[first][0], Lookup())}"

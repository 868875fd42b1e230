"""Whether a new slice has the nvcd that its policy needs. A start waits only where the operator requires it."""

from __future__ import annotations

from nvc.base.errors import NvcError
from nvc.model.slices.policy import WITHOUT_NVCD, policy_of
from nvc.model.slices.slice import SliceDevice
from nvc.model.slices.time_settings import TO_START
from nvc.slices.client.presence import NOT_RUNNING, absence


class DaemonError(
    NvcError, code="NVC-2107", stage="vgpu", doctor="vgpu",
    hint=f"{TO_START}, or ask for a policy that works without it: {WITHOUT_NVCD}",
):  # fmt: skip
    """The operator requires nvcd for a slice, and it does not run."""


def not_enforced(devices: tuple[SliceDevice, ...], required: bool) -> str:
    """Why the policies of a new slice are not enforced; "" if they are, or do not need nvcd.

    Where `required`, nvcd has half a second to answer; raises DaemonError if it does not.
    """
    needing = [one for one in devices if not one.hidden and policy_of(one.policy).needs_nvcd]
    if not needing:
        return ""
    if not required:
        return absence()
    from nvc.slices.client.nvcd import RESTART, silence  # its JSON costs a start 7 ms

    cause = silence()
    if cause:
        policy = policy_of(needing[0].policy).name
        hint = "" if cause == NOT_RUNNING else RESTART
        raise DaemonError("make a slice", needing[0].uuid, f"the policy {policy} needs nvcd: {cause}", hint)
    return ""

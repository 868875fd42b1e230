"""Parses caps, weights and policies as people and other systems write them. Pure.

Anything malformed is an error that names the option or variable.
"""

from __future__ import annotations

from nvc.errors import InputError
from nvc.request import TimeSetting
from nvc.slices.model.layout import POLICY_NATIVE
from nvc.slices.model.policy import CAP, POLICIES, POLICY_FIXED, POLICY_WEIGHT, policy_of
from nvc.slices.model.sizes import parse_number

WEIGHT_MAX = 1 << 16
TO_START = "start nvcd: `systemctl start nvcd`, or `nvcd &` without systemd"
ALL = 100  # percent


def parse_cores(name: str, text: str) -> TimeSetting:
    """Parse a cap, `25` or `25%`. The value is in percent; 100 means no cap and gives 0. Raises InputError."""
    return TimeSetting(name, text, parse_number(name, text, 1, ALL, "%") % ALL)


def parse_weight(name: str, text: str) -> TimeSetting:
    """Parse a weight, from 1 to WEIGHT_MAX. Raises InputError."""
    return TimeSetting(name, text, parse_number(name, text, 1, WEIGHT_MAX))


def parse_policy(name: str, text: str) -> TimeSetting:
    """Parse a policy, by name or number. The value is its number. Raises InputError."""
    if text in POLICIES:
        return TimeSetting(name, text, POLICIES.index(text))
    if len(text) == 1 and text in "0123456789"[: len(POLICIES)]:
        return TimeSetting(name, text, int(text))
    names = ", ".join(f"{name} ({number})" for number, name in enumerate(POLICIES))
    raise InputError(name, text, "no such policy", f"the policies are {names}")


def default_policy(cores: int, weighted: bool) -> int:
    """The number of the policy of a slice that asks for none."""
    if cores:
        return POLICY_FIXED
    return POLICY_WEIGHT if weighted else POLICY_NATIVE


def check_together(cores: int, policy: int, name: str, text: str, where: str) -> None:
    """Refuse a cap that the policy ignores, and a policy of caps without a cap. Raises InputError naming `name`."""
    row = policy_of(policy)
    if cores and not row.caps:
        raise InputError(name, text, f"policy {row.name} ignores caps, but {where} sets {cores} %",
                         "leave the cap or the policy out")  # fmt: skip
    if row.bound == CAP and not cores:
        raise InputError(
            name, text, f"{where} has no cap for the policy {row.name}", "say how many percent it gets"
        )


def enforced_text(policy: int, cause: str) -> str:
    """A policy's name for people; with `cause`, also that it is not enforced and why."""
    row = policy_of(policy)
    return f"{row.name} (not enforced: {cause})" if cause and row.needs_nvcd else row.name


def time_settings_text(cores: int, weight: int, policy: int) -> str:
    """A slice's policy, cap and weight for people."""
    row = policy_of(policy)
    parts = [row.name]
    if cores:
        parts.append(f"at most {cores}% of its {'multiprocessors' if row.server else 'time'}")
    if weight != 1 or row.weighs:
        parts.append(f"weight {weight}")
    return ", ".join(parts)

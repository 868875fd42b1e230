"""Parses caps, weights, policies and whole requests as people and other systems write them. Pure.

Anything malformed is an error that names the option or variable.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.types import Any, Callable
from nvc.model.request import CHECKPOINT, SLICE_FIELDS, SWAP, WEIGHT, SliceRequest, TimeSetting, Timing
from nvc.model.slices.hook import OFF, parse_hook
from nvc.model.slices.isolation import parse_isolation
from nvc.model.slices.layout import POLICY_NATIVE
from nvc.model.slices.policy import CAP, EQUAL, POLICIES, POLICY_FIXED, POLICY_WEIGHT, policy_of
from nvc.model.slices.sizes import parse_number, parse_size

WEIGHT_MAX = 1 << 16
TO_START = "start nvcd: `systemctl start nvcd`, or `nvcd &` without systemd"
NO_CAP = "say how many percent of the time it gets, such as cores 25"
ALL = 100  # percent
PERIOD_US = (20_000, 1_000_000)  # of a cap: least and most
IDLE_US = (1_000_000, 7 * 86_400 * 1_000_000)  # without work before a slice is suspended: least and most
#: Units of a duration as people write it, in microseconds.
UNITS = (("us", 1), ("ms", 1000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000))


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
    import difflib  # not at a container's start

    near = "".join(f"; did you mean `{one}`?" for one in difflib.get_close_matches(text, POLICIES, 1))
    raise InputError(name, text, "no such policy", f"the policies are {names}{near}")


def parse_period(name: str, text: str) -> TimeSetting:
    """Parse the period of a cap, such as `50ms` or `1s`. The value is in microseconds. Raises InputError."""
    return TimeSetting(name, text, parse_duration(name, text, *PERIOD_US))


def parse_idle(name: str, text: str) -> str:
    """The text, if it is the time after which an idle slice is suspended, or `off`. Raises InputError."""
    if text != OFF:
        parse_duration(name, text, *IDLE_US)
    return text


def parse_mechanism(name: str, text: str) -> str:
    """The text, if it is a way to suspend a slice. Raises InputError."""
    if text not in (CHECKPOINT, SWAP):
        raise InputError(name, text, f"want {CHECKPOINT} or {SWAP}")
    return text


def idle_seconds(text: str) -> int:
    """The seconds of such a text; 0: off."""
    return 0 if text == OFF else parse_duration("idle-suspend", text, *IDLE_US) // 1_000_000


#: By the kind of a field: each takes the name of what says it, for messages, and the text.
KINDS: dict[str, Callable[[str, str], Any]] = {
    "size": parse_size, "cores": parse_cores, "period": parse_period, "weight": parse_weight,
    "policy": parse_policy, "isolation": parse_isolation, "hook": parse_hook, "idle": parse_idle,
    "mechanism": parse_mechanism,
}  # fmt: skip


def asked(texts: dict[str, tuple[str, str]], rest: SliceRequest, many: bool = False) -> SliceRequest:
    """`rest` with what texts ask for: for each field, by its name, that of what says it, and what it says.

    `many`: a text may have a value for each device, with commas between them. Raises InputError.
    """
    found = {}
    for row in SLICE_FIELDS:
        if row.name in texts:
            name, text = texts[row.name]
            values = [KINDS[row.kind](name, item) for item in (text.split(",") if many and row.each else (text,))]
            found[row.name] = tuple(values) if row.each else values[0]
    return rest.replace(**found)


def parse_duration(name: str, text: str, low: int, high: int) -> int:
    """Microseconds of `10ms`, `5000us` or `1s`, between those two. Raises InputError, which names one of them."""
    us = 0
    for unit, length in UNITS:
        digits = text.removesuffix(unit)
        if digits != text and digits.isascii() and digits.isdigit() and len(digits) < 10:
            us = int(digits) * length
            if low <= us <= high:
                return us
    wanted = f"want {duration_text(low)} to {duration_text(high)}"
    if text.isascii() and text.isdigit() and len(text) < 10:
        units = [unit for unit, length in UNITS if low <= int(text) * length <= high]
        wanted, us = f"no unit; {wanted}", 0
        if units:
            raise InputError(name, text, wanted, f"did you mean {text}{'ms' if 'ms' in units else units[0]}?")
    raise InputError(name, text, wanted, f"write {duration_text(min(max(low, us or 10_000), high))}")


def duration_text(us: int) -> str:
    """A duration of microseconds as it is written."""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if us >= 1_000_000 and not us % (length * 1_000_000):
            return f"{us // 1_000_000 // length}{unit}"
    return f"{us}us" if us % 1000 else f"{us // 1000}ms"


def has_periods(cores: int, policy: int) -> bool:
    """Whether a slice with that cap, 0 for none, and policy has a quota in each period."""
    row = policy_of(policy)
    return row.timed and (bool(cores) or row.bound == EQUAL)


def check_timing(wanted: SliceRequest, cores: int, policy: int, where: str) -> None:
    """Refuse a period without a cap, and where a cap is no part of the time. Raises InputError."""
    row, period = policy_of(policy), wanted.period
    if period is not None and not has_periods(cores, policy):
        cause, hint = f"{where} has no cap", NO_CAP
        if not row.timed:
            cause = f"policy {row.name} of {where} has no periods"
            hint = "leave it out" if wanted.policy is not None else "leave it out, or ask for a cap"
        raise InputError(period.name, period.text, cause, hint)


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
        raise InputError(name, text, f"{where} has no cap for the policy {row.name}", NO_CAP)


def enforced_text(policy: int, cause: str) -> str:
    """A policy's name for people; with `cause`, also that it is not enforced and why."""
    row = policy_of(policy)
    return f"{row.name} (not enforced: {cause})" if cause and row.needs_nvcd else row.name


def time_settings_text(timing: Timing) -> str:
    """A slice's policy, cap and weight for people."""
    row = policy_of(timing.policy)
    parts = [row.name]
    if timing.cores:
        parts.append(f"at most {timing.cores}% of its {'multiprocessors' if row.server else 'time'}")
    if timing.period_us:
        parts.append(f"in each {duration_text(timing.period_us)}")
    if timing.weight != WEIGHT or row.weighs:
        parts.append(f"weight {timing.weight}")
    return ", ".join(parts)


def time_document(timing: Timing) -> dict[str, Any]:
    """How a slice has time, for programs."""
    return {"cores": timing.cores or None, "periodUs": timing.period_us or None, "weight": timing.weight,
            "policy": policy_of(timing.policy).name}  # fmt: skip

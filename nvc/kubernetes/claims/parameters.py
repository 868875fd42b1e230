"""Opaque parameters of claims and classes: strictly decoded, the claim's over the class's. Pure.

apiVersion: gpu.nvc.dev/v1alpha1
kind: SliceParameters
policy: weight
weight: 3
period: 50ms
isolation: mig
uncounted: true
capabilities: [compute, utility]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvc.base.errors import InputError
from nvc.base.value import Value
from nvc.kubernetes.claims.quantity import shown
from nvc.kubernetes.names import API_VERSION, GPU_PARAMETERS, SLICE_PARAMETERS
from nvc.model.facts import CAPABILITIES
from nvc.model.slices.isolation import CLAIMS, MPS
from nvc.model.slices.policy import POLICIES, TABLE
from nvc.model.slices.time_settings import WEIGHT_MAX, parse_period


class Parameters(Value):
    """What may be said of a device beside its capacity. "" or 0: nothing was said."""

    policy: str = ""
    weight: int = 0
    period_us: int = 0  # of the cap
    isolation: str = ""  # mig: the device must be a MIG device; kernel: the driver limits each container's cgroup
    uncounted: bool = False  # keep libraries whose memory is not counted
    capabilities: tuple[str, ...] = ()  # names of driver capabilities; (): all but compat32


def _policy(value: object) -> str:
    if value not in POLICIES:
        raise ValueError(f"want one of {', '.join(POLICIES)}")
    if TABLE[POLICIES.index(str(value))].server:
        raise ValueError(
            "not for claims: the MPS server would be in nvcd's container, whose end ends the programs of all pods"
        )
    return str(value)


def _weight(value: object) -> int:
    if type(value) is not int or not 1 <= value <= WEIGHT_MAX:
        raise ValueError(f"want a whole number from 1 to {WEIGHT_MAX}")
    return value


def _period(value: object) -> int:
    if type(value) is not str:
        raise ValueError('want a text like "50ms"')
    try:
        return parse_period("period", value).value
    except InputError as error:
        raise ValueError(error.cause) from None


def _isolation(value: object) -> str:
    if value == MPS:
        raise ValueError(
            "not for claims: the MPS server would be in nvcd's container, whose end ends the programs of all pods; "
            "use mig, or leave it out"
        )
    if value not in CLAIMS:
        raise ValueError(f"want one of {', '.join(CLAIMS)}")
    return str(value)


def _uncounted(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("want true or false")
    return value


def _capabilities(value: object) -> tuple[str, ...]:
    if type(value) is not list or not value or any(one not in CAPABILITIES for one in value):
        raise ValueError(f"want a list of {', '.join(CAPABILITIES)}")
    return tuple(dict.fromkeys(value))


_FIELDS: dict[str, Callable[[object], object]] = {
    "policy": _policy, "weight": _weight, "period": _period, "isolation": _isolation, "uncounted": _uncounted,
    "capabilities": _capabilities,
}  # fmt: skip
#: Fields by kind. A whole device has no limits, so nothing can be said of how they are kept.
KINDS = {SLICE_PARAMETERS: tuple(_FIELDS), GPU_PARAMETERS: ("capabilities",)}


def decode(where: str, value: object, kind: str) -> dict[str, Any]:
    """The fields of one object of parameters for a device of this `kind` of parameters.

    An object of the other kind says nothing of it: a class may have both. Raises InputError naming `where` and the
    field for an unknown version, kind or field, and for a wrong value.
    """
    if type(value) is not dict:
        raise InputError(where, cause="parameters are not an object", hint=_hint())
    version, found = value.get("apiVersion"), value.get("kind")
    if version != API_VERSION:
        raise InputError(f"{where}.apiVersion", shown(version), "unknown version", f"write {API_VERSION}")
    if type(found) is not str or found not in KINDS:
        raise InputError(f"{where}.kind", shown(found), "unknown kind", _hint())
    fields: dict[str, Any] = {}
    for name, text in value.items():
        if name in ("apiVersion", "kind"):
            continue
        if name not in KINDS[found]:
            known = ", ".join(KINDS[found])
            raise InputError(f"{where}.{name}", cause=f"no such field of {found}", hint=f"it has {known}")
        try:
            fields["period_us" if name == "period" else name] = _FIELDS[name](text)
        except ValueError as error:
            raise InputError(f"{where}.{name}", shown(text), error) from None
    return fields if found == kind else {}


def merged(kind: str, objects: tuple[tuple[str, object], ...]) -> Parameters:
    """What objects of parameters say together, each with where it stands; later ones win field by field."""
    fields: dict[str, Any] = {}
    for where, value in objects:
        fields.update(decode(where, value, kind))
    return Parameters(**fields)


def _hint() -> str:
    return f"write apiVersion: {API_VERSION} and kind: {' or '.join(KINDS)}"

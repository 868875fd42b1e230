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

from typing import Any

from nvc.base.errors import InputError
from nvc.kubernetes.claims.quantity import shown
from nvc.kubernetes.names import API_VERSION, GPU_PARAMETERS, SLICE_PARAMETERS
from nvc.model.facts import CAPABILITIES
from nvc.model.request import Field, SliceRequest, fields_by
from nvc.model.slices.isolation import CLAIMS, MPS
from nvc.model.slices.policy import POLICIES, TABLE
from nvc.model.slices.time_settings import KINDS as PARSERS
from nvc.model.slices.time_settings import WEIGHT_MAX

FIELDS = {row.key: row for row in fields_by("claim")}
#: Fields by kind. A whole device has no limits, so nothing can be said of how they are kept.
KINDS = {SLICE_PARAMETERS: (*FIELDS, "capabilities"), GPU_PARAMETERS: ("capabilities",)}
#: What claims may name, and what other values must be: the type, and what to say of another.
_NAMES = {"policy": POLICIES, "isolation": CLAIMS}
_TYPES = {"weight": (int, f"a whole number from 1 to {WEIGHT_MAX}"), "flag": (bool, "true or false")}
_PAGE = "docs/kubernetes.md has each parameter with its values"
_SERVERS = (MPS, *(row.name for row in TABLE if row.server))
_OF_NVCD = "not for claims: the MPS server would be in nvcd's container, whose end ends the programs of all pods"


def _value(row: Field, value: object) -> object:
    """The value of a field of SliceRequest. Raises ValueError."""
    if row.kind in _NAMES and value in _SERVERS:
        raise ValueError(_OF_NVCD + ("; use mig, or leave it out" if value == MPS else ""))
    if row.kind in _NAMES and value not in _NAMES[row.kind]:
        raise ValueError(f"want one of {', '.join(_NAMES[row.kind])}")
    kind, wanted = _TYPES.get(row.kind, (str, 'a text like "50ms"'))
    if type(value) is not kind:
        raise ValueError(f"want {wanted}")
    if row.kind in ("flag", "isolation"):
        return value
    try:
        return PARSERS[row.kind](row.key, str(value))
    except InputError as error:
        raise ValueError(error.cause) from None


def _capabilities(value: object) -> tuple[str, ...]:
    if type(value) is not list or not value or any(one not in CAPABILITIES for one in value):
        raise ValueError(f"want a list of {', '.join(CAPABILITIES)}")
    return tuple(dict.fromkeys(value))


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
            if name == "capabilities":
                fields[name] = _capabilities(text)
            else:
                fields[FIELDS[name].name] = _value(FIELDS[name], text)
        except ValueError as error:
            raise InputError(f"{where}.{name}", shown(text), error, _PAGE) from None
    return fields if found == kind else {}


def merged(kind: str, objects: tuple[tuple[str, object], ...]) -> tuple[SliceRequest, tuple[str, ...]]:
    """What objects of parameters say together, each with where it stands; later ones win field by field.

    The second are names of driver capabilities; (): all but compat32.
    """
    fields: dict[str, Any] = {}
    for where, value in objects:
        fields.update(decode(where, value, kind))
    capabilities = fields.pop("capabilities", ())
    return SliceRequest(**fields), capabilities


def _hint() -> str:
    return f"write apiVersion: {API_VERSION} and kind: {' or '.join(KINDS)}"

"""The tables [[nvc.vgpu]]: the sizes that CDI devices come in. Imported only when the file has changed."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.types import Any
from nvc.model.slices.isolation import KERNEL, OPERATORS
from nvc.model.slices.layout import CORES_UNCAPPED, WEIGHT
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.time_settings import (
    WEIGHT_MAX,
    check_period,
    check_together,
    default_policy,
    parse_period,
    parse_policy,
)

KEYS = ("name", "memory", "devices", "cores", "weight", "policy", "request", "period", "isolation")
NAME_MAX = 63
TABLES_MAX = 64
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IN_NAME = _LETTERS | frozenset("0123456789_-.")


def devices_of(value: Any) -> tuple[tuple[Any, ...], ...]:
    """The tables as tuples in the order of Config.vgpu_devices. Raises ValueError, naming table and key."""
    if type(value) is not list or not all(type(table) is dict for table in value):
        raise ValueError("want tables, each beginning with [[nvc.vgpu]]")
    if len(value) > TABLES_MAX:
        raise ValueError(f"{len(value)} tables, at most {TABLES_MAX}")
    found: dict[str, tuple[Any, ...]] = {}
    for table in value:
        name = _name(table.get("name"))
        if name in found:
            raise ValueError(f"{name}: two tables of that name")
        for key in table:
            if key not in KEYS:
                raise ValueError(f"{name}: unknown key {key}, known are {', '.join(KEYS)}")
        cores = _cores(name, table.get("cores", CORES_UNCAPPED)) % 100
        memory = _memory(name, "memory", table.get("memory"))
        policy = _policy(name, table.get("policy", ""), cores)
        found[name] = (
            name,
            memory,
            _devices(name, table.get("devices", "all")),
            cores,
            _number(name, "weight", table.get("weight", WEIGHT), 1, WEIGHT_MAX),
            policy,
            _request(name, table.get("request", ""), memory),
            _period(name, table.get("period", ""), cores, policy),
            _isolation(name, table.get("isolation", "")),
        )
    return tuple(found.values())


def percent(value: Any) -> Any:
    """The number that a text such as "25%" says, as options and variables take it; anything else as it is."""
    digits = value.removesuffix("%") if type(value) is str else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else value


def contradictions(fields: dict[str, Any]) -> list[str]:
    """Why no container starts that leaves its slice to the operator: what that one gives it, that one refuses."""
    found = []
    for name in ("memory", "cores", "weight"):
        given, most = fields.get(f"vgpu_{name}"), fields.get(f"vgpu_{name}_max")
        if given and most and _is_more(given, most):
            found.append(
                f"vgpu-{name}: {given} is more than vgpu-{name}-max, {most}: such containers do not start"
            )
    cores = (fields.get("vgpu_cores") or fields.get("vgpu_cores_max") or 0) % 100
    policy = fields.get("vgpu_policy")
    if policy:
        try:
            check_together(cores, parse_policy("", policy).value, "", "", "each device")
        except InputError as error:
            found.append(f"vgpu-policy: {policy}: {error.cause}: such containers do not start")
    return found


def _is_more(given: Any, most: Any) -> bool:
    """Whether that is so on every device: a size and a percentage cannot be compared without one."""
    if type(given) is int:
        return bool(given > most)
    one, other = parse_size("", given), parse_size("", most)
    if bool(one.part) != bool(other.part):
        return False
    return one.bytes > other.bytes or one.part * other.whole > other.part * one.whole


def _name(name: Any) -> str:
    if type(name) is not str or not name:
        raise ValueError("a table without a name")
    sound = name[0] in _LETTERS and _IN_NAME.issuperset(name) and name[-1] not in "_-." and name != "all"
    if not sound or len(name) > NAME_MAX:
        raise ValueError(
            f"{name}: want a name of letters, digits, '_', '-' and '.' that begins with a letter"
        )
    return name


def _memory(name: str, key: str, text: Any) -> str:
    if type(text) is not str or not text:
        raise ValueError(f'{name}: {key}: want a size, like "10GiB" or "25%"')
    try:
        parse_size("", text)
    except InputError as error:
        raise ValueError(f"{name}: {key}: {text}: {error.cause}; {error.hint}") from None
    return text


def _request(name: str, text: Any, memory: str) -> str:
    """What each slice reserves; "": nothing."""
    if text == "":
        return ""
    _memory(name, "request", text)
    if _is_more(text, memory):
        raise ValueError(f"{name}: request: {text} is more than memory, {memory}")
    return str(text)


def _period(name: str, text: Any, cores: int, policy: str) -> str:
    """The period of its cap; "": the usual one."""
    if text == "":
        return ""
    try:
        number = POLICIES.index(policy) if policy else default_policy(cores, False)
        check_period(cores, number, parse_period("period", str(text)), name)
    except InputError as error:
        raise ValueError(f"{name}: period: {text}: {error.cause}; {error.hint}") from None
    return str(text)


def _devices(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if type(value) is str else value
    if type(items) is not list or not items or not all(type(item) is str and item for item in items):
        raise ValueError(f'{name}: devices: want "all" or a list of indices, UUIDs or GPU:MIG')
    return tuple(items)


def _number(name: str, key: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name}: {key}: want a whole number from {low} to {high}")
    return value


def _cores(name: str, value: Any) -> int:
    number = percent(value)
    if type(number) is not int or not 0 <= number <= 100:
        raise ValueError(f'{name}: cores: want a whole number from 0 to 100, like 25 or "25%"')
    return number


def _isolation(name: str, value: Any) -> str:
    if value not in OPERATORS:
        raise ValueError(f'{name}: isolation: want "{KERNEL}", or nothing')
    return str(value)


def _policy(name: str, value: Any, cores: int) -> str:
    """The policy; "": the one that suits cores and weight."""
    if value == "":
        return ""
    if value not in POLICIES:
        raise ValueError(f"{name}: policy: want one of {', '.join(POLICIES)}")
    try:
        check_together(cores, POLICIES.index(value), "policy", value, name)
    except InputError as error:
        raise ValueError(f"{name}: policy: {value}: {error.cause}; {error.hint}") from None
    return str(value)

"""The tables [[nvc.vgpu]]: the sizes that CDI devices come in. Imported only when the file has changed."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.types import Any
from nvc.model.request import WEIGHT, Field, SliceRequest, Timing, fields_by
from nvc.model.slices.isolation import KERNEL, OPERATORS
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.slice import timed
from nvc.model.slices.time_settings import WEIGHT_MAX, asked, check_together, parse_policy

FIELDS = fields_by("size")
KEYS = ("name", "devices", *(row.key for row in FIELDS))
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
        given = {row.name: (row.key, _text(name, row, table.get(row.key, ""))) for row in FIELDS}
        given = {field: one for field, one in given.items() if one[1]}
        _check(name, given)
        texts = tuple((field, text) for field, (_, text) in given.items())
        found[name] = (name, _devices(name, table.get("devices", "all")), texts)
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
        raise ValueError(f"{name}: want a name of letters, digits, '_', '-' and '.' that begins with a letter")
    return name


def _text(name: str, row: Field, value: Any) -> str:
    """A value as an option has it; "": nothing is asked for. Raises ValueError for another kind of value."""
    where = f"{name}: {row.key}"
    if row.kind == "cores":
        number = 0 if value == "" else percent(value)
        if type(number) is not int or not 0 <= number <= 100:
            raise ValueError(f'{where}: want a whole number from 0 to 100, like 25 or "25%"')
        return str(number) if number % 100 else ""
    if row.kind == "weight" and value != "":
        if type(value) is not int or not 1 <= value <= WEIGHT_MAX:
            raise ValueError(f"{where}: want a whole number from 1 to {WEIGHT_MAX}")
        return str(value) if value != WEIGHT else ""
    if row.kind == "size" and (type(value) is not str or not value and row.name == "memory"):
        raise ValueError(f'{where}: want a size, like "10GiB" or "25%"')
    if row.kind == "policy" and value not in ("", *POLICIES):
        raise ValueError(f"{where}: want one of {', '.join(POLICIES)}")
    if row.kind == "isolation" and value not in OPERATORS:
        raise ValueError(f'{where}: want "{KERNEL}", or nothing')
    return str(value)


def _check(name: str, given: dict[str, tuple[str, str]]) -> None:
    """Raise ValueError for a text that cannot be read, and for what contradicts the rest of its table."""
    try:
        wanted = asked(given, SliceRequest())
        timed(Timing(), wanted, wanted.cores[0].value if wanted.cores else 0, name)
    except InputError as error:
        raise ValueError(f"{name}: {error.step}: {error.path}: {error.cause}; {error.hint}") from None
    memory, request = given["memory"][1], given.get("reserved", ("", ""))[1]
    if request and _is_more(request, memory):
        raise ValueError(f"{name}: request: {request} is more than memory, {memory}")


def _devices(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if type(value) is str else value
    if type(items) is not list or not items or not all(type(item) is str and item for item in items):
        raise ValueError(f'{name}: devices: want "all" or a list of indices, UUIDs or GPU:MIG')
    return tuple(items)

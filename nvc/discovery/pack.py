"""HostFacts as plain values that `marshal` takes, and back. What changes without notice stays out: proc files and
sockets are read on every start."""

from __future__ import annotations

from nvc.base.types import Any
from nvc.base.value import Value
from nvc.model import facts as model
from nvc.model.facts import HostFacts, Ipc, ProcFile

#: A value is a list: its place here, and its fields. A tuple of values is a list that begins with -1.
_KINDS: tuple[type[Value], ...] = (
    HostFacts, model.Gpu, model.MigDevice, model.DeviceNode, model.ControlNode, model.Identity, model.Library,
    model.Binary, model.Firmware, model.Manifest, model.Module, model.OuterSlice,
)  # fmt: skip
_TUPLE = -1


def pack(facts: HostFacts) -> Any:
    """Every field as lists, tuples, numbers, strings and None."""
    return _plain(facts.replace(ipcs=(), proc_files=()))


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return [_KINDS.index(type(value)), *map(_plain, value)]
    if isinstance(value, tuple) and value and isinstance(value[0], Value):
        return [_TUPLE, *map(_plain, value)]
    return value


def unpack(packed: Any, ipcs: tuple[Ipc, ...], proc_files: tuple[ProcFile, ...]) -> HostFacts:
    """The facts that `pack` took apart, with those of now. Raises TypeError or ValueError for others."""
    facts = _value(packed)
    if not isinstance(facts, HostFacts):
        raise ValueError("not the facts of a host")
    return facts.replace(ipcs=ipcs, proc_files=proc_files)


def _value(packed: Any) -> Any:
    if type(packed) is not list:
        return packed
    values = [_value(one) for one in packed[1:]]
    return tuple(values) if packed[0] == _TUPLE else _KINDS[packed[0]](*values)

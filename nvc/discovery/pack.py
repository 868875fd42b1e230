"""HostFacts as nested tuples of plain values, and back. What changes without notice stays out: proc files
and sockets are read on every start."""

from __future__ import annotations

from nvc.base.types import Any
from nvc.base.value import Value
from nvc.model.facts import (
    Binary,
    DeviceNode,
    Firmware,
    Gpu,
    HostFacts,
    Identity,
    Ipc,
    Library,
    Manifest,
    MigDevice,
    Module,
    OuterSlice,
    ProcFile,
)


def pack(facts: HostFacts) -> tuple[Any, ...]:
    """Every field as tuples, numbers, strings and None."""
    plain = facts.replace(ipcs=(), proc_files=())
    return tuple(_plain(value) for value in plain)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if hasattr(value, "_fields"):
        return tuple(_plain(item) for item in value)
    return value


def unpack(packed: tuple[Any, ...], ipcs: tuple[Ipc, ...], proc_files: tuple[ProcFile, ...]) -> HostFacts:
    """The facts that `pack` took apart, with those of now. Raises TypeError or ValueError for others."""
    if len(packed) != len(HostFacts._fields):
        raise ValueError("not as many fields as HostFacts has")
    values = dict(zip(HostFacts._fields, packed))
    values.update(
        gpus=tuple(_gpu(gpu) for gpu in values["gpus"]),
        libraries=_files(Library, values["libraries"]),
        libraries32=_files(Library, values["libraries32"]),
        binaries=_files(Binary, values["binaries"]),
        firmwares=_files(Firmware, values["firmwares"]),
        ipcs=ipcs,
        control=_node(values["control"]),
        uvm=_nodes(values["uvm"]),
        modeset=_node(values["modeset"]),
        mig_config=_node(values["mig_config"]),
        mig_monitor=_node(values["mig_monitor"]),
        proc_files=proc_files,
        outer=_outer(values["outer"]),
        manifests=_files(Manifest, values["manifests"]),
        modules=_files(Module, values["modules"]),
    )
    return HostFacts(**values)


def _outer(packed: tuple[Any, ...] | None) -> OuterSlice | None:
    return None if packed is None else OuterSlice(_files(Library, packed[0]), *packed[1:])


def _files(kind: type[Value], packed: tuple[Any, ...]) -> tuple[Any, ...]:
    make: Any = kind
    at = kind._fields.index("identity")
    return tuple(make(*one[:at], Identity(*one[at]), *one[at + 1 :]) for one in packed)


def _node(packed: tuple[Any, ...] | None) -> DeviceNode | None:
    return None if packed is None else DeviceNode(*packed)


def _nodes(packed: tuple[Any, ...]) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(*fields) for fields in packed)


def _gpu(packed: tuple[Any, ...]) -> Gpu:
    values = dict(zip(Gpu._fields, packed))
    values.update(
        node=DeviceNode(*values["node"]),
        mig=tuple(_mig(fields) for fields in values["mig"]),
    )
    return Gpu(**values)


def _mig(packed: tuple[Any, ...]) -> MigDevice:
    values = dict(zip(MigDevice._fields, packed))
    values.update(gi_node=_node(values["gi_node"]), ci_node=_node(values["ci_node"]))
    return MigDevice(**values)

"""What `info` and `list` print, as pure functions of what discovery found."""

from __future__ import annotations

from nvc.base.errors import one_line
from nvc.base.types import Any, Iterable, Iterator
from nvc.base.value import Value
from nvc.model.facts import DeviceNode, Gpu, HostFacts, Library
from nvc.model.request import Request
from nvc.model.selection import Selection

SCHEMA_VERSION = 1

CAPABILITIES = "/proc/driver/nvidia/capabilities"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
CAPS_DIRECTORY = "/dev/nvidia-caps"

CSV_DRIVER = ("NVRM version", "CUDA version")
CSV_GPU = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")


class Row(Value):
    """One line of `list`; `detail` is for people, `fields` for programs."""

    kind: str  # device, mig, imex-channel, binary, library, ipc, firmware
    path: str
    detail: str = ""
    fields: tuple[tuple[str, str | int], ...] = ()


def info_text(facts: HostFacts) -> str:
    """Labels and values, as nvidia-container-cli prints them."""
    lines = _labelled(CSV_DRIVER, (facts.driver_label, facts.cuda_version))
    for gpu in facts.gpus:
        lines += ["", *_labelled(CSV_GPU, _gpu_row(gpu))]
    return _joined(lines)


def info_csv(facts: HostFacts) -> str:
    """Comma-separated values, as nvidia-container-cli prints them: without quotes, whatever a name holds."""
    lines = [",".join(CSV_DRIVER), f"{facts.driver_label},{facts.cuda_version}", "", ",".join(CSV_GPU)]
    lines += [",".join(one_line(value) for value in _gpu_row(gpu)) for gpu in facts.gpus]
    return _joined(lines)


def info_table(facts: HostFacts, width: int = 0) -> str:
    """One row for each GPU and MIG device, first what --device accepts; at most `width` columns, 0: any number."""
    from nvc.base.columns import fitted

    rows: list[tuple[str, ...]] = [("DEVICE", "UUID", "BUS", "ARCH", "MODEL")]
    for gpu in facts.gpus:
        bus, model = gpu.bus_id.removeprefix("0000"), gpu.name.removeprefix("NVIDIA ")
        rows.append((str(gpu.index), gpu.uuid, bus, gpu.architecture, one_line(model)))
        for mig in gpu.mig:
            place = f"gi {mig.gpu_instance} ci {mig.compute_instance}"
            rows.append((f"{gpu.index}:{mig.index}", mig.uuid, place, gpu.architecture, "MIG device"))
    return fitted(rows, width, ("ARCH", "BUS", "UUID"), middle=("MODEL",))


def info_document(facts: HostFacts) -> dict[str, Any]:
    """What `info --format json` prints; the keys are documented in docs/cli.md."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "driver": _driver(facts),
        "gpus": [_gpu_document(gpu) for gpu in facts.gpus],
        "warnings": list(facts.warnings),
    }


def list_text(entries: tuple[Row, ...]) -> str:
    """One path a line, with the bytes that it has."""
    return "".join(f"{path_text(entry.path)}\n" for entry in entries)


def path_text(path: str) -> str:
    """`path` so that it stays on its line; undecodable bytes stay as they are."""
    return "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else "?" for c in path)


def list_table(entries: tuple[Row, ...], width: int = 0) -> str:
    """Kind, path and detail; at most `width` columns, 0: any number."""
    from nvc.base.columns import fitted

    rows = [("KIND", "PATH", "DETAIL"), *((entry.kind, entry.path, entry.detail) for entry in entries)]
    longest = max(len(path) for _, path, _ in rows)
    return fitted(rows, width, ("DETAIL",), ("PATH",), short=longest)


def list_document(facts: HostFacts, entries: tuple[Row, ...]) -> dict[str, Any]:
    """What `list --format json` prints; the keys are documented in docs/cli.md."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "driver": _driver(facts),
        "entries": [{"kind": entry.kind, "path": entry.path, **dict(entry.fields)} for entry in entries],
        "warnings": list(facts.warnings),
    }


def entries(
    facts: HostFacts, selection: Selection, request: Request, kinds: Iterable[str]
) -> tuple[Row, ...]:
    """What `list` prints, in the peers' order. `kinds`: devices, binaries, libraries, ipcs, firmwares."""
    found: list[Row] = []
    if "devices" in kinds:
        found += _nodes("device", (one.node for one in facts.controls))
        found += _nodes("device", (gpu.node for gpu in selection.gpus))
        if not selection.mig_config and not selection.mig_monitor:
            for _, mig in selection.mig:
                found += [Row("mig", mig.gi_access), Row("mig", mig.ci_access)]
                found += _nodes("mig", (mig.gi_node, mig.ci_node))
    for channel in selection.imex_channels:
        fields = (("major", facts.imex_major), ("minor", channel))
        detail = f"c {facts.imex_major}:{channel}" if facts.imex_major >= 0 else "unknown to the driver"
        found.append(Row("imex-channel", f"{IMEX_CHANNELS}/channel{channel}", detail, fields))
    for wanted, name, node in (
        (selection.mig_config, "config", facts.mig_config),
        (selection.mig_monitor, "monitor", facts.mig_monitor),
    ):
        if wanted:
            found += _mig_right(selection.gpus, name, node)
    if "binaries" in kinds:
        found += [Row("binary", item.path, item.kind, (("class", item.kind),)) for item in facts.binaries]
    if "libraries" in kinds:
        found += _libraries(facts.libraries)
        if "compat32" in request.capabilities:
            found += _libraries(facts.libraries32)
    if "ipcs" in kinds:
        left_out = {"persistenced": not request.persistenced, "fabricmanager": not request.fabricmanager}
        for ipc in facts.ipcs:
            if not left_out.get(ipc.service, False):
                found.append(Row("ipc", ipc.path, ipc.service, (("service", ipc.service),)))
    if "firmwares" in kinds and request.gsp_firmware:
        found += [Row("firmware", item.path) for item in facts.firmwares]
    return tuple(found)


def _mig_right(gpus: tuple[Gpu, ...], name: str, node: DeviceNode | None) -> Iterator[Row]:
    """The files of the right to configure or to monitor MIG, for the selected GPUs that can do MIG."""
    capable = [gpu for gpu in gpus if gpu.mig_capable]
    if not capable:
        return
    yield Row("mig", f"{CAPABILITIES}/mig/{name}")
    yield from _nodes("mig", (node,))
    for gpu in capable:
        yield Row("mig", f"{CAPABILITIES}/gpu{gpu.minor}")
        if node is not None or gpu.capability_nodes:
            yield Row("mig", CAPS_DIRECTORY)
        yield from _nodes("mig", gpu.capability_nodes)


def _nodes(kind: str, nodes: Iterable[DeviceNode | None]) -> Iterator[Row]:
    for node in nodes:
        if node is not None:
            fields = (("major", node.major), ("minor", node.minor))
            yield Row(kind, node.path, f"c {node.major}:{node.minor}", fields)


def _libraries(libraries: tuple[Library, ...]) -> Iterator[Row]:
    for library in libraries:
        fields = (("class", library.kind), ("soname", library.soname), ("architecture", library.arch))
        detail = f"{library.kind} {library.arch}" if library.arch in ("i386", "arm") else library.kind
        yield Row("library", library.path, detail, fields)


def _driver(facts: HostFacts) -> dict[str, Any]:
    return {
        "version": facts.driver_version,
        "cudaVersion": facts.cuda_version,
        "root": facts.driver_root,
        "simulated": facts.simulated,
    }


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    place = (str(gpu.index), str(gpu.minor), gpu.name, gpu.brand)
    return (*place, gpu.uuid, gpu.bus_id, gpu.architecture)


def _gpu_document(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "minor": gpu.minor,
        "model": gpu.name,
        "brand": gpu.brand,
        "uuid": gpu.uuid,
        "busId": gpu.bus_id,
        "architecture": gpu.architecture,
        "node": gpu.node.path,
        "migCapable": gpu.mig_capable,
        "migEnabled": gpu.mig_enabled,
        "migDevices": [
            {
                "index": mig.index,
                "uuid": mig.uuid,
                "gpuInstance": mig.gpu_instance,
                "computeInstance": mig.compute_instance,
            }
            for mig in gpu.mig
        ],
    }


def _labelled(labels: tuple[str, ...], values: tuple[str, ...]) -> list[str]:
    return [f"{label + ':':<15} {one_line(value)}" for label, value in zip(labels, values)]


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{one_line(line)}\n" for line in lines)

"""From what a caller wrote to the GPUs that it meant. After this step nobody knows an index any more."""

from __future__ import annotations

from nvc.base.errors import DeviceError, MigConfigError, MigMonitorError, NvcError
from nvc.base.value import Value
from nvc.model.facts import Gpu, HostFacts, MigDevice
from nvc.model.request import Request

#: A list of selectors comes from an image's environment; no machine has this many devices.
MAX_SELECTORS = 4096
#: `MIG-GPU-<uuid>/<gi>/<ci>` is the longest selector there is.
MAX_SELECTOR = 80

MAX_NAMED = 8  # devices that an error lists

DECIMAL = frozenset("0123456789")
HEX = frozenset("0123456789abcdef")


class Selection(Value):
    """The devices of one container, each once, in the order in which they were asked for."""

    gpus: tuple[Gpu, ...] = ()
    mig: tuple[tuple[Gpu, MigDevice], ...] = ()  # the parent of each is in `gpus`
    mig_config: bool = False  # the right to create and destroy MIG instances
    mig_monitor: bool = False
    imex_channels: tuple[int, ...] = ()


def select(facts: HostFacts, request: Request) -> Selection:
    """Hold the selectors of `request` against the host.

    Raises DeviceError for a selector that matches nothing, MigConfigError and MigMonitorError where those
    rights were asked for something other than `all`, or together with single MIG devices.
    """
    if len(request.devices) > MAX_SELECTORS:
        raise DeviceError("too many selectors", cause=f"{len(request.devices)}, at most {MAX_SELECTORS}")
    # By position, not by value: comparing whole GPUs with all their MIG devices costs milliseconds.
    gpus: dict[int, Gpu] = {}
    mig: dict[tuple[int, int], tuple[Gpu, MigDevice]] = {}
    everything = False
    for item in request.devices:
        if not item:
            continue
        if item.lower() == "all":
            gpus.update((gpu.index, gpu) for gpu in facts.gpus)
            mig.update(
                ((gpu.index, device.index), (gpu, device)) for gpu in facts.gpus for device in gpu.mig
            )
            everything = True
            break  # as the peers do: what follows `all` is not looked at
        found = _find(facts.gpus, item)
        if found is None:
            raise DeviceError(item, cause=f"unknown device: {_existing(facts.gpus, item)}")
        gpu, device = found
        gpus.setdefault(gpu.index, gpu)
        if device is not None:
            mig.setdefault((gpu.index, device.index), (gpu, device))
    single_mig = bool(mig) and not everything
    return Selection(
        gpus=tuple(gpus.values()),
        mig=tuple(mig.values()),
        mig_config=_all_or_nothing(request.mig_config, "mig-config", MigConfigError, single_mig),
        mig_monitor=_all_or_nothing(request.mig_monitor, "mig-monitor", MigMonitorError, single_mig),
        imex_channels=tuple(dict.fromkeys(request.imex_channels)),
    )


def _find(gpus: tuple[Gpu, ...], item: str) -> tuple[Gpu, MigDevice | None] | None:
    """The device that one selector names; the order decides between two readings, as in the peers."""
    if len(item) > MAX_SELECTOR or not item.isascii():
        return None
    wanted = item.lower()
    if wanted.startswith("gpu-"):
        for gpu in gpus:
            if gpu.uuid.lower() == wanted:
                return gpu, None
    bus_id = _bus_id(wanted)
    if bus_id:
        for gpu in gpus:
            if gpu.bus_id.lower() == bus_id:
                return gpu, None
    if DECIMAL.issuperset(wanted):
        for gpu in gpus:
            if gpu.index == int(wanted):
                return gpu, None
    if wanted.startswith("mig-"):
        for gpu in gpus:
            for device in gpu.mig:
                if device.uuid.lower() == wanted:
                    return gpu, device
    parent, colon, index = wanted.partition(":")
    if colon and parent and index and DECIMAL.issuperset(parent + index):
        for gpu in gpus:
            for device in gpu.mig:
                if gpu.index == int(parent) and device.index == int(index):
                    return gpu, device
    return None


def _existing(gpus: tuple[Gpu, ...], item: str) -> str:
    """What this driver has, for somebody who asked for `item`, which it has not."""
    missing = f"there is no GPU {item}, " if DECIMAL.issuperset(item) and len(item) <= len("4096") else ""
    if not gpus:
        return "this driver has no GPU"
    mig = [f"{gpu.index}:{device.index}" for gpu in gpus for device in gpu.mig]
    if ":" in item or item[:4].lower() == "mig-":
        return f"this driver has {_counted('MIG device', mig) if mig else 'no MIG device'}"
    return f"{missing}this driver has {_counted('GPU', [str(gpu.index) for gpu in gpus])}"


def _counted(noun: str, names: list[str]) -> str:
    """`GPU 0`, `GPUs 0, 1 and 3`, or for many `16 GPUs, 0 to 15`."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    if len(names) > MAX_NAMED:
        return f"{len(names)} {noun}s, {names[0]} to {names[-1]}"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"


def _bus_id(text: str) -> str:
    """`text` as a full PCI bus id (`%08x:%02x:%02x.0`), or "". Leading zeros and the `.0` may be missing."""
    parts = text.removesuffix(".0").split(":")
    if len(parts) != 3:
        return ""
    for part, width in zip(parts, (8, 2, 2)):
        if not part or len(part) > width or not HEX.issuperset(part):
            return ""
    domain, bus, device = parts
    return f"{domain:0>8}:{bus:0>2}:{device:0>2}.0"


def _all_or_nothing(text: str, name: str, error: type[NvcError], single_mig: bool) -> bool:
    """Whether `text`, a comma-separated list, asks for the right `name`. Raises `error`."""
    for item in text.split(","):
        if not item:
            continue
        if item.lower() != "all":
            raise error(item, cause="only 'all' devices are currently supported")
        if single_mig:
            raise error(item, cause=f"cannot enable {name} with specific MIG devices selected")
        return True
    return False

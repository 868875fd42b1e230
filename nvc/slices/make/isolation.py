"""The choice of a MIG device for a slice that asks for one."""

from __future__ import annotations

from nvc.base.errors import DeviceError, InputError
from nvc.kernel import Kernel
from nvc.model.facts import Gpu, HostFacts, MigDevice
from nvc.model.request import Request
from nvc.model.selection import Selection, select
from nvc.model.slices.isolation import MIG
from nvc.model.slices.sizes import size_text
from nvc.slices.store.snapshot import snapshot

MIB = 1 << 20


def take_mig_device(
    kernel: Kernel, facts: HostFacts, selection: Selection, request: Request, key: str
) -> tuple[Request, Selection]:
    """The request for one MIG device in place of what `selection` has, and that device.

    It is the smallest that is not in use by another slice and has the memory that was asked for, of those that were
    selected or of the selected GPUs; or the one that the slice with this key has already. Raises DeviceError where
    there is none, InputError for a request that one device cannot meet.
    """
    assert request.vgpu is not None
    need = _need(request)
    found = _candidates(selection)
    if not found:
        raise DeviceError(
            "isolate a slice", MIG, "none of the selected GPUs has MIG devices",
            "create some with `nvidia-smi mig`, or ask for no isolation",
        )  # fmt: skip
    known = snapshot(kernel, locked=False)
    owners = {
        device.uuid: entry.key for entry, limits in known.living for device in limits if device.memory_limit
    }
    broken = {device.uuid: one for _, device in found if (one := known.broken_on(device.uuid, key))}
    owners |= {uuid: one.entry.key for uuid, one in broken.items()}
    large = [device for _, device in found if device.memory * MIB >= need]
    mine = [device for device in large if key and owners.get(device.uuid) == key]
    free = [device for device in large if device.uuid not in owners]
    if not mine and not free and broken:
        raise next(iter(broken.values())).error("isolate a slice")
    if not mine and not free:
        cause = f"{len(found) - len(large)} are too small, {len(large)} are taken"
        cause = f"no free MIG device of at least {size_text(need)}: {cause}"
        raise DeviceError("isolate a slice", MIG, cause, "wait, ask for less, or make more with `nvidia-smi mig`")
    chosen = min(mine or free, key=lambda device: device.memory)
    request = request.replace(devices=(chosen.uuid,), vgpu=request.vgpu.replace(devices=()))
    return request, select(facts, request)


def _need(request: Request) -> int:
    assert request.vgpu is not None
    sizes = [*request.vgpu.memory, *(size for _, size in request.vgpu.memory_at)]
    if len(sizes) > 1:
        raise InputError(sizes[1].name, sizes[1].text, "isolation takes one MIG device, of one size", "give one")
    for size in sizes:
        if size.part:
            raise InputError(size.name, size.text, "a part of which MIG device?", "write a size, like 10GiB")
    return sizes[0].bytes if sizes else MIB


def _candidates(selection: Selection) -> list[tuple[Gpu, MigDevice]]:
    """The selected MIG devices, and all of a GPU that was selected as a whole."""
    parents = {gpu.index for gpu, _ in selection.mig}
    whole = [(gpu, device) for gpu in selection.gpus if gpu.index not in parents for device in gpu.mig]
    return [*selection.mig, *whole]

"""The operations that give a container a slice: shims over the driver's libraries, quota and ledger. Pure."""

from __future__ import annotations

from nvc.model.request import MPS_PIPES
from nvc.model.slices import layout, ledger
from nvc.model.slices.policy import policy_of
from nvc.model.slices.time_settings import TO_START, enforced_text
from nvc.plan.ops import BindFile, BindHostFile, BindInside, BindSocket, Ledger, Symlink, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvc.model.facts import Library
    from nvc.model.slices.slice import Slice, SliceDevice
    from nvc.plan.ops import Op



def is_shimmed(library: Library, slice: Slice) -> bool:
    """Whether the slice has a shim for the library."""
    return any(library.soname == soname for soname, _, _ in slice.shims)


def library_ops(library: Library, directory: str, main: str, slice: Slice) -> list[Op]:
    """The shim at the library's place in `directory`; the library itself in a subdirectory of `main`, the library
    directory, where only the shim looks."""
    _, path, identity = next(shim for shim in slice.shims if shim[0] == library.soname)
    name = library.path.rpartition("/")[2]
    private = f"{main}/{layout.PRIVATE}"
    if slice.outer is not None:
        library = next(real for real in slice.outer.real if real.soname == library.soname)
    real = f"{main}/{layout.REAL}{library.soname}"
    ops: list[Op] = [BindHostFile(path, f"{directory}/{name}", identity)]
    compat = next((other for other in slice.compat if other.soname == library.soname), None)
    if compat is None:
        ops.append(BindFile(library.path, real, library.identity))
    elif all(compat.identity != shim for _, _, shim in slice.shims):  # else an earlier run has done this
        ops.append(BindInside(compat.path, real, compat.identity))
    if directory != main:
        ops.append(Symlink(private, f"{directory}/{layout.PRIVATE}"))
    return ops


def shim_ops(
    libraries: Iterable[Library], place: Callable[[str], str], libs_dir: str, slice: Slice, mps: str = MPS_PIPES
) -> tuple[Op, ...]:
    """The operations of a slice for a container that already has the driver's `libraries`.

    `place` translates a directory of the driver root to the path where the container, or the host, has it.
    """
    ops: list[Op] = []
    for library in libraries:
        if is_shimmed(library, slice):
            ops += library_ops(library, place(library.path.rpartition("/")[0]), libs_dir, slice)
    return tuple(dict.fromkeys((*ops, *slice_ops(libs_dir, slice, mps))))


def slice_ops(directory: str, slice: Slice, mps: str = MPS_PIPES) -> list[Op]:
    """Quota and ledger beside the shim in the library `directory`, and covers over files of the image.

    `mps` is the directory for the pipes of the slice's own MPS server.
    """
    ops: list[Op] = [BindHostFile(slice.quota, f"{directory}/{layout.QUOTA_FILE}", None)]
    place = f"{directory}/{layout.LEDGER_DIRECTORY}"
    if slice.outer is not None:
        ops.append(BindSocket(slice.outer.ledger, place, True, True))
    elif slice.ledger:
        ops.append(BindHostFile(slice.ledger, place, None, True, True))
    else:
        ops.append(Ledger(place, ledger.header(), layout.LEDGER_SIZE, slice.label))
    if slice.mps:
        pipes = f"{directory}/{layout.MPS_DIRECTORY}" if slice.server else mps
        ops.append(BindHostFile(slice.mps, pipes, None, True, True))
    shims = {soname: (path, identity) for soname, path, identity in slice.shims}
    for shadow in slice.shadows:
        path, identity = shims[shadow.soname]
        ops.append(BindHostFile(path, shadow.path, identity))
    # The shim looks for its files relative to the path it was loaded from.
    private = f"{directory}/{layout.PRIVATE}"
    ops += [Symlink(private, f"{place}/{layout.PRIVATE}") for place in slice.links if place != directory]
    ops += [Tmpfs(path) for path in slice.hidden]
    return ops


def not_enforced(devices: tuple[SliceDevice, ...], cause: str) -> tuple[str, ...]:
    """A warning for each device whose policy is not enforced; `cause` says why, "" if all are."""
    return tuple(
        f"{one.uuid}: policy {enforced_text(one.policy, cause)}; {TO_START}"
        for one in devices
        if cause and not one.hidden and policy_of(one.policy).needs_nvcd
    )


def too_small(devices: tuple[SliceDevice, ...]) -> tuple[str, ...]:
    """A warning for each device of which a slice has no room for a context."""
    return tuple(
        f"the slice of {device.uuid} is smaller than one context, for which {device.context_overhead >> 20} MiB "
        + ("were measured" if device.calibrated else "are assumed: `nvc-cli vgpu calibrate` measures it")
        for device in devices
        if not device.hidden and device.limit <= device.context_overhead
    )


def warnings(slice: Slice) -> tuple[str, ...]:
    """Warnings about a slice: hidden libraries, limits below a context, caps that do not hold."""
    found = [
        f"{path} is hidden: its forward-compatibility libraries are not those that the container uses"
        for path in slice.hidden
    ]
    found += too_small(slice.devices)
    found += [
        f"the policy of {device.uuid} is {policy_of(device.policy).name}: the cap of {device.cores}% does not hold"
        for device in slice.devices
        if device.cores and not policy_of(device.policy).caps
    ]
    return (*found, *not_enforced(slice.devices, slice.not_enforced))

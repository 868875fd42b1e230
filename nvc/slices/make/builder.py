"""Builds slices from requests, for `configure`, hooks, CDI and `vgpu run` alike.

    request, selection, devices = choose_devices(kernel, facts, selection, request, key)
    slice = build_slice(kernel, facts, devices, target, libs_dir, wanted)
    plan = ...                                                 pure: nvc.plan
    install_slice(kernel, target, slice, libs_dir, timeout, lambda: apply_plan(...))

What is asked comes as a SliceRequest: from the command line, from a container's variables, or with a slice for each
device that a CDI device names (SliceRequest.parts, which is what a Kubernetes claim becomes, too).
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.files import closing
from nvc.discovery.driver.compat import DIRECTORY, compat_libraries
from nvc.model.facts import identity_of
from nvc.model.slices.isolation import KERNEL, MIG, MPS
from nvc.model.slices.layout import CORES_UNCAPPED, POLICY_NATIVE
from nvc.model.slices.policy import policy_of
from nvc.model.slices.slice import Slice, SliceDevice, resolve, shared_slice
from nvc.slices.client.required import not_enforced
from nvc.slices.make import calibration, shim
from nvc.slices.make.shadow_libraries import find_shadow_libraries
from nvc.slices.policy.policies import with_policies
from nvc.slices.store import registry

#: Mounted where SELinux is enabled.
SELINUX = "/sys/fs/selinux/enforce"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nvc.apply.target import Target
    from nvc.discovery.driver.compat import CompatLibrary
    from nvc.kernel import Kernel
    from nvc.model.facts import HostFacts, Identity
    from nvc.model.request import Request, SliceRequest
    from nvc.model.selection import Selection

    T = TypeVar("T")


def choose_devices(
    kernel: Kernel, facts: HostFacts, selection: Selection, request: Request, key: str = ""
) -> tuple[Request, Selection, tuple[SliceDevice, ...]]:
    """The devices of a slice within the operator's bounds, and the request and the selection that name them.

    Isolation by MIG chooses one MIG device of those selected; for the slice with this `key`, the one that it has.
    Raises InputError, DeviceError, RegistryError for a slice that cannot be read.
    """
    if request.vgpu is not None and request.vgpu.isolation == MIG:
        from nvc.slices.make.isolation import take_mig_device

        request, selection = take_mig_device(kernel, facts, selection, request, key)
    assert request.vgpu is not None
    return request, selection, resolve(facts, selection, request.vgpu)


def build_slice(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[SliceDevice, ...],
    target: Target,
    libs_dir: str,
    wanted: SliceRequest,
    compat: bool = False,
) -> Slice:
    """The slice of an open container, or of this process, with these devices. Nothing is changed.

    `devices` come from `resolve`; those with a limit of 0 are hidden. `libs_dir` is the directory of the driver's
    libraries as the container has it. With `compat`, the image's forward-compatibility libraries may be used.
    The slice has everything that a plan prints: each device's policy in force, overheads and what is not enforced.

    Raises InitializationError without a shim, and DeviceError where there can be no MPS server that was asked for.
    Raises PolicyError for a device policy that cannot be read, DaemonError where nvcd is required and not running.
    Raises MountError for an image with too many shadow libraries, and what `kernel_limits.held_cgroup` raises.
    """
    files = shim.installed()
    known = tuple(identity for _, _, identity in files.files)
    libraries: tuple[CompatLibrary, ...] = ()
    if compat:
        libraries = compat_libraries(kernel, target.rootfs, facts.driver_version, shims=known)
    place = DIRECTORY if libraries else ""
    found = find_shadow_libraries(target.rootfs, libs_dir, wanted.library_path, known, place)
    holds = " ".join(sorted(device.hold for device in devices if device.hold))
    key, ledger = _key_and_ledger(kernel, target, devices, holds)
    mps, percent = "", 100
    if wanted.isolation == MPS:
        devices, mps, percent = _by_mps(facts, devices, key)
    held = None
    if wanted.isolation == KERNEL:
        from nvc.slices.make.kernel_limits import held_cgroup

        held = held_cgroup(facts, devices, target)
    ruled = with_policies(devices)
    server, shared = _shared_server(facts, ruled, wanted, bool(holds))
    return Slice(
        devices=measured(ruled, facts.driver_label),
        not_enforced=not_enforced(ruled, wanted.require_daemon),
        shim_directory=files.directory,
        shims=files.files,
        quota=f"{registry.base_directory()}/{key}/quota",
        shadows=found.shadows,
        links=found.links,
        hidden=found.hidden,
        uncounted=wanted.uncounted,
        isolation=wanted.isolation,
        mps=shared or mps,
        mps_percent=percent,
        server=server,
        held=held,
        compat=libraries,
        label=wanted.label if _has_selinux() else "",
        holds=holds,
        ledger=ledger,
    )


def _key_and_ledger(
    kernel: Kernel, target: Target, devices: tuple[SliceDevice, ...], holds: str
) -> tuple[str, str]:
    """The key of the slice, and the directory on the host of the ledger of one made for a claim, else ""."""
    if holds and all(device.hold for device in devices):
        held = registry.held(holds)
        if held is not None:
            return held.key, f"{held.directory}/{registry.LEDGER}"
    return registry.key_of(kernel, target), ""


def _shared_server(
    facts: HostFacts, devices: tuple[SliceDevice, ...], wanted: SliceRequest, is_claim: bool
) -> tuple[str, str]:
    """The UUID of the device whose shared MPS server the slice uses, and that server's directory; "" without one.

    Raises DeviceError.
    """
    if not any(policy_of(device.policy).server for device in devices if not device.hidden):
        return "", ""
    from nvc.slices.client import mps

    server = mps.shared_device(devices, wanted.isolation, is_claim)
    mps.check_program(facts, mps.SHARING)
    return server, mps.directory(mps.SHARED, server)


def nested_slice(kernel: Kernel, facts: HostFacts, target: Target) -> Slice:
    """The slice of a container inside one that has a slice: it shares that one, and can have no other.

    Raises MountError for an image with too many shadow libraries.
    """
    shared = shared_slice(facts)
    known = tuple(identity for _, _, identity in shared.shims)
    found = find_shadow_libraries(target.rootfs, target.layout.libs_dir, (), known)
    return shared.replace(shadows=found.shadows, links=found.links, hidden=found.hidden)


def install_slice(
    kernel: Kernel, target: Target, slice: Slice, libs_dir: str, timeout: float, apply: Callable[[], T]
) -> T:
    """Register a slice, isolate it where that is asked, then `apply` the plan; all of it or nothing.

    Raises what `registry.enter` and `apply` raise, DeviceError for an MPS server that does not start, and what
    `kernel_limits.with_limits` raises.
    """
    undo: Callable[[], None] | None = None
    if slice.ledger:
        registry.join(kernel, target, slice)
    else:
        undo = registry.enter(kernel, target, slice, libs_dir)
    try:
        if slice.held is not None:
            from nvc.slices.make.kernel_limits import with_limits

            return with_limits((slice.held,), timeout, apply)
        if not slice.mps:
            return apply()
        from nvc.slices.client import mps

        key = registry.key_of(kernel, target)
        try:
            if slice.server:
                mps.share(slice.server, timeout)
                return apply()  # other slices may use it: nvcd ends it after the last one
            mps.start(key, mps.only_device(slice.devices), slice.mps_percent, timeout)
            return apply()
        except BaseException:
            if not slice.server:
                mps.stop(key)
            raise
    except BaseException:
        if undo is not None:
            undo()
        raise


def _has_selinux() -> bool:
    """Whether the kernel has SELinux: one without it refuses labels as a mount option."""
    try:
        os.stat(SELINUX)
    except OSError:
        return False
    return True


def _by_mps(
    facts: HostFacts, devices: tuple[SliceDevice, ...], key: str
) -> tuple[tuple[SliceDevice, ...], str, int]:
    """The devices of a slice that has an MPS server, that server's directory, and its percentage of threads.

    The percentage stands for a cap of the time, which the shim would enforce a second time. Raises DeviceError.
    """
    from nvc.slices.client import mps

    own = mps.only_device(devices)
    if policy_of(own.asked_policy).server:
        mps.shared_device((own,), MPS, False)  # refuses
    mps.check_program(facts, mps.STEP)
    found = tuple(
        device.replace(cores=CORES_UNCAPPED, policy=POLICY_NATIVE, asked_policy=POLICY_NATIVE)
        if device.uuid == own.uuid
        else device
        for device in devices
    )
    return found, mps.directory(key, own.uuid), own.cores or 100


def measured(devices: tuple[SliceDevice, ...], driver: str) -> tuple[SliceDevice, ...]:
    """The devices with the memory that a context takes on each, measured or assumed. Raises CalibrationError."""
    known = calibration.load()
    found = []
    for device in devices:
        part = device.memory >> 20 if ":" in device.index else 0
        one = calibration.find(known, driver, device.name, part)
        found.append(
            device.replace(context_overhead=one.context, module_overhead=one.module, calibrated=True)
            if one is not None
            else device.replace(context_overhead=calibration.ASSUMED)
        )
    return tuple(found)


def empty_file() -> tuple[str, Identity]:
    """The path and identity of an empty file that covers libraries a container must not use; made if need be.

    Raises InitializationError, OSError.
    """
    path = f"{registry.base_directory()}/empty"
    with closing(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)) as fd:
        return path, identity_of(os.fstat(fd))

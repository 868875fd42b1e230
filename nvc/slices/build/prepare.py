"""What a plan with a slice rests on: the shim, measurements, the image's copies of libcuda, the quota's place."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.compat import DIRECTORY, compat_libraries
from nvc.discovery.hostroot import identity_of
from nvc.discovery.outer import refuse_slices
from nvc.slices.build import calibration, shim
from nvc.slices.store import registry
from nvc.slices.build.copies import find_copies
from nvc.slices.model.layout import CORES_UNCAPPED, POLICY_NATIVE
from nvc.slices.policy.policies import governed
from nvc.slices.client.presence import not_enforced
from nvc.slices.model.slice import Slice, SliceDevice, resolve, shared_slice

#: Mounted where SELinux is enabled.
SELINUX = "/sys/fs/selinux/enforce"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.compat import CompatLibrary
    from nvc.kernel import Kernel
    from nvc.model import HostFacts, Identity
    from nvc.request import SliceRequest
    from nvc.selection import Selection
    from nvc.target import Target


def prepare(
    kernel: Kernel,
    facts: HostFacts,
    selection: Selection,
    wanted: SliceRequest | None,
    target: Target,
    compat: bool = False,
) -> Slice | None:
    """The slice of an open container, None where it has no device to have a slice of. Nothing is changed.

    `compat`: the image's forward-compatibility libraries may be used. In a container that has a slice itself a
    nested one shares that, and can have no other.

    Raises InputError for sizes that cannot be, InitializationError without a shim, MountError for an image with too
    many copies of libcuda.
    """
    if wanted is None:
        shared = shared_slice(facts)
        known = tuple(identity for _, _, identity in shared.shims)
        found = find_copies(kernel, target.rootfs, target.layout.libs_dir, (), known)
        nested: Slice = shared.replace(copies=found.copies, links=found.links, hidden=found.hidden)
        return nested
    refuse_slices(facts)
    devices = resolve(facts, selection, wanted)
    if not devices:
        return None
    return slice_of(kernel, facts, devices, target, target.layout.libs_dir, wanted, compat)


def slice_of(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[SliceDevice, ...],
    target: Target,
    libs_dir: str,
    wanted: SliceRequest,
    compat: bool,
) -> Slice:
    """The slice of an open container that has these devices and the driver's libraries in `libs_dir`.

    Of `wanted` only counts what does not concern devices. Nothing is changed. Raises InitializationError without a
    shim, DaemonError where nvcd is required and does not run, MountError for an image with too many copies
    of libcuda.
    """
    files = shim.installed()
    known = tuple(identity for _, _, identity in files.files)
    libraries: tuple[CompatLibrary, ...] = ()
    if compat:
        libraries = compat_libraries(kernel, target.rootfs, facts.driver_version, shims=known)
    place = DIRECTORY if libraries else ""
    found = find_copies(kernel, target.rootfs, libs_dir, wanted.library_path, known, place)
    mps, percent = "", 100
    if wanted.fence == "mps":
        devices, mps, percent = by_mps(devices, registry.key_of(kernel, target))
    ruled = governed(devices)
    return Slice(
        devices=measured(ruled, facts.driver_label),
        not_enforced=not_enforced(ruled, wanted.require_daemon),
        shim_directory=files.directory,
        shims=files.files,
        quota=f"{registry.base_directory()}/{registry.key_of(kernel, target)}/quota",
        copies=found.copies,
        links=found.links,
        hidden=found.hidden,
        uncounted=wanted.uncounted,
        fence=wanted.fence,
        mps=mps,
        mps_percent=percent,
        daemon=registry.daemon_directory(),
        compat=libraries,
        label=wanted.label if _has_selinux() else "",
    )


def _has_selinux() -> bool:
    """Whether the kernel knows labels: one without refuses them as a mount option."""
    try:
        os.stat(SELINUX)
    except OSError:
        return False
    return True


def by_mps(devices: tuple[SliceDevice, ...], key: str) -> tuple[tuple[SliceDevice, ...], str, int]:
    """The devices of a slice that MPS fences, its server's directory, and its percentage of the device's threads.

    That stands for a cap of the time, which the shim would keep a second time. Raises DeviceError.
    """
    from nvc.slices.client import mps

    fenced = mps.only_device(devices)
    found = tuple(
        device.replace(cores=CORES_UNCAPPED, policy=POLICY_NATIVE, asked_policy=POLICY_NATIVE)
        if device.uuid == fenced.uuid
        else device
        for device in devices
    )
    return found, mps.directory(key, fenced.uuid), fenced.cores or 100


def start_mps(kernel: Kernel, target: Target, slice: Slice, timeout: float) -> None:
    """Have the server started of a slice that is in the registry. Raises DeviceError."""
    from nvc.slices.client import mps

    key = registry.key_of(kernel, target)
    try:
        mps.start(key, mps.only_device(slice.devices), slice.mps_percent, timeout)
    except BaseException:
        mps.stop(key)
        raise


def measured(devices: tuple[SliceDevice, ...], driver: str) -> tuple[SliceDevice, ...]:
    """The devices with what a context takes of each, measured or assumed."""
    known = calibration.load()
    found = []
    for device in devices:
        part = device.memory >> 20 if ":" in device.index else 0
        measurement = calibration.find(known, driver, device.name, part)
        if measurement is None:
            found.append(device.replace(context_overhead=calibration.ASSUMED))
        else:
            found.append(
                device.replace(
                    context_overhead=measurement.context, module_overhead=measurement.module, calibrated=True
                )
            )
    return tuple(found)


def empty_file() -> tuple[str, Identity]:
    """A file without content that covers libraries which a container is not to have; made if need be.

    Raises InitializationError, OSError.
    """
    path = f"{registry.base_directory()}/empty"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        return path, identity_of(os.fstat(fd))
    finally:
        os.close(fd)

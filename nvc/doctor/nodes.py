"""Device nodes of the host: that each is there, has the driver's number, and can be opened."""

from __future__ import annotations

import os
import stat

from nvc.discovery.nodes import CAPABILITIES, CONTROL, CONTROL_MINOR, UVM, UVM_TOOLS
from nvc.discovery.proc import PROC, fields_of
from nvc.doctor import Check, aside, failed, ok, warning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.discovery.hostroot import HostRoot
    from nvc.doctor import Finding
    from nvc.doctor.context import Context

_READ_WRITE = 0o666


def state(devices: HostRoot, path: str, major: int, minor: int) -> str:
    """What is wrong with the node at `path`, "" for nothing."""
    try:
        status = devices.stat(path, follow=False)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be checked: {(error.strerror or str(error)).lower()}"
    if not stat.S_ISCHR(status.st_mode):
        return "is not a character device"
    there = os.major(status.st_rdev), os.minor(status.st_rdev)
    return "" if there == (major, minor) else f"is {there[0]}:{there[1]}, the driver's is {major}:{minor}"


def _checked(context: Context, path: str, minor: int, major: int) -> Iterator[Finding]:
    problem = state(context.host.devices, path, major, minor)
    if problem:
        place = _place(context, path)
        remove = () if problem == "is missing" else (aside(place),)
        yield failed(
            f"{place} {problem}",
            f"the driver's number is {major}:{minor}",
            commands=(
                *remove,
                f"mkdir -p {os.path.dirname(place)}",
                f"mknod -m 666 {place} c {major} {minor}",
            ),
            advice="nvidia-modprobe makes nodes too, and `nvc-cli --load-kmods info`",
        )


def _place(context: Context, path: str) -> str:
    base = context.host.devices.path
    return path if base == "/" else base.rstrip("/") + path


def control(context: Context) -> Iterator[Finding]:
    """nvidiactl and the nodes of UVM."""
    context.module  # noqa: B018
    yield from _checked(context, CONTROL, CONTROL_MINOR, context.major)
    uvm = context.majors.get("nvidia-uvm")
    if uvm is not None:
        yield from _checked(context, UVM, 0, uvm)
        yield from _checked(context, UVM_TOOLS, 1, uvm)


def gpus(context: Context) -> Iterator[Finding]:
    """One node for each GPU of the kernel module, and none for GPUs that are not there."""
    context.module  # noqa: B018
    minors = {gpu.minor for gpu in context.gpus if gpu.minor >= 0}
    for minor in sorted(minors):
        yield from _checked(context, f"/dev/nvidia{minor}", minor, context.major)
    for name, _ in context.host.devices.entries("/dev"):
        number = name.removeprefix("nvidia")
        if name != number and number.isascii() and number.isdigit() and int(number) not in minors:
            yield warning(
                f"{_place(context, '/dev/' + name)} is stale: there is no GPU with this minor",
                commands=(aside(_place(context, f"/dev/{name}")),),
            )
    if minors:
        yield ok(f"{len(minors)} GPUs have their device nodes")


def capabilities(context: Context) -> Iterator[Finding]:
    """The nodes by which MIG devices are opened: without one, NVML does not even show the device."""
    context.module  # noqa: B018
    major = context.majors.get("nvidia-caps")
    if major is None:
        yield ok("this driver has no capability nodes")
        return
    for path in _access_files(context.host.system):
        content = context.host.system.read_optional(path, 4096) or b""
        minor = fields_of(content).get("DeviceFileMinor", "")
        if minor.isascii() and minor.isdigit() and len(minor) <= 7:
            yield from _checked(context, f"{CAPABILITIES}/nvidia-cap{minor}", int(minor), major)


def _access_files(system: HostRoot) -> Iterator[str]:
    """The access files of every MIG instance, below /proc."""
    base = f"{PROC}/capabilities"
    for gpu, _ in system.entries(base):
        for instance, _ in system.entries(f"{base}/{gpu}/mig"):
            place = f"{base}/{gpu}/mig/{instance}"
            if instance.startswith("gi"):
                yield f"{place}/access"
                yield from (
                    f"{place}/{name}/access" for name, _ in system.entries(place) if name != "access"
                )


def permissions(context: Context) -> Iterator[Finding]:
    """Whether users other than root can open the nodes."""
    context.module  # noqa: B018
    for name, _ in context.host.devices.entries("/dev"):
        if not name.startswith("nvidia"):
            continue
        try:
            status = context.host.devices.stat(f"/dev/{name}", follow=False)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_mode & _READ_WRITE != _READ_WRITE:
            place = _place(context, f"/dev/{name}")
            yield warning(
                f"{place} is not open to all users: in containers they need group {status.st_gid}",
                f"mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}:{status.st_gid}",
                commands=(f"chmod 666 {place}",),
                advice=f"or start containers with --group-add {status.st_gid}; "
                "the driver's option NVreg_DeviceFileMode sets the mode of new nodes",
            )


def dev_char(context: Context) -> Iterator[Finding]:
    """The links by which systemd and runc name device numbers; without them a reload takes GPUs away."""
    context.module  # noqa: B018
    if not os.path.isdir("/run/systemd/system"):
        yield ok("this host does not run systemd")
        return
    devices = context.host.devices
    names = [name for name, _ in devices.entries("/dev") if name.startswith("nvidia")]
    missing = []
    for name in names:
        try:
            status = devices.stat(f"/dev/{name}", follow=False)
        except OSError:
            continue
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        if stat.S_ISCHR(status.st_mode) and not devices.exists(f"/dev/char/{number}"):
            missing.append((number, name))
    if missing:
        base = _place(context, "/dev/char")
        yield warning(
            f"{len(missing)} nodes have no link in {base}: containers may lose GPUs when systemd is reloaded",
            *(f"{base}/{number} for {name}" for number, name in missing),
            commands=(
                f"mkdir -p {base}",
                *(f"ln -sf ../{name} {base}/{number}" for number, name in missing),
            ),
        )


CHECKS = (
    Check("nodes.control", "/dev/nvidiactl and the device nodes of UVM", control),
    Check("nodes.gpus", "/dev/nvidiaN of each GPU", gpus),
    Check("nodes.capabilities", "MIG capability nodes", capabilities),
    Check("nodes.permissions", "whether all users can open the device nodes", permissions),
    Check("nodes.dev-char", "links in /dev/char, which systemd needs", dev_char),
)

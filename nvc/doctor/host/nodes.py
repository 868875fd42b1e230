"""Device nodes of the host: that each is there, has the driver's number, and can be opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.base.errors import DetectionError
from nvc.discovery.devices.nodes import CAPABILITIES, CONTROL, CONTROL_MINOR, UVM, UVM_TOOLS, find_node
from nvc.discovery.devices.proc import PROC, fields_of
from nvc.discovery.hostroot import HostRoot
from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, aside
from nvc.doctor.context import Context

_READ_WRITE = 0o666


def _node(context: Context, path: str, major: int, minor: int) -> Fact:
    """A node that the driver needs, and what is wrong with it."""
    problem = ""
    try:
        there = find_node(context.host.devices, path, major, minor) is not None
    except DetectionError as error:
        there, problem = True, str(error.cause)
    place = _place(context, path)
    return Fact(place=place, there=there, problem=problem, number=f"{major}:{minor}", aside=aside(place),
                make=f"mknod -m 666 {place} c {major} {minor}", directory=os.path.dirname(place))  # fmt: skip


def _place(context: Context, path: str) -> str:
    base = context.host.devices.path
    return path if base == "/" else base.rstrip("/") + path


def _control(context: Context) -> Iterator[Fact]:
    context.module  # noqa: B018
    yield _node(context, CONTROL, context.major, CONTROL_MINOR)
    uvm = context.majors.get("nvidia-uvm")
    if uvm is not None:
        yield _node(context, UVM, uvm, 0)
        yield _node(context, UVM_TOOLS, uvm, 1)


def _gpus(context: Context) -> Iterator[Fact]:
    context.module  # noqa: B018
    minors = {gpu.minor for gpu in context.gpus if gpu.minor >= 0}
    for minor in sorted(minors):
        yield _node(context, f"/dev/nvidia{minor}", context.major, minor)


def _capabilities(context: Context) -> Iterator[Fact]:
    """The nodes by which MIG devices are opened: without one, NVML does not even show the device."""
    context.module  # noqa: B018
    major = context.majors.get("nvidia-caps")
    for path in _access_files(context.host.system) if major is not None else ():
        minor = fields_of(context.host.system.read_optional(path, 4096) or b"").get("DeviceFileMinor", "")
        if major is not None and minor.isascii() and minor.isdigit() and len(minor) <= 7:
            yield _node(context, f"{CAPABILITIES}/nvidia-cap{minor}", major, int(minor))


def _access_files(system: HostRoot) -> Iterator[str]:
    """The access files of every MIG instance, below /proc."""
    base = f"{PROC}/capabilities"
    for gpu, _ in system.entries(base):
        for instance, _ in system.entries(f"{base}/{gpu}/mig"):
            place = f"{base}/{gpu}/mig/{instance}"
            if instance.startswith("gi"):
                yield from (
                    f"{place}/access" if name == "access" else f"{place}/{name}/access"
                    for name, _ in system.entries(place)
                )


def _there(context: Context) -> Iterator[tuple[str, os.stat_result]]:
    """Names and status of the character devices /dev/nvidia*."""
    context.module  # noqa: B018
    for name, _ in context.host.devices.entries("/dev"):
        status = context.host.devices.character(f"/dev/{name}") if name.startswith("nvidia") else None
        if status is not None:
            yield name, status


def _permissions(context: Context) -> Iterator[Fact]:
    for name, status in _there(context):
        if status.st_mode & _READ_WRITE != _READ_WRITE:
            yield Fact(place=_place(context, f"/dev/{name}"), mode=stat.S_IMODE(status.st_mode),
                       user=status.st_uid, group=status.st_gid)  # fmt: skip


def _dev_char(context: Context) -> Iterator[Fact]:
    """The links by which systemd and runc name device numbers; without them a reload takes GPUs away."""
    numbers = [(f"{os.major(it.st_rdev)}:{os.minor(it.st_rdev)}", name) for name, it in _there(context)]
    base = _place(context, "/dev/char")
    missing = [it for it in numbers if not context.host.devices.exists(f"/dev/char/{it[0]}")]
    if missing and os.path.isdir("/run/systemd/system"):
        yield Fact(
            count=len(missing),
            base=base,
            seen=[f"{base}/{number} for {name}" for number, name in missing],
            run=[f"ln -sf ../{name} {base}/{number}" for number, name in missing],
        )


_HELP = "nvidia-modprobe makes nodes too, and `nvc-cli --load-kmods info`"
NODE = (
    Row(FAILED, "{place}: {problem}", "problem", seen=("the driver's number is {number}",), run=("{aside}",
        "{make}"), advice=_HELP),
    Row(FAILED, "{place} is missing", lambda it: it.place and not it.there,
        seen=("the driver's number is {number}",), run=("mkdir -p {directory}", "{make}"), advice=_HELP),
)  # fmt: skip
CHECKS = (
    Check("nodes.control", "/dev/nvidiactl and the device nodes of UVM", _control, NODE),
    Check("nodes.gpus", "/dev/nvidiaN of each GPU", _gpus, (
        *NODE,
        Row(OK, "{place} is there"),
    )),
    Check("nodes.capabilities", "MIG capability nodes", _capabilities, NODE),
    Check("nodes.permissions", "whether all users can open the device nodes", _permissions, (
        Row(WARNING, "{place} is not open to all users: in containers they need group {group}",
            seen=("mode {mode:04o}, owner {user}:{group}",), run=("chmod 666 {place}",),
            advice="or start containers with --group-add {group}; the driver's option NVreg_DeviceFileMode sets "
            "the mode of new nodes"),
    )),
    Check("nodes.dev-char", "links in /dev/char, which systemd needs", _dev_char, (
        Row(WARNING, "{count} nodes have no link in {base}: containers may lose GPUs when systemd is reloaded",
            run=("mkdir -p {base}",)),
    )),
)  # fmt: skip

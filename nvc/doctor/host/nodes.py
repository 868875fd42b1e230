"""Device nodes of the host: that each is there, has the driver's number, and can be opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.base.errors import DetectionError
from nvc.discovery.devices.nodes import CAPABILITIES, CONTROLS, find_node
from nvc.discovery.devices.proc import PROC, fields_of
from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, aside
from nvc.doctor.context import Context

_READ_WRITE = 0o666


def _node(context: Context, path: str, major: int, minor: int) -> Iterator[Fact]:
    """A node that the driver needs, and what is wrong with it."""
    place = context.device(path)
    make = f"mknod -m 666 {place} c {major} {minor}"
    try:
        there = find_node(context.host.devices, path, major, minor)
        yield Fact(place=place, there=there, run=[f"mkdir -p {os.path.dirname(place)}", make])
    except DetectionError as error:
        yield Fact(place=place, problem=error.cause, run=[aside(place), make])


def _control(context: Context) -> Iterator[Fact]:
    context.module  # noqa: B018
    for path, _, driver, minor, capability in CONTROLS:
        major = context.majors.get(driver) if driver else context.major
        if major is not None and capability != "display":  # who displays nothing lacks nothing
            yield from _node(context, path, major, minor)


def _gpus(context: Context) -> Iterator[Fact]:
    context.module  # noqa: B018
    for minor in sorted(gpu.minor for gpu in context.gpus if gpu.minor >= 0):
        yield from _node(context, f"/dev/nvidia{minor}", context.major, minor)


def _capabilities(context: Context) -> Iterator[Fact]:
    """The nodes by which MIG devices are opened: without one, NVML does not even show the device."""
    context.module  # noqa: B018
    major, system, base = context.majors.get("nvidia-caps"), context.host.system, f"{PROC}/capabilities"
    if major is None:
        return
    instances = [f"{base}/{gpu}/mig/{name}" for gpu, _ in system.entries(base)
                 for name, _ in system.entries(f"{base}/{gpu}/mig") if name.startswith("gi")]  # fmt: skip
    parts = [f"{place}/{name}" for place in instances for name, _ in system.entries(place) if name.startswith("ci")]
    for place in sorted((*instances, *parts)):
        minor = fields_of(system.read_optional(f"{place}/access", 4096) or b"").get("DeviceFileMinor", "")
        if minor.isascii() and minor.isdigit() and len(minor) <= 7:
            yield from _node(context, f"{CAPABILITIES}/nvidia-cap{minor}", major, int(minor))


def _there(context: Context) -> Iterator[tuple[str, os.stat_result]]:
    """Paths and status of the character devices /dev/nvidia*."""
    context.module  # noqa: B018
    for name, _ in context.host.devices.entries("/dev"):
        status = context.host.devices.character(f"/dev/{name}") if name.startswith("nvidia") else None
        if status is not None:
            yield f"/dev/{name}", status


def _permissions(context: Context) -> Iterator[Fact]:
    for path, status in _there(context):
        if status.st_mode & _READ_WRITE != _READ_WRITE:
            yield Fact(place=context.device(path), mode=stat.S_IMODE(status.st_mode), status=status)


def _dev_char(context: Context) -> Iterator[Fact]:
    """The links by which systemd and runc name device numbers; without them a reload takes GPUs away."""
    base, run = context.device("/dev/char"), []
    for path, it in _there(context):
        number = f"{os.major(it.st_rdev)}:{os.minor(it.st_rdev)}"
        if not context.host.devices.exists(f"/dev/char/{number}"):
            run.append(f"ln -sf ..{path.removeprefix('/dev')} {base}/{number}")
    if run and os.path.isdir("/run/systemd/system"):
        yield Fact(count=len(run), base=base, run=run)


_HELP = "nvidia-modprobe makes nodes too, and `nvc-cli --load-kmods info`"
NODE = (
    Row(OK, "{place} is there", "there"),
    Row(FAILED, "{place}: {problem}", "problem", advice=_HELP),
    Row(FAILED, "{place} is missing", advice=_HELP),
)
CHECKS = (
    Check("nodes.control", "/dev/nvidiactl and the device nodes of UVM", _control, NODE),
    Check("nodes.gpus", "/dev/nvidiaN of each GPU", _gpus, NODE),
    Check("nodes.capabilities", "MIG capability nodes", _capabilities, NODE),
    Check("nodes.permissions", "whether all users can open the device nodes", _permissions, (
        Row(WARNING, "{place} is not open to all users: in containers they need group {status.st_gid}",
            seen=("mode {mode:04o}, owner {status.st_uid}:{status.st_gid}",), run=("chmod 666 {place}",),
            advice="or start containers with --group-add {status.st_gid}; NVreg_DeviceFileMode of the driver sets "
            "the mode of new nodes"),
    )),
    Check("nodes.dev-char", "links in /dev/char, which systemd needs", _dev_char, (
        Row(WARNING, "{count} nodes have no link in {base}: containers may lose GPUs when systemd is reloaded",
            run=("mkdir -p {base}",)),
    )),
)  # fmt: skip

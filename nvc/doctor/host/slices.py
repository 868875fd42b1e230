"""Slices: room for them, the installed shim, quotas and ledgers, what does not add up, and the daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from nvc.base.errors import NvcError, counted
from nvc.discovery.containers.files import names_in
from nvc.discovery.driver.elf import read_elf
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside, first, with_systemd
from nvc.doctor.context import Context
from nvc.doctor.host.settings import REINSTALL
from nvc.model.slices import layout
from nvc.model.slices.policy import policy_of
from nvc.slices.admin.coverage import survey
from nvc.slices.client.nvcd import SHIM, ask, by_shim
from nvc.slices.client.presence import NOT_RUNNING
from nvc.slices.make import calibration, shim
from nvc.slices.policy import policies
from nvc.slices.store.snapshot import snapshot
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

SOCKET = "/run/nvc/nvcd/nvcd.sock"
NO_SOCKET = "there is no such socket"
UNITS = (
    "/etc/systemd/system/nvcd.service",
    "/usr/lib/systemd/system/nvcd.service",
    "/lib/systemd/system/nvcd.service",
)
PATIENCE = 3.0  # seconds
#: What a slice takes in the runtime directory, with some for a start beside it: bytes, and files.
ROOM, FILES = 64 << 10, 16
_LIBRARY_MAX = 16 << 20  # bytes
_GLIBC = re.compile(rb"\0GLIBC_([0-9]{1,3})\.([0-9]{1,3})(?:\.[0-9]{1,3})?(?=\0)")


def _room(context: Context) -> Iterator[Fact]:
    path = context.runtime_directory
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return
    free = found.f_bavail * found.f_frsize
    full = f"{free >> 10} KiB" if free < ROOM else ""
    if found.f_files and found.f_favail < FILES:
        full = full or f"room for {found.f_favail} files"
    yield Fact(path=path, free=free >> 20, full=full, room=ROOM >> 10, files=FILES)


def _shim(_: Context) -> Iterator[Fact]:
    try:
        found = shim.installed()
    except NvcError as error:
        yield Fact(missing=error.path, cause=error.cause)
        return
    for soname, path, _identity in found.files:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            elf = read_elf(fd, path)
        except (OSError, NvcError) as error:
            yield Fact(damaged=path, cause=error)
            continue
        finally:
            os.close(fd)
        yield Fact(
            path=path,
            directory=found.directory,
            layouts=elf.layouts or "no",
            wanted=layout.VERSION,
            own=elf.soname,
            soname=soname,
        )


def max_glibc(fd: int) -> tuple[int, int]:
    """The newest version of glibc that a library names. Raises OSError."""
    named = _GLIBC.findall(os.pread(fd, _LIBRARY_MAX, 0))
    return max(((int(major), int(minor)) for major, minor in named), default=(0, 0))


def _quotas(context: Context) -> Iterator[Fact]:
    base = f"{context.runtime_directory}/vgpu"
    try:
        known = snapshot(context.kernel, locked=False, repair=False, base=base)
    except FileNotFoundError:
        return
    for one in known.broken:
        path = one.entry.directory
        yield Fact(path=path, file=os.path.basename(one.path), cause=one.cause, torn=one.torn, aside=aside(path))
    yield Fact(slices=counted(len(known.slices), "slice"))


def _ledgers(context: Context) -> Iterator[Fact]:
    for tenant in context.living():
        if tenant.problem:
            yield Fact(name=tenant.name, problem=tenant.problem, pid=tenant.pids[0],
                       rootfs=tenant.entry.rootfs or "a program")  # fmt: skip


def _memory(context: Context) -> Iterator[Fact]:
    """Devices of which slices together promise more memory than there is, or than the operator lets them."""
    holders: dict[str, list[tuple[SliceStatus, SliceDeviceStatus]]] = {}
    for tenant in context.living():
        for device in tenant.devices:
            if device.limit != layout.NO_LIMIT and device.memory:
                holders.setdefault(device.uuid, []).append((tenant, device))
    for uuid, held in holders.items():
        promised, size = sum(device.limit for _, device in held), held[0][1].memory
        size = max(size, size * policies.read(uuid).oversubscribe // 100)
        largest, device = max(held, key=lambda one: one[1].limit)
        fits = max(device.limit - (promised - size) >> 20, 1)
        if promised > size:
            yield Fact(uuid=uuid, promised=promised >> 20, size=size >> 20, largest=largest.name,
                       index=device.index, fits=fits,
                       seen=first((f"{one.name}: {its.limit >> 20} MiB" for one, its in held), 16))  # fmt: skip


def _leftovers(context: Context) -> Iterator[Fact]:
    gone = [tenant for tenant in context.slices()[0] if not tenant.alive]
    if gone:
        yield Fact(count=len(gone), seen=first(f"{one.name} {one.entry.rootfs}".rstrip() for one in gone))


def _coverage(context: Context) -> Iterator[Fact]:
    for tenant in context.living():
        yield from uncovered(context, tenant)


def uncovered(context: Context, tenant: SliceStatus) -> Iterator[Fact]:
    """What of a slice does without the shim: processes, and files that one could load."""
    found = survey(context.kernel, (tenant,), ())
    for report in found.reports:
        for path, cause in report.uncovered:
            fact = Fact(pid=report.pid, program=report.name, name=tenant.name, path=path, seen=[cause])
            fact.silent = path.startswith("/proc/")  # the process itself was not seen
            yield fact
    for path in found.files:
        yield Fact(file=path)


def _calibration(context: Context) -> Iterator[Fact]:
    if not context.living():
        return
    fact = Fact(driver=context.facts.driver_label, path=calibration.PATH, nvc_cli=context.nvc_cli)
    try:
        fact.known = fact.driver in {one.driver for one in calibration.load()}
    except NvcError as error:
        fact.cause = error.cause
    yield fact


def _policies(context: Context) -> Iterator[Fact]:
    """While a device's policy cannot be read, no slice of that device is made."""
    base = f"{context.runtime_directory}/vgpu-policy"
    uuids = [name for name in names_in(base) if not name.startswith(".")]
    for uuid in uuids[: layout.DEVICES]:
        try:
            policies.read(uuid)
        except NvcError as error:
            yield Fact(uuid=uuid, cause=error.cause, path=f"{base}/{uuid}", aside=aside(f"{base}/{uuid}"))


def _daemon(context: Context) -> Iterator[Fact]:
    needing = [
        tenant.name
        for tenant in context.living()
        if any(policy_of(device.policy).needs_nvcd for device in tenant.devices)
    ]
    cause = "" if os.path.exists(SOCKET) else NO_SOCKET
    if not cause:
        try:
            ask("alive", PATIENCE)
        except NvcError as error:
            cause = str(error.cause)
    elif not needing:
        yield Fact(idle=True)
        return
    if not cause:
        yield from _not_enforced(context.living())
    yield Fact(
        socket=SOCKET,
        cause=cause,
        needed=needing,
        seen=[
            *[f"unit {path}" for path in UNITS if os.path.exists(path)][:1],
            *first((f"slice {name} shares the time of its GPUs" for name in needing), 4),
        ],
        run=restart_of(cause, "journalctl -u nvcd -n 50"),
    )


def _not_enforced(living: tuple[SliceStatus, ...]) -> Iterator[Fact]:
    """Policies in force on devices whose time nvcd, which answers, does not keep. Raises InitializationError."""
    found = {
        device.uuid: policy_of(device.policy)
        for tenant in living
        for device in tenant.devices
        if not device.hidden and not device.kept and policy_of(device.policy).needs_nvcd
    }
    for uuid, policy in found.items():
        if not policy.server and by_shim(uuid):
            yield Fact(unkept=policy.name, uuid=uuid, why=SHIM)


def restart_of(cause: str, *more: str) -> tuple[str, ...]:
    """Commands that start nvcd, which does not answer because of `cause`; under systemd also `more`."""
    absent = cause in (NO_SOCKET, NOT_RUNNING)
    return with_systemd(
        "systemctl restart nvcd", *more, without=("nvcd &",) if absent else ("nvcd --stop", "nvcd &")
    )


SILENT = Row(UNKNOWN, "whether process {pid} ({program}) of slice {name} has the shim is not known", "silent")
UNCOVERED = Row(FAILED, "process {pid} ({program}) of slice {name} bypasses the shim: {path}", "pid",
                run=("nvc-cli vgpu check {pid}",),
                advice="its memory is not limited: remove that copy of the library from the image")  # fmt: skip
CHECKS = (
    Check("vgpu.room", "whether there is room for another slice", _room, (
        Row(FAILED, "{path} is full: {full} is free, and a slice takes {room} KiB and {files} files", "full",
            seen=("containers and programs with a slice do not start; those that run go on",), run=("df -h {path}",
            "du -x -d 2 {path}"),
            advice="remove what others have put there, or mount /run larger: mount -o remount,size=20% /run"),
        Row(OK, "{path} has room: {free} MiB"),
    )),
    Check("vgpu.shim", "the installed shim", _shim, (
        Row(FAILED, "no slices can be made: {missing}: {cause}", "missing", advice=REINSTALL),
        Row(FAILED, "{damaged} is damaged: {cause}", "damaged", advice=REINSTALL),
        Row(FAILED, "{path} is not the shim of this nvc: it is {own}, for version {layouts} of the quota",
            lambda it: (it.own, it.layouts) != (it.soname, it.wanted), advice=REINSTALL),
        Row(OK, "the shim is {directory}"),
    )),
    Check("vgpu.quotas", "the quota and entry of each slice", _quotas, (
        Row(FAILED, "the slice in {path} is broken: {file}: {cause}", "torn", run=("nvc-cli vgpu ls",),
            advice="the command ends that change"),
        Row(FAILED, "the slice in {path} is broken: {file}: {cause}", "path", run=("{aside}",),
            advice="then start its container again: while it runs, its programs are denied memory"),
        Row(OK, "{slices}"),
    )),
    Check("vgpu.ledgers", "the ledgers of slices", _ledgers, (
        Row(FAILED, "the use of slice {name} is not known: {problem}", seen=("process {pid}, {rootfs}",),
            run=("nvc-cli vgpu check {pid}",),
            advice="its programs have written to it: end them and start the container again"),
    )),
    Check("vgpu.memory", "whether the limits of slices exceed the GPU's memory", _memory, (
        Row(WARNING, "slices of {uuid} promise {promised} MiB, more than {size} MiB",
            run=("nvc-cli vgpu set {largest} --device {index} --memory {fits}MiB",),
            advice="the last to allocate gets `out of memory`: make one of them smaller"),
    )),
    Check("vgpu.leftovers", "slices of containers that have ended", _leftovers, (
        Row(WARNING, "slices remain from containers that have ended: {count}", run=("nvc-cli vgpu rm --gone",)),
    )),
    Check("vgpu.coverage", "whether every process of a slice has the shim", _coverage, (
        SILENT,
        UNCOVERED,
        Row(WARNING, "slice {file} would bypass the shim if a program loaded it",
            advice="remove that copy of the library from the image"),
    )),
    Check("vgpu.calibration", "whether every device is calibrated", _calibration, (
        Row(FAILED, "the calibration cannot be read, so no slice can be made: {cause}", "cause", seen=("{path}",),
            run=("{nvc_cli} vgpu calibrate",)),
        Row(WARNING, "not calibrated with driver {driver}: contexts are charged at an estimate",
            lambda it: not it.known, seen=("no line for it in {path}",), run=("{nvc_cli} vgpu calibrate",)),
    )),
    Check("vgpu.policies", "device policies", _policies, (
        Row(FAILED, "the policy of {uuid} cannot be read: {cause}", seen=("{path}",), run=("{aside}",),
            advice="then set it again: nvc-cli vgpu policy"),
    )),
    Check("vgpu.daemon", "whether nvcd answers", _daemon, (
        Row(WARNING, "the policy {unkept} of {uuid} is not enforced: {why}", "unkept", run=("nvcd --state",),
            advice="docs/time.md says what that needs; until then, only memory limits and caps hold"),
        Row(OK, "nvcd does not run; no slice needs it", "idle"),
        Row(FAILED, "nvcd cannot be reached: {socket}: {cause}", lambda it: it.cause and it.needed,
            advice="without nvcd, only memory limits and caps hold"),
        Row(WARNING, "nvcd cannot be reached: {socket}: {cause}", "cause",
            advice="without nvcd, only memory limits and caps hold"),
        Row(OK, "nvcd answers"),
    )),
)  # fmt: skip

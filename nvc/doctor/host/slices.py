"""Slices: room for them, the installed shim, quotas and ledgers, and what does not add up."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvc.base.errors import NvcError, counted
from nvc.base.files import closing
from nvc.discovery.containers.files import names_in
from nvc.discovery.driver.elf import read_elf
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside, first
from nvc.doctor.context import Context
from nvc.doctor.host.settings import REINSTALL
from nvc.model.slices import layout
from nvc.slices.admin.coverage import survey
from nvc.slices.make import calibration, shim
from nvc.slices.policy import policies
from nvc.slices.store.snapshot import snapshot
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

#: What a slice takes in the runtime directory, with some for a start beside it: bytes, and files.
ROOM, FILES = 64 << 10, 16


def _room(context: Context) -> Iterator[Fact]:
    path = context.runtime_directory
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return
    free = found.f_bavail * found.f_frsize
    full = free < ROOM or found.f_files and found.f_favail < FILES
    yield Fact(path=path, full=full, free=free >> 10, files=found.f_favail)


def _shim(_: Context) -> Iterator[Fact]:
    try:
        found = shim.installed()
    except NvcError as error:
        yield Fact(missing=error)
        return
    for soname, path, _identity in found.files:
        with closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            try:
                elf = read_elf(fd, path)
                wrong = f"it is {elf.soname}, for version {elf.layouts or 'no'} of the quota"
                if (elf.soname, elf.layouts) == (soname, layout.VERSION):
                    continue
            except NvcError as error:
                wrong = str(error.cause)
        yield Fact(path=path, wrong=wrong)


def _quotas(context: Context) -> Iterator[Fact]:
    base = f"{context.runtime_directory}/vgpu"
    try:
        known = snapshot(context.kernel, locked=False, repair=False, base=base)
    except FileNotFoundError:
        return
    for one in known.broken:
        yield Fact(one=one, file=os.path.basename(one.path), torn=one.torn, aside=aside(one.entry.directory))
    yield Fact(slices=counted(len(known.slices), "slice"))


def _ledgers(context: Context) -> Iterator[Fact]:
    yield from (Fact(one=one) for one in context.living() if one.problem)


def _memory(context: Context) -> Iterator[Fact]:
    """Devices of which slices together promise more memory than there is, or than the operator lets them."""
    holders: dict[str, list[tuple[SliceStatus, SliceDeviceStatus]]] = {}
    for one in context.living():
        for device in one.devices:
            if device.limit != layout.NO_LIMIT and device.memory:
                holders.setdefault(device.uuid, []).append((one, device))
    for uuid, held in holders.items():
        promised = sum(device.limit for _, device in held)
        largest, device = max(held, key=lambda one: one[1].limit)
        size = device.memory * max(policies.read(uuid).oversubscribe, 100) // 100
        fits = max(device.limit - (promised - size) >> 20, 1)
        if promised > size:
            yield Fact(device=device, promised=promised >> 20, size=size >> 20, largest=largest, fits=fits,
                       seen=first((f"{one.name}: {its.limit >> 20} MiB" for one, its in held), 16))  # fmt: skip


def _leftovers(context: Context) -> Iterator[Fact]:
    gone = [one for one in context.slices[0] if not one.alive]
    if gone:
        yield Fact(count=len(gone), seen=first(f"{one.name} {one.entry.rootfs}".rstrip() for one in gone))


def _coverage(context: Context) -> Iterator[Fact]:
    for one in context.living():
        yield from uncovered(context, one)


def uncovered(context: Context, one: SliceStatus) -> Iterator[Fact]:
    """What of a slice does without the shim: processes, and files that one could load."""
    found = survey(context.kernel, (one,), ())
    for report in found.reports:
        for path, cause in report.uncovered:
            silent = path.startswith("/proc/")  # the process itself was not seen
            yield Fact(process=report, name=one.name, path=path, silent=silent, seen=[cause])
    yield from (Fact(file=path) for path in found.files)


def _calibration(context: Context) -> Iterator[Fact]:
    if not context.living():
        return
    driver, run = context.facts.driver_label, [f"{context.nvc_cli} vgpu calibrate"]
    try:
        if driver not in {one.driver for one in calibration.load()}:
            yield Fact(driver=driver, run=run)
    except NvcError as error:
        yield Fact(cause=error.cause, run=run)


def _policies(context: Context) -> Iterator[Fact]:
    """While a device's policy cannot be read, no slice of that device is made."""
    base = f"{context.runtime_directory}/vgpu-policy"
    for uuid in [name for name in names_in(base) if not name.startswith(".")][: layout.DEVICES]:
        try:
            policies.read(uuid)
        except NvcError as error:
            yield Fact(uuid=uuid, cause=error.cause, run=[aside(f"{base}/{uuid}")])


_PROCESS = "process {process.pid} ({process.name}) of slice {name}"
SILENT = Row(UNKNOWN, f"whether {_PROCESS} has the shim is not known", "silent")
UNCOVERED = Row(FAILED, f"{_PROCESS} bypasses the shim: {{path}}", "process",
                run=("nvc-cli vgpu check {process.pid}",),
                advice="its memory is not limited: remove that copy of the library from the image")  # fmt: skip
CHECKS = (
    Check("vgpu.room", "whether there is room for another slice", _room, (
        Row(FAILED, "{path} is full: {free} KiB and {files} files are free", "full",
            run=("df -h {path}", "du -x -d 2 {path}"),
            advice="remove what others have put there, or mount /run larger: mount -o remount,size=20% /run"),
        Row(OK, "{path} has room: {free} KiB"),
    )),
    Check("vgpu.shim", "the installed shim", _shim, (
        Row(FAILED, "no slices can be made: {missing.path}: {missing.cause}", "missing", advice=REINSTALL),
        Row(FAILED, "{path} is not the shim of this nvc: {wrong}", advice=REINSTALL),
    )),
    Check("vgpu.quotas", "the quota and entry of each slice", _quotas, (
        Row(FAILED, "the slice in {one.entry.directory} is broken: {file}: {one.cause}", "torn",
            run=("nvc-cli vgpu ls",), advice="the command ends that change"),
        Row(FAILED, "the slice in {one.entry.directory} is broken: {file}: {one.cause}", "one", run=("{aside}",),
            advice="then start its container again: while it runs, its programs are denied memory"),
        Row(OK, "{slices}"),
    )),
    Check("vgpu.ledgers", "the ledgers of slices", _ledgers, (
        Row(FAILED, "the use of slice {one.name} is not known: {one.problem}",
            run=("nvc-cli vgpu check {one.pids[0]}",),
            advice="its programs have written to it: end them and start the container again"),
    )),
    Check("vgpu.memory", "whether the limits of slices exceed the GPU's memory", _memory, (
        Row(WARNING, "slices of {device.uuid} promise {promised} MiB, more than {size} MiB",
            run=("nvc-cli vgpu set {largest.name} --device {device.index} --memory {fits}MiB",),
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
        Row(FAILED, "the calibration cannot be read, so no slice can be made: {cause}", "cause",
            seen=(calibration.PATH,)),
        Row(WARNING, "not calibrated with driver {driver}: contexts are charged at an estimate"),
    )),
    Check("vgpu.policies", "device policies", _policies, (
        Row(FAILED, "the policy of {uuid} cannot be read: {cause}",
            advice="then set it again: nvc-cli vgpu policy"),
    )),
)  # fmt: skip

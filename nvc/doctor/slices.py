"""Slices: the installed shim, quotas and ledgers, what does not add up, and the daemon."""

from __future__ import annotations

import errno
import glob
import os
import re
import socket
import stat
import time

from nvc.cgroup.find import cgroup_mounts
from nvc.discovery.elf import read_elf, section
from nvc.doctor import AS_ROOT, Check, aside, failed, first, ok, unknown, warning, with_systemd
from nvc.doctor.context import Context
from nvc.doctor.running import read_proc
from nvc.errors import NvcError
from nvc.slices.build import calibration, shim
from nvc.slices.build.kernel_limits import SINCE
from nvc.slices.client.nvcd import ask
from nvc.slices.model import layout
from nvc.slices.model.elfnote import layouts_of
from nvc.slices.model.policy import policy_of
from nvc.slices.policy import policies
from nvc.slices.store.process_info import start_of
from nvc.slices.store.snapshot import snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

#: For its operator, and for the programs of slices.
SOCKET = "/run/nvc/nvcd/nvcd.sock"
UNITS = (
    "/etc/systemd/system/nvcd.service",
    "/usr/lib/systemd/system/nvcd.service",
    "/lib/systemd/system/nvcd.service",
)
PATIENCE = 3.0  # seconds
BEGINNING = 3.0  # seconds until nvcd has made its sockets, on any host
_STRINGS_LIMIT = 16 << 20
_GLIBC = re.compile(rb"\0GLIBC_([0-9]{1,3})\.([0-9]{1,3})(?:\.[0-9]{1,3})?(?=\0)")
_REINSTALL = "install nvc again: `make install`, or the package"


def installed(context: Context) -> Iterator[Finding]:
    """The shim that new slices get: link, files, note, name, and the glibc that it needs."""
    try:
        found = shim.installed()
    except NvcError as error:
        yield failed(f"no slices can be made: {error.path}: {error.cause}", advice=_REINSTALL)
        return
    host = host_glibc()
    for soname, path, _ in found.files:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            yield unknown(f"{path}: {(error.strerror or '').lower()}", advice=AS_ROOT)
            continue
        try:
            elf = read_elf(fd, path)
            needs = max_glibc(fd, path)
        except (OSError, NvcError) as error:
            yield failed(f"{path} is damaged: {error}", advice=_REINSTALL)
            continue
        finally:
            os.close(fd)
        if layouts_of(elf) != layout.VERSION:
            version = layouts_of(elf) or "no"
            yield failed(
                f"{path} is a shim for version {version} of quota and ledger, this nvc makes {layout.VERSION}",
                advice=_REINSTALL,
            )
        elif elf.soname != soname:
            yield failed(f"{path} calls itself {elf.soname}, not {soname}", advice=_REINSTALL)
        elif host and needs > host:
            yield failed(
                f"{path} needs glibc {needs[0]}.{needs[1]}, this host has {host[0]}.{host[1]}",
                advice="install the package that was built for this distribution",
            )
    yield ok(f"the shim is {found.directory}")


def max_glibc(fd: int, path: str = "") -> tuple[int, int]:
    """The newest version of glibc that an ELF file names in its dynamic strings. Raises DetectionError, OSError."""
    strings = section(fd, read_elf(fd, path), ".dynstr", _STRINGS_LIMIT) or b""
    return max(((int(major), int(minor)) for major, minor in _GLIBC.findall(strings)), default=(0, 0))


def host_glibc() -> tuple[int, int]:
    """The version of this process's glibc; (0, 0) where it has another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return 0, 0
    major, _, minor = version.partition(".")
    return (int(major), int(minor)) if name == "glibc" and minor.isdigit() else (0, 0)


def quotas(context: Context) -> Iterator[Finding]:
    """Whether each slice's files can be read."""
    base = f"{context.runtime_directory}/vgpu"
    try:
        known = snapshot(context.kernel, locked=False, repair=False, base=base)
    except FileNotFoundError:
        yield ok("there are no slices")
        return
    except PermissionError:
        yield unknown(f"{base} cannot be read", advice=AS_ROOT)
        return
    for one in known.broken:
        path = one.entry.directory
        said = f"the slice in {path} is broken: {one.path.rpartition('/')[2]}: {one.cause}"
        if one.torn:
            yield failed(said, commands=("nvc-cli vgpu ls",), advice="the command ends that change")
        else:
            yield failed(
                said,
                commands=(aside(path),),
                advice="then start its container again: while it runs, its programs are denied memory",
            )
    yield ok(f"{len(known.slices) + len(known.broken)} slices")


def ledgers(context: Context) -> Iterator[Finding]:
    """Whether what the processes of a slice hold can be told."""
    for tenant in context.slices()[0]:
        if tenant.alive and tenant.problem:
            yield failed(
                f"the use of slice {tenant.name} is not known: {tenant.problem}",
                f"process {tenant.pids[0]}, {tenant.entry.rootfs or 'a program'}",
                commands=(f"nvc-cli vgpu check {tenant.pids[0]}",),
                advice="its programs have written to it: end them and start the container again",
            )


def memory(context: Context) -> Iterator[Finding]:
    """Whether slices together promise more memory than a device has."""
    holders: dict[str, list[tuple[SliceStatus, SliceDeviceStatus]]] = {}
    for tenant in context.slices()[0]:
        for device in tenant.devices if tenant.alive else ():
            if device.limit != layout.NO_LIMIT and device.memory:
                holders.setdefault(device.uuid, []).append((tenant, device))
    for uuid, held in holders.items():
        promised, size = sum(device.limit for _, device in held), held[0][1].memory
        if promised > size:
            tenant, device = max(held, key=lambda one: one[1].limit)
            fits = max(device.limit - (promised - size) >> 20, 1)
            yield warning(
                f"slices of {uuid} promise {promised >> 20} MiB, it has {size >> 20} MiB",
                *first((f"{one.name}: {its.limit >> 20} MiB" for one, its in held), 16),
                commands=(f"nvc-cli vgpu set {tenant.name} --device {device.index} --memory {fits}MiB",),
                advice="the last to allocate gets `out of memory`: make one of them smaller",
            )


def leftovers(context: Context) -> Iterator[Finding]:
    """Slices of containers that are gone."""
    gone = [tenant for tenant in context.slices()[0] if not tenant.alive]
    if gone:
        yield warning(
            f"slices remain from containers that have ended: {len(gone)}",
            *first(f"{tenant.name} {tenant.entry.rootfs}".rstrip() for tenant in gone),
            commands=("nvc-cli vgpu rm --gone",),
        )


def coverage(context: Context) -> Iterator[Finding]:
    """Whether the shim is in every process of a slice."""
    from nvc.slices.admin.coverage import survey

    living: tuple[SliceStatus, ...] = tuple(tenant for tenant in context.slices()[0] if tenant.alive)
    for tenant in living:
        found = survey(context.kernel, (tenant,), ())
        for report in found.reports:
            for path, cause in report.uncovered:
                yield failed(
                    f"process {report.pid} ({report.name}) of slice {tenant.name} bypasses the shim: {path}",
                    cause,
                    commands=(f"nvc-cli vgpu check {report.pid}",),
                    advice="its memory is not limited: remove that copy of the library from the image",
                )
        for path in found.files:
            yield warning(
                f"slice {path} would bypass the shim if a program loaded it",
                advice="remove that copy of the library from the image",
            )


def measured(context: Context) -> Iterator[Finding]:
    """Whether it is known what a context takes."""
    if not any(tenant.alive for tenant in context.slices()[0]):
        return
    facts = context.facts
    try:
        known = {one.driver for one in calibration.load()}
    except NvcError as error:
        yield failed(
            f"the calibration cannot be read, so no slice can be made: {error.cause}",
            calibration.PATH,
            commands=(f"{context.nvc_cli} vgpu calibrate",),
        )
        return
    if facts.driver_label not in known:
        yield warning(
            f"not calibrated with driver {facts.driver_label}: contexts are charged at an estimate",
            f"no line for it in {calibration.PATH}",
            commands=(f"{context.nvc_cli} vgpu calibrate",),
        )


def isolation(context: Context) -> Iterator[Finding]:
    """Whether the driver can limit cgroups, where the configuration asks for that."""
    config = context.config
    sizes = [f"[[nvc.vgpu]] {size[0]}" for size in config.vgpu_devices if size[-1]]
    asking = ["vgpu-isolation"] if config.vgpu_isolation else sizes
    if not asking:
        return
    facts = context.facts
    major = facts.driver_version.partition(".")[0]
    if not major.isdigit() or int(major) < SINCE:
        yield failed(
            f"{asking[0]}: driver {facts.driver_label} has no memory limits by cgroup",
            "containers with such a slice do not start",
            advice=f"install driver {SINCE} or newer, or remove that setting from {config.path}",
        )
        return
    try:
        with open("/proc/self/mountinfo", "rb") as mounts:
            unified = any(mount.version == 2 for mount in cgroup_mounts(mounts.read()))
    except OSError as error:
        yield unknown(f"/proc/self/mountinfo: {(error.strerror or '').lower()}", advice=AS_ROOT)
        return
    if not unified:
        yield failed(
            f"{asking[0]}: no cgroup2 hierarchy is mounted",
            "containers with such a slice do not start",
            advice="boot the host with cgroup v2",
        )
    else:
        yield ok(f"driver {facts.driver_label} limits the memory of cgroups")


def device_policy(context: Context) -> Iterator[Finding]:
    """Whether device policies can be read: while one cannot, no slice of that device is made."""
    base = f"{context.runtime_directory}/vgpu-policy"
    try:
        uuids = sorted(name for name in os.listdir(base) if not name.startswith("."))
    except FileNotFoundError:
        yield ok("there are no device policies")
        return
    for uuid in uuids[: layout.DEVICES]:
        try:
            policies.read(uuid)
        except NvcError as error:
            yield failed(
                f"the policy of {uuid} cannot be read: {error.cause}",
                f"{base}/{uuid}",
                commands=(aside(f"{base}/{uuid}"),),
                advice="then set it again: nvc-cli vgpu policy",
            )


def daemon(context: Context) -> Iterator[Finding]:
    """Whether nvcd answers, where a slice needs it or it has run."""
    problem = _unreachable(SOCKET) or _silent()
    problems = [(SOCKET, problem)] if problem else []
    units = [path for path in UNITS if os.path.exists(path)]
    needing = _with_policy(context)
    there = os.path.exists(SOCKET)
    for pid in _hidden():
        yield failed(
            f"process {pid} is an nvcd that nobody reaches: {SOCKET} is not where it looks",
            commands=with_systemd("systemctl restart nvcd", without=(f"kill {pid}", "nvcd &")),
            advice="its directory was removed",
        )
        there = True
    if not there and not needing:
        yield ok("nvcd does not run; no slice needs it", *(f"unit {path}" for path in units[:1]))
    elif problems and all("denied" in problem for _, problem in problems):
        yield unknown("nvcd could not be asked", advice=AS_ROOT)
    elif problems:
        found = failed if needing else warning  # what no slice needs does not fail
        yield found(
            f"nvcd cannot be reached: {problems[0][0]}: {problems[0][1]}",
            *(f"unit {path}" for path in units[:1]),
            *first((f"slice {name} shares the time of its GPUs" for name in needing), 4),
            commands=with_systemd("systemctl restart nvcd", "journalctl -u nvcd -n 50", without=("nvcd &",)),
            advice="without nvcd, only memory limits and caps hold",
        )
    else:
        yield ok("nvcd answers")


def _hidden() -> list[int]:
    """The nvcds that share this /run, and whose socket is not even there."""
    found = []
    here = os.stat("/run")
    for path in glob.glob("/proc/[0-9]*/comm"):
        process = os.path.dirname(path)
        if read_proc(path) != b"nvcd\n" or os.path.lexists(f"{process}/root{SOCKET}"):
            continue
        try:
            there, began = os.stat(f"{process}/root/run"), start_of(process) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended, or may not be looked at
            continue
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) and age > BEGINNING:
            found.append(int(os.path.basename(process)))
    return found


def _unreachable(path: str) -> str:
    """Why nobody listens at the socket, "" where somebody does."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return "it is not a socket"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except OSError as error:
            if error.errno in (
                errno.EPROTOTYPE,
                errno.EAGAIN,
            ):  # of another kind, or busy: somebody is there
                return ""
            return (error.strerror or str(error)).lower()
    return ""


def _silent() -> str:
    """Why nothing comes back: the kernel takes connections for a daemon that hangs, too."""
    try:
        ask("state", PATIENCE)
    except NvcError as error:
        return f"no answer: {error.cause}"
    return ""


def _with_policy(context: Context) -> list[str]:
    """Names of the slices whose policies only nvcd enforces."""
    return [
        tenant.name
        for tenant in context.slices()[0]
        if tenant.alive and any(policy_of(device.policy).needs_nvcd for device in tenant.devices)
    ]


CHECKS = (
    Check("vgpu.shim", "the installed shim", installed),
    Check("vgpu.quotas", "the quota and entry of each slice", quotas),
    Check("vgpu.ledgers", "the ledgers of slices", ledgers),
    Check("vgpu.memory", "whether the limits of slices exceed the GPU's memory", memory),
    Check("vgpu.leftovers", "slices of containers that have ended", leftovers),
    Check("vgpu.coverage", "whether every process of a slice has the shim", coverage),
    Check("vgpu.calibration", "whether every device is calibrated", measured),
    Check("vgpu.isolation", "whether the driver can isolate what the configuration isolates", isolation),
    Check("vgpu.policies", "device policies", device_policy),
    Check("vgpu.daemon", "whether nvcd answers", daemon),
)

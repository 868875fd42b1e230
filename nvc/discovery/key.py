"""The key of the inventory: the state of the host on which discovery depends, read in under 1 ms without NVML.

It consists of looks: where, how, and the answer. What the launcher repeats without Python (nvc/apply/replay.py) it
compares by the same looks, so an answer is bytes that native/launcher/replay/look.c makes as well.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

import nvc
from nvc.base.files import closing
from nvc.base.types import Any, Iterator
from nvc.discovery.devices.nodes import CONTROL, CONTROLS, MODULES
from nvc.discovery.devices.proc import GPUS, PROC
from nvc.discovery.host import SIMULATION, Host
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Gpu, HostFacts, Library, MigDevice
from nvc.model.request import DriverOptions

#: Root, kind, path and answer. Roots: D the driver's, S of /proc and /sys, V of device nodes, H this process's.
Look = tuple[str, str, str, bytes]

_MODULES = (*(name.replace("-", "_") for name in MODULES), "nvidia_drm")
_CAPABILITIES = PROC + "/capabilities"
_TABLE = nvc.__file__.rpartition("/")[0] + "/discovery/driver/library_table.py"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CONTENT_MAX = 65536  # bytes
ABSENT = b"-"


def host_key(host: Host, options: DriverOptions) -> tuple[Any, ...]:
    """The state of the host on which discovery depends.

    Left out are files that the executor compares when it opens them, sockets and proc files, which every start
    reads, and the uid of the probe.
    """
    return (*_choices(options), host.devices is host.driver, tuple(_looks(host, options)))


def looks_of(key: tuple[Any, ...], options: DriverOptions) -> tuple[Look, ...] | None:
    """What a key that was kept is made of; None for one of other options."""
    choices = _choices(options)
    return key[-1] if key[: len(choices)] == choices else None


def _choices(options: DriverOptions) -> tuple[Any, ...]:
    """What a caller decides, and the program itself."""
    return (
        nvc.__version__,
        (HostFacts._fields, Gpu._fields, MigDevice._fields, Library._fields),
        options.configuration,
        (
            options.root,
            options.ldcache,
            options.search_path,
            options.mps_directory,
            options.library_directories,
            options.device_root,
        ),
    )


def _looks(host: Host, options: DriverOptions) -> Iterator[Look]:
    driver, system = host.driver, host.system
    yield "H", "i", _TABLE, _table_state()
    yield "H", "c", _BOOT_ID, _boot_id()
    yield "D", "d", "/", answer(driver, "d", "/")
    for kind, path in (("i", options.ldcache), ("i", SIMULATION), ("r", CONTROL)):
        yield "D", kind, path, answer(driver, kind, path)
    yield "S", "c", "/sys/module/nvidia/version", answer(system, "c", "/sys/module/nvidia/version")
    for name in _MODULES:  # a module that is loaded again gets another inode in sysfs
        yield "S", "n", f"/sys/module/{name}", answer(system, "n", f"/sys/module/{name}")
    yield "S", "m", "/proc/devices", answer(system, "m", "/proc/devices")
    for path, *_ in CONTROLS:
        yield "V", "r", path, answer(host.devices, "r", path)
    yield "S", "l", GPUS, answer(system, "l", GPUS)
    yield from _mig_tree(system)


def answer(root: HostRoot, kind: str, path: str) -> bytes:
    """What is at `path` now; `-` where nothing is. Raises DetectionError where the answer is out of bounds.

    Kinds: `i` identity, `d` identity of a directory, `n` inode, `r` number of a device, `c` content, `m` lines of
    /proc/devices that name the driver, `l` names with inodes.
    """
    if kind == "l":
        entries = ((name.encode("utf-8", "surrogateescape"), inode) for name, inode in root.entries(path))
        return b"".join([b"%b %d\n" % entry for entry in entries])
    if kind == "c":
        content = root.read_optional(path, _CONTENT_MAX)
        return ABSENT if content is None else b"+" + content
    if kind == "m":
        lines = (root.read_optional(path) or b"").split(b"\n")
        return b"\n".join([line for line in lines if b"nvidia" in line])
    try:
        status = root.stat(path)
    except OSError:
        return ABSENT
    if kind == "i":
        return identity(status)
    if kind == "d":
        return b"%d %d %d" % (status.st_dev, status.st_ino, status.st_mtime_ns)
    if kind == "n":
        return b"%d" % status.st_ino
    return b"%o %d" % (stat.S_IFMT(status.st_mode), status.st_rdev)


def identity(status: os.stat_result) -> bytes:
    """The answer of kind `i`."""
    kind, size, time = stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns
    return b"%o %d %d %d %d" % (kind, status.st_dev, status.st_ino, size, time)


def _table_state() -> bytes:
    """Identity of library_table.py: in a checkout, a new row must invalidate the inventory."""
    try:
        return identity(os.stat(_TABLE))
    except OSError:
        return ABSENT


def _boot_id() -> bytes:
    """The identifier of this boot of the running kernel, also for a simulated driver."""
    try:
        fd = os.open(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ABSENT
    with closing(fd):
        return b"+" + os.read(fd, 64)


def _mig_tree(system: HostRoot) -> Iterator[Look]:
    """GPU and compute instances, and what their access files say, which is the minor number of a device node.

    An inode in procfs is the lowest free number, so an instance that is made again may have its old one. If its
    node is the same too, nothing here differs: NVML alone knows.
    """
    yield "S", "l", _CAPABILITIES, answer(system, "l", _CAPABILITIES)
    for gpu, _ in system.entries(_CAPABILITIES):
        if not gpu.startswith("gpu"):
            continue
        base = f"{_CAPABILITIES}/{gpu}/mig"
        yield "S", "l", base, answer(system, "l", base)
        for instance, _ in system.entries(base):
            place = f"{base}/{instance}"
            yield "S", "l", place, answer(system, "l", place)
            names = [name for name, _ in system.entries(place) if name.startswith("ci")]
            for path in (f"{place}/access", *(f"{place}/{name}/access" for name in names)):
                yield "S", "c", path, answer(system, "c", path)

"""The key of the inventory: the state of the host on which discovery depends, read in under 1 ms without NVML."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

import nvc
from nvc.discovery.host import SIMULATION
from nvc.discovery.nodes import CONTROL, MODESET, UVM, UVM_TOOLS
from nvc.discovery.proc import GPUS, PROC
from nvc.model import Gpu, HostFacts, Library, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.discovery.host import Host
    from nvc.discovery.hostroot import HostRoot
    from nvc.request import DriverOptions

_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
_CAPABILITIES = PROC + "/capabilities"
_TABLE = nvc.__file__.rpartition("/")[0] + "/discovery/library_table.py"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def host_key(host: Host, options: DriverOptions, extra: bytes) -> tuple[Any, ...]:
    """The state of the host on which discovery depends; `extra` is bytes that the caller adds.

    Left out are files that the executor compares when it opens them, sockets and proc files, which every start
    reads, and the uid of the probe.
    """
    driver, system = host.driver, host.system
    root = os.fstat(driver.fd)
    return (
        nvc.__version__,
        _table_state(),
        (HostFacts._fields, Gpu._fields, MigDevice._fields, Library._fields),
        extra,
        _boot_id(),
        (
            options.root,
            options.ldcache,
            options.search_path,
            options.mps_directory,
            options.library_directories,
        ),
        (root.st_dev, root.st_ino, root.st_mtime_ns),
        _identity(driver, options.ldcache),
        host.simulated and _identity(driver, SIMULATION),
        host.devices is driver,
        system.read_optional("/sys/module/nvidia/version", 256),
        # A module that is loaded again gets another inode in sysfs.
        tuple(_inode(system, f"/sys/module/{name}") for name in _MODULES),
        _majors(system.read_optional("/proc/devices") or b""),
        tuple(_rdev(host.devices, path) for path in (CONTROL, UVM, UVM_TOOLS, MODESET)),
        tuple(system.entries(GPUS)),
        _mig_tree(system),
    )


def _table_state() -> tuple[int, ...]:
    """Inode, size and mtime of library_table.py: in a checkout, a new row must invalidate the inventory."""
    try:
        status = os.stat(_TABLE)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _boot_id() -> bytes:
    """The identifier of this boot of the running kernel, also for a simulated driver; b"" where it has none."""
    try:
        fd = os.open(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _identity(root: HostRoot, path: str) -> tuple[int, ...] | None:
    try:
        status = root.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _inode(root: HostRoot, path: str) -> int:
    try:
        return root.stat(path).st_ino
    except OSError:
        return 0


def _rdev(root: HostRoot, path: str) -> int:
    try:
        return root.stat(path).st_rdev
    except OSError:
        return -1


def _majors(devices: bytes) -> tuple[bytes, ...]:
    return tuple(line for line in devices.split(b"\n") if b"nvidia" in line)


def _mig_tree(system: HostRoot) -> tuple[Any, ...]:
    """GPU and compute instances with the inodes of their directories: one that is created again has another."""
    tree = []
    for gpu, _ in system.entries(_CAPABILITIES):
        if not gpu.startswith("gpu"):
            continue
        base = f"{_CAPABILITIES}/{gpu}/mig"
        for instance, inode in system.entries(base):
            tree.append((gpu, instance, inode, tuple(system.entries(f"{base}/{instance}"))))
    return tuple(tree)


def fingerprint(root: HostRoot, directories: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """Each of the directories that discovery searched, with its device, inode and mtime."""
    return tuple((path, _directory(root, path)) for path in directories)


def unchanged(root: HostRoot, fingerprints: tuple[tuple[str, Any], ...]) -> bool:
    """Whether no file was added to or removed from the directories since `fingerprints` was taken."""
    return all(_directory(root, path) == state for path, state in fingerprints)


def _directory(root: HostRoot, path: str) -> tuple[int, ...] | None:
    try:
        status = root.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns

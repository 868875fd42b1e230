"""Devices beside GPUs, by kind: of drivers that work with NVIDIA's, of NVSwitches, and of IMEX.

Their drivers make the nodes, with numbers that differ from host to host: what is at a path is taken as it is there.
"""

from __future__ import annotations

import os
import stat

from nvc.base.errors import of_host
from nvc.base.types import Iterable
from nvc.base.value import Value
from nvc.discovery.devices.devfiles import IMEX_NODES, existing_nodes
from nvc.discovery.devices.sockets import look
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import DeviceNode

MANAGEMENT, IMEX = "management", "imex"
#: Directories and beginnings of names, of each kind of devices.
_PATTERNS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "gds": (("/dev", ("nvidia-fs",)),),
    "mofed": (("/dev/infiniband", ("uverbs", "rdma_cm")),),
    "gdrcopy": (("/dev", ("gdrdrv",)),),
    "nvswitch": (("/dev", ("nvidia-nvswitch",)),),
    IMEX: ((IMEX_NODES, ("channel",)),),
}
#: What a kind's library opens beside its nodes: a directory of udev's, and a file of settings.
_FILES = {"gds": ("/run/udev", "/etc/cufile.json")}
KINDS = tuple(_PATTERNS)


class Beside(Value):
    """The devices of one kind, and the files that go with them. Without devices there are no files."""

    kind: str
    nodes: tuple[DeviceNode, ...]
    files: tuple[str, ...] = ()


def find_beside(kind: str, devices: HostRoot, driver: HostRoot) -> Beside:
    """What the host has of one of KINDS, or of MANAGEMENT: every node of the driver, with those of MIG and IMEX."""
    if kind == MANAGEMENT:
        return Beside(kind, (*existing_nodes(devices), *_nodes(devices, _PATTERNS[IMEX])))
    nodes = tuple(_nodes(devices, _PATTERNS[kind]))
    files = [path for path in _FILES.get(kind, ()) if nodes and _is_roots(driver, path)]
    return Beside(kind, nodes, tuple(files))


def _nodes(devices: HostRoot, patterns: Iterable[tuple[str, tuple[str, ...]]]) -> list[DeviceNode]:
    found = []
    for directory, beginnings in patterns:
        for name, _ in devices.entries(directory):
            if not name.startswith(beginnings):
                continue
            path = f"{directory}/{name}"
            try:
                status = devices.stat(path, follow=False)
            except OSError as error:
                of_host(error, "look for device nodes", path)
                continue
            if stat.S_ISCHR(status.st_mode):
                found.append(DeviceNode(path, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return found


def _is_roots(driver: HostRoot, path: str) -> bool:
    """Whether root's file or directory is there. What others can replace is not mounted into containers."""
    status, _ = look(driver, path)
    if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return False
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

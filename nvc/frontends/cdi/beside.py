"""Documents of devices beside GPUs (nvc/discovery/devices/beside.py), each kind one of its own; and of all at once.

A kind is one device, `all`. Of IMEX, each channel is a device too. The kind `management` is for programs that
manage GPUs: every node of the driver, whatever is selected, with the driver's files.
"""

from __future__ import annotations

import os
from typing import Any

from nvc.base.errors import DeviceError, InputError, InternalError
from nvc.discovery import discover
from nvc.discovery.devices.beside import IMEX, MANAGEMENT, Beside, find_beside
from nvc.discovery.devices.devfiles import IMEX_NODES
from nvc.discovery.host import Host
from nvc.frontends.cdi.document import DocumentOptions, NodeStatus, below, merged, node_edit
from nvc.frontends.cdi.generate import document_of
from nvc.frontends.cdi.hookspec import STEP
from nvc.frontends.cdi.validate import problems
from nvc.frontends.cdi.versions import lowest_version
from nvc.kernel import Kernel
from nvc.model.facts import DeviceNode
from nvc.model.request import DriverOptions, Request
from nvc.plan.ops import DATA, RDONLY, options_of

ALL = "all"


def kind_of(mode: str) -> tuple[str, str]:
    """The vendor and the class of a kind's devices where nobody names others."""
    if mode == MANAGEMENT:
        return "management.nvidia.com", "gpu"
    return "nvidia.com", "imex-channel" if mode == IMEX else mode


def edits_of(found: Beside, device_root: str, driver_root: str) -> dict[str, Any]:
    """The edits that give a container the devices of a kind and the files that go with them."""
    edits: dict[str, Any] = {"deviceNodes": [_node(node, device_root) for node in found.nodes]}
    options = [*options_of(RDONLY | DATA), "rbind", "rprivate"]
    mounts = [{"hostPath": below(driver_root, path), "containerPath": path, "options": options}
              for path in found.files]  # fmt: skip
    return {**edits, "mounts": mounts} if mounts else edits


def _node(node: DeviceNode, device_root: str) -> dict[str, Any]:
    try:
        found = os.lstat(below(device_root, node.path))
        status = NodeStatus(node.major, node.minor, found.st_mode & 0o777, found.st_uid, found.st_gid)
    except OSError:
        status = None  # it is gone again: the engine says so
    return node_edit(node, device_root, status)


def generate(
    kernel: Kernel,
    options: DriverOptions,
    request: Request,
    how: DocumentOptions,
    mode: str,
    channels: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The document of a kind of this host; of `channels` alone for IMEX. Raises NvcError."""
    common: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    if mode == MANAGEMENT:
        common, shown = _driver(kernel, options, request, how)
    with Host.open(kernel, options) as host:
        found = find_beside(mode, host.devices, host.driver)
        if not found.nodes:
            raise DeviceError("no device", mode, f"this host has no node of the kind in {host.devices.path}",
                              "load the driver that makes them")  # fmt: skip
        roots = host.devices.path, host.driver.path
        devices = [{"name": ALL, "containerEdits": {**shown, **edits_of(found, *roots)}}]
        if mode == IMEX:
            devices = _channels(found, channels, how.all_device, *roots)
    document: dict[str, Any] = {"cdiVersion": "", "kind": f"{how.vendor}/{how.device_class}", "devices": devices}
    if common:
        document["containerEdits"] = common
    document["cdiVersion"] = lowest_version(document)
    if wrong := problems(document):
        raise InternalError("make specification", "", wrong[0])
    return document


def _driver(
    kernel: Kernel, options: DriverOptions, request: Request, how: DocumentOptions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The driver's files, and what shows a container every GPU. No variable makes a slice of it."""
    how = how.replace(strategies=("uuid",), all_device=True, none_device=True,
                      disabled_hooks=(*how.disabled_hooks, STEP))  # fmt: skip
    document = document_of(kernel, discover(kernel, options), request, how, options)
    common = {name: value for name, value in document["containerEdits"].items() if name != "deviceNodes"}
    edits = {device["name"]: device["containerEdits"] for device in document["devices"]}.get(ALL, {})
    return common, {name: value for name, value in edits.items() if name != "deviceNodes"}


def _channels(
    found: Beside, wanted: tuple[str, ...], everything: bool, device_root: str, driver_root: str
) -> list[dict[str, Any]]:
    """A device for each channel that is wanted, and one for all of these. Raises InputError."""
    by_number = {str(node.minor): node for node in found.nodes}
    numbers = [text.removeprefix("channel") for text in wanted if text != ALL]
    missing = [number for number in numbers if number not in by_number]
    if missing:
        hint = f"`ls {below(device_root, IMEX_NODES)}` lists those of this host"
        raise InputError("--device-id", missing[0], "no such channel", hint)
    chosen = set(numbers) if numbers and ALL not in wanted else set(by_number)
    devices: list[dict[str, Any]] = []
    for number in sorted(chosen, key=int):
        one = found.replace(nodes=(by_number[number],))
        devices.append({"name": number, "containerEdits": edits_of(one, device_root, driver_root)})
    if everything:
        edits = merged([device["containerEdits"] for device in devices])
        devices.append({"name": ALL, "containerEdits": edits})
    return devices

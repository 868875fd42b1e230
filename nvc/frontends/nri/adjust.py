"""From what a container asks for to what the runtime is to change in its configuration.

The edits are those of a CDI document that is made for this container. A slice's limits are in the arguments of the
document's hook, so that no variable of the container has a say in them.
"""

from __future__ import annotations

from typing import Any

from nvc.base.errors import InputError, InternalError
from nvc.base.value import Value
from nvc.discovery import discover
from nvc.frontends.cdi.document import DocumentOptions, merged
from nvc.frontends.cdi.generate import document_of
from nvc.frontends.cdi.hookspec import STEP, disabled_hooks
from nvc.frontends.cdi.sliced import Slicing
from nvc.frontends.nri.protocol import nri_pb2 as nri
from nvc.frontends.runtime.spec import Spec, apply_edits
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions, Part, Portion, Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.slice import resolve
from nvc.request.config import Config
from nvc.request.environment import bounds_of
from nvc.slices.make import shim

VENDOR = "nri.nvc.dev"


class Given(Value):
    """The edits for one container, and the devices that they give."""

    edits: tuple[dict[str, Any], ...]
    devices: tuple[str, ...]  # UUIDs


def given(kernel: Kernel, options: DriverOptions, config: Config, request: Request, hook_path: str) -> Given:
    """What `request` comes to on this host. Raises NvcError: then the container must not start."""
    facts = discover(kernel, options)
    left_out = disabled_hooks((), not config.disable_cuda_compat_lib_hook)
    how = DocumentOptions(hook_path, VENDOR, "gpu", ("uuid",), all_device=False, disabled_hooks=left_out)
    if not request.devices:  # the driver without a GPU
        how = how.replace(none_device=True, disabled_hooks=(*left_out, STEP))
    slicing = None
    if request.devices and request.vgpu is not None:
        slicing = _slicing(facts, request, request.vgpu, config)
    elif request.devices:  # variables of the container must not make a slice of a whole device, nor undo one
        how = how.replace(disabled_hooks=(*left_out, STEP))
    document = document_of(kernel, facts, request, how, options, slicing)
    own = merged([device["containerEdits"] for device in document["devices"]])
    names = tuple(device["name"].partition(":")[0] for device in document["devices"])
    return Given((own, document["containerEdits"]), names if request.devices else ())


def _slicing(facts: HostFacts, request: Request, wanted: SliceRequest, config: Config) -> Slicing:
    """The part of each device that the container gets. Raises InputError."""
    parts = []
    for place, device in enumerate(resolve(facts, select(facts, request), wanted)):
        limit = device.memory if device.limit == NO_LIMIT else device.limit
        if not limit:
            raise InputError(device.uuid, cause="NVML does not tell its memory", hint="ask for a size of it")
        portion = device.replace(isolation=config.vgpu_isolation).only(Portion)
        parts.append((f"n{place}", Part(device.uuid, limit, **portion)))
    return Slicing((), shim.current(), wanted.uncounted, bounds_of(config), tuple(parts))


def adjustment(edits: tuple[dict[str, Any], ...], user_namespace: bool) -> Any:
    """The edits as NRI's message. Raises InternalError for what that cannot say."""
    namespaces = [{"type": "user"}] if user_namespace else []
    document: dict[str, Any] = {"linux": {"namespaces": namespaces}}
    spec = Spec(document)
    for part in edits:
        apply_edits(spec, part)
    made = nri.ContainerAdjustment()
    for entry in document.get("process", {}).get("env", ()):
        name, _, value = entry.partition("=")
        made.env.add(key=name, value=value)
    for mount in document.get("mounts", ()):
        made.mounts.add(**mount)
    for node in document["linux"].get("devices", ()):
        optional = {
            field: nri.OptionalUInt32(value=node[key])
            for key, field in (("fileMode", "file_mode"), ("uid", "uid"), ("gid", "gid"))
            if key in node
        }
        made.linux.devices.add(
            path=node["path"], type=node["type"], major=node["major"], minor=node["minor"], **optional
        )
    for kind, hooks in document.get("hooks", {}).items():
        if kind != "createContainer":
            raise InternalError("write adjustment", kind, "a kind of hook that is not made here")
        for hook in hooks:
            made.hooks.create_container.add(path=hook["path"], args=hook["args"], env=hook["env"])
    return made

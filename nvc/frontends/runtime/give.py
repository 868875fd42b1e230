"""give: the edits for one choice. Imported only for a container that asks for something."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import InputError
from nvc.base.rundir import in_user_namespace
from nvc.discovery import discover
from nvc.frontends.runtime.spec import GIVERS, Spec, apply_edits
from nvc.kernel import LinuxKernel
from nvc.model.selection import select
from nvc.plan.devices import IMEX_DEV, device_ops, groups_of
from nvc.plan.ops import AllowDevice, BindDevice
from nvc.request.config import ConfigError, driver_options
from nvc.request.environment import VARIABLES
from nvc.request.requirements import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from nvc.frontends.configure import Log
    from nvc.frontends.runtime.choice import Choice
    from nvc.kernel import Kernel
    from nvc.model.facts import HostFacts
    from nvc.model.request import DriverOptions, Request
    from nvc.model.selection import Selection
    from nvc.request.config import Config

    Edits: TypeAlias = list[dict[str, Any]]

MODE_HINT = 'set mode = "auto" in [nvidia-container-runtime] and name devices without a kind'
#: The one of NVIDIA's feature flags that says something here.
NO_GIDS = "no-additional-gids-for-device-nodes"
#: By the field of a program's path: its table of config.toml, our name and NVIDIA's.
_HOOKS = {
    "hook_path": ("nvidia-container-runtime-hook", "nvc-hook", "nvidia-container-runtime-hook"),
    "cdi_hook_path": ("nvidia-ctk", "nvc-cdi-hook", "nvidia-cdi-hook"),
}
#: With what a hook limits a container to a part of a device; OPTION in nvc/frontends/cdi/hookspec.py.
SLICE = "--slice="
HOOK_ENVIRONMENT = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def give(
    config: Config, document: dict[str, Any], choice: Choice, programs: str, log: Log, gvisor: bool
) -> None:
    """Change `document`, an OCI configuration, so that its container gets what was chosen.

    `programs` is the directory of nvc-hook and nvc-cdi-hook. Raises NvcError and Malformed.
    """
    kernel, spec = LinuxKernel(), Spec(document)
    request, edits = choice.request, _named(choice.names, config.cdi_spec_dirs) if choice.names else []
    if gvisor:
        _check_gvisor(request, choice.names, edits)
    if request is not None:
        options = driver_options(config, request.imex_channels)
        facts = discover(kernel, options)
        log.facts(facts)
        selection = select(facts, request)
        log.selection(selection)
        check(request.requirements, facts, selection)
        # In a user namespace the host's groups are others, and runtimes refuse those that are not mapped.
        groups = not (config.no_additional_gids or spec.user_namespace or in_user_namespace())
        if choice.mode == "hook":
            _by_hook(spec, _program(config, "hook_path", programs))
            if not gvisor:  # its own call of `configure` makes them
                _add_nodes(spec, facts, selection, request, groups)
        else:
            _check_expressible(request)
            spec.remove_givers()
            edits += _made(kernel, facts, request, programs, options, config, groups, gvisor)
            edits += _channels(facts, selection)
        edits += _beside(kernel, facts, choice.kinds, log)
    for part in edits:
        apply_edits(spec, part)


def _beside(kernel: Kernel, facts: HostFacts, kinds: tuple[str, ...], log: Log) -> Edits:
    """Edits for devices beside GPUs. A host without them starts the container all the same, as NVIDIA's does."""
    if not kinds:
        return []
    from nvc.discovery.devices.beside import find_beside
    from nvc.discovery.hostroot import HostRoot
    from nvc.frontends.cdi.beside import edits_of

    driver, devices = HostRoot.at(kernel, facts.driver_root), HostRoot.at(kernel, facts.device_root)
    try:
        found = [find_beside(kind, devices, driver) for kind in kinds]
    finally:
        driver.close()
        devices.close()
    for one in found:
        log.step(f"{one.kind}: {', '.join(node.path for node in one.nodes) or 'none on this host'}")
    return [edits_of(one, facts.device_root, facts.driver_root) for one in found if one.nodes]


def _check_expressible(request: Request) -> None:
    """Raise InputError for what no specification can say."""
    for row in VARIABLES:
        if not row.cdi and getattr(request, row.field):
            raise InputError(row.name, cause="what it asks for cannot be given by CDI", hint=MODE_HINT)


def _check_gvisor(request: Request | None, names: tuple[str, ...], edits: Edits) -> None:
    """Raise InputError for slices: gVisor calls `configure` in the place of nvc-hook, and old ones run no other."""
    words = (str(word) for part in edits for hook in part.get("hooks") or () for word in hook.get("args") or ())
    if (request is not None and request.vgpu is not None) or any(word.startswith(SLICE) for word in words):
        raise InputError(names[0] if names else "slice", cause="gVisor runs no hook that would keep its limits",
                         hint="give the container whole GPUs, or take runc or crun")  # fmt: skip


def _program(config: Config, field: str, programs: str) -> str:
    """The path of nvc-hook or nvc-cdi-hook: the configured one, or under NVIDIA's name, by which gVisor knows it.

    Raises ConfigError for a path that leads to another program: it would not do what was asked for.
    """
    table, name, theirs = _HOOKS[field]
    own = f"{programs}/{name}"
    path: str = getattr(config, field)
    if not path:
        named = f"{programs}/../lib/nvc/bin/{theirs}"
        return os.path.normpath(named) if os.access(named, os.X_OK) else own  # pip installs no links
    try:
        if os.path.samefile(path, own) and (field != "hook_path" or os.path.basename(path) in GIVERS):
            return path
        cause = f"{path} is not {name} under a name that runtimes know"
    except OSError as error:
        cause = f"{path}: {str(error.strerror).lower()}"
    hint = f"remove `path`, or make it a link called {theirs} to {own}"
    raise ConfigError(f"[{table}] path", config.path, cause, hint)


def _by_hook(spec: Spec, path: str) -> None:
    """Unless one is there: of two hooks the second would find its work done, but the container waits for it."""
    if not spec.gives_gpus():
        entry = {"path": path, "args": ["nvc-hook", "prestart"], "env": list(HOOK_ENVIRONMENT)}
        spec.add_hook("prestart", entry)


def _add_nodes(
    spec: Spec, facts: HostFacts, selection: Selection, request: Request, with_groups: bool
) -> None:
    """The hook's nodes and rules, where engines can see them; the groups of nodes that are not open to all.

    In a user namespace a runtime cannot make nodes; it binds the host's of the same path, if that is the node.
    """
    groups: set[int] = set()
    makes = not spec.user_namespace or facts.device_root == "/"
    for op in device_ops(facts, selection, request):
        if isinstance(op, BindDevice) and makes:
            node: dict[str, Any] = {"path": op.target, "type": "c", "major": op.major, "minor": op.minor}
            node |= _owner(facts.device_root.rstrip("/") + op.source)
            spec.add_node(node)
            groups |= groups_of([node])
        elif isinstance(op, AllowDevice):
            spec.allow(op.major, op.minor)
    if with_groups and groups:
        spec.add_groups(sorted(groups))


def _channels(facts: HostFacts, selection: Selection) -> Edits:
    """Edits for the nodes of IMEX channels. Raises InputError for a channel that the host does not have."""
    edits = []
    for channel in selection.imex_channels:
        path = f"{IMEX_DEV}/channel{channel}"
        host = facts.device_root.rstrip("/") + path
        try:
            there = os.lstat(host).st_rdev == os.makedev(max(facts.imex_major, 0), channel)
        except OSError:
            there = False
        if facts.imex_major < 0 or not there:
            hint = "`ls /dev/nvidia-caps-imex-channels` lists those of this host"
            raise InputError("NVIDIA_IMEX_CHANNELS", str(channel), f"no such channel: {host} is not there", hint)
        node = {"path": path, "hostPath": host, "type": "c", "major": facts.imex_major, "minor": channel}
        edits.append({"deviceNodes": [{**node, **_owner(host), "permissions": "rw"}]})
    return edits


def _owner(path: str) -> dict[str, int]:
    """Mode and owner of a host's node; nothing of one that is yet to be made."""
    try:
        status = os.lstat(path)
    except OSError:
        return {}
    if not stat.S_ISCHR(status.st_mode):
        return {}
    return {"fileMode": status.st_mode & 0o777, "uid": status.st_uid, "gid": status.st_gid}


def _made(
    kernel: Kernel,
    facts: HostFacts,
    request: Request,
    programs: str,
    options: DriverOptions,
    config: Config,
    with_groups: bool,
    gvisor: bool,
) -> Edits:
    """The edits of a specification that names the requested devices and nothing else; none: the driver alone."""
    from nvc.frontends.cdi.document import DocumentOptions
    from nvc.frontends.cdi.generate import document_of
    from nvc.frontends.cdi.hookspec import NAMES, disabled_hooks

    disabled = disabled_hooks(config.jit_disabled_hooks, not config.disable_cuda_compat_lib_hook)
    how = DocumentOptions(
        _program(config, "cdi_hook_path", programs), strategies=("uuid",), all_device=False,
        disabled_hooks=NAMES if gvisor else disabled,
        additional_gids=with_groups and NO_GIDS not in config.jit_feature_flags,
        own_hook=True,
    )  # fmt: skip
    if not request.devices:
        document = document_of(kernel, facts, request.replace(devices=("all",)), how, options)
        return [document["containerEdits"]]
    document = document_of(kernel, facts, request, how, options)
    return [*(device["containerEdits"] for device in document["devices"]), document["containerEdits"]]


def _named(names: tuple[str, ...], directories: tuple[str, ...]) -> Edits:
    """The edits of devices in specification files; a later directory counts more. Raises InputError, CdiError."""
    from nvc.frontends.cdi.store import read_directory

    found: dict[str, tuple[int, Any, Any]] = {}
    for place, directory in enumerate(directories):
        for file in read_directory(directory):
            for name, device in zip(file.devices(), file.document.get("devices", ())):
                if name in names and name in found and found[name][0] == place:
                    raise InputError(name, file.path, "a device that two files define", "remove one of them")
                found[name] = place, device, file.document
    missing = [name for name in names if name not in found]
    if missing:
        hint = f"files are in {', '.join(directories)}"
        raise InputError(missing[0], cause="no such CDI device", hint=hint)
    documents = {id(found[name][2]): found[name][2] for name in names}
    edits = [found[name][1]["containerEdits"] for name in names]
    edits += [document.get("containerEdits") or {} for document in documents.values()]
    return [{**part, "deviceNodes": list(map(_with_number, part.get("deviceNodes") or ()))} for part in edits]


def _with_number(node: dict[str, Any]) -> dict[str, Any]:
    """`node` with type, major and minor: a specification may leave them to the host."""
    if {"major", "minor"} <= node.keys():
        return node
    path = node.get("hostPath") or node["path"]
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError.of("look at CDI device node", path, error) from None
    kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
    return {"type": kind, **node, "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}

"""How a claim reaches containers: CDI documents, one for its whole devices and one for its slices.

This is the one place where the plugin meets nvc's builders. A slice of a claim comes from the same document and the
same hook as a slice of `config.toml`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nvc.base.errors import HostError, of_host
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.generate import document_of
from nvc.frontends.cdi.hookspec import CHAINING, STEP
from nvc.frontends.cdi.sliced import Slicing
from nvc.frontends.cdi.store import CdiError, open_directory, text_of, write_in
from nvc.kernel import Kernel
from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.names import CDI_CLASS, CDI_GPU_CLASS, CDI_SIZE_CLASS, CDI_SLICE_CLASS, CDI_VENDOR
from nvc.model.facts import CAPABILITIES, HostFacts
from nvc.model.request import DriverOptions, Part, Portion, Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices.slice import Slice, library_directory, resolve
from nvc.slices.make import shim
from nvc.slices.make.builder import empty_file, measured
from nvc.slices.policy.policies import with_policies
from nvc.slices.store import claims

#: Everything but compat32, as documents of `cdi generate` have it.
_DEFAULT = tuple(name for name in CAPABILITIES if name != "compat32")
_SUFFIX = ".json"


class Outlet(Value):
    """Where documents are written, and what their hooks call."""

    directory: str  # of CDI
    hook_path: str  # nvc-cdi-hook, as the container runtime finds it


def device_name(allocation: Allocation, place: int) -> str:
    """The qualified name of the CDI device for one result of a claim. It is never given to anything else."""
    kind = CDI_CLASS if allocation.given[place].whole else CDI_SLICE_CLASS
    return f"{CDI_VENDOR}/{kind}={allocation.uid}-{place}"


def _file(kind: str, uid: str) -> str:
    return f"{CDI_VENDOR}-{kind}-{uid}{_SUFFIX}"


def paths(outlet: Outlet, allocation: Allocation) -> list[str]:
    """The files of a claim's documents, as it was prepared."""
    kinds = [CDI_CLASS if one.whole else CDI_SLICE_CLASS for one in allocation.given]
    return [f"{outlet.directory}/{_file(kind, allocation.uid)}" for kind in dict.fromkeys(kinds)]


def documents(
    kernel: Kernel,
    facts: HostFacts,
    options: DriverOptions,
    outlet: Outlet,
    allocation: Allocation,
    bounds: SliceRequest,
) -> dict[str, dict[str, Any]]:
    """The documents of a claim by class: one for whole devices, one for slices, as far as it has any.

    Raises NvcError where a device is gone, the installation has no shim, or for what the operator's `bounds` do not
    grant.
    """
    found = {}
    for kind in (CDI_CLASS, CDI_SLICE_CLASS):
        sliced = kind == CDI_SLICE_CLASS
        given = {place: one for place, one in enumerate(allocation.given) if one.whole != sliced}
        if not given:
            continue
        uuids = tuple(dict.fromkeys(one.uuid for one in given.values()))
        wanted = {name for one in given.values() for name in one.capabilities or _DEFAULT}
        request = Request(devices=uuids, capabilities=tuple(name for name in CAPABILITIES if name in wanted))
        slicing = None
        if sliced:
            parts = tuple((str(place), _part(allocation, place)) for place in given)
            slicing = Slicing((), shim.current(), any(part.uncounted for _, part in parts), bounds, parts)
        document = document_of(kernel, facts, request, _options(outlet, kind, sliced), options, slicing)
        edits = {device["name"]: device["containerEdits"] for device in document["devices"]}
        document["devices"] = [
            {
                "name": f"{allocation.uid}-{place}",
                "containerEdits": edits[f"{one.uuid}:{place}" if sliced else one.uuid],
            }
            for place, one in given.items()
        ]
        if sliced and len(given) == 1:
            _chain(document)
        found[kind] = document
    return found


def _options(outlet: Outlet, kind: str, sliced: bool) -> DocumentOptions:
    # Variables of a container must not make a slice of a whole device.
    disabled = () if sliced else (STEP,)
    return DocumentOptions(
        outlet.hook_path, CDI_VENDOR, kind, ("uuid",), all_device=False, disabled_hooks=disabled
    )


def hold(kernel: Kernel, facts: HostFacts, allocation: Allocation, bounds: SliceRequest) -> None:
    """Make the slices of a claim, which its containers share: one of each request, and one of all together.

    A container that has other requests beside them gets a slice of its own, while nobody else has one of those.
    Raises NvcError for what the operator's `bounds` do not grant.
    """
    libs_dir = library_directory(facts)
    places = [place for place, one in enumerate(allocation.given) if not one.whole]
    if places:  # containers mount these, too
        try:
            empty_file()
        except OSError as error:
            raise HostError.of("make a slice", error.filename or "", error) from None
    claim = f"{allocation.namespace}/{allocation.name}"
    sets = [[place] for place in places]
    if 1 < len(places) == len({allocation.given[place].uuid for place in places}):
        sets.append(places)
    for chosen in sets:
        parts = tuple(_part(allocation, place) for place in chosen)
        uuids = tuple(part.uuid for part in parts)
        selection = select(facts, Request(devices=uuids))
        resolved = resolve(facts, selection, bounds.replace(parts=parts))
        devices = measured(with_policies(resolved), facts.driver_label)
        holds = " ".join(sorted(part.hold for part in parts))
        isolation = parts[0].isolation if len({part.isolation for part in parts}) == 1 else ""
        slice = Slice(devices, "", (), "", holds=holds, isolation=isolation)
        claims.hold(kernel, slice, libs_dir, claim)


def _part(allocation: Allocation, place: int) -> Part:
    one = allocation.given[place]
    return Part(one.uuid, one.limit, **one.replace(hold=f"{allocation.uid}-{place}").only(Portion))


def _chain(document: dict[str, Any]) -> None:
    """Have the hook of a document's only device do what that of all devices does: each process costs a start."""
    common, own = document["containerEdits"], document["devices"][0]["containerEdits"]
    hooks = [one for one in own["hooks"] if one["hookName"] == "createContainer"]
    if len(hooks) == 1 and hooks[0]["args"][0] == CHAINING:
        for one in common.pop("hooks", ()):
            hooks[0]["args"] += one["args"][1:]


def size_name(uuid: str, size: str) -> str:
    """The qualified name of the CDI device of the device plugin: all of a device, or a size of it."""
    return f"{CDI_VENDOR}/{CDI_SIZE_CLASS}={uuid}:{size}" if size else f"{CDI_VENDOR}/{CDI_GPU_CLASS}={uuid}"


def write_node(
    kernel: Kernel, facts: HostFacts, options: DriverOptions, outlet: Outlet, slicing: Slicing | None
) -> None:
    """Write the documents of the device plugin: all devices of the node, and all sizes that they come in.

    Raises NvcError.
    """
    request = Request(devices=("all",), capabilities=_DEFAULT)
    with closing(open_directory(outlet.directory, create=True, private=True)) as fd:
        for kind, parts in ((CDI_GPU_CLASS, None), (CDI_SIZE_CLASS, slicing)):
            name = f"{CDI_VENDOR}-{kind}{_SUFFIX}"
            if kind == CDI_SIZE_CLASS and parts is None:
                _remove(fd, name)
                continue
            how = _options(outlet, kind, parts is not None)
            document = document_of(kernel, facts, request, how, options, parts)
            data = text_of(document, "json").encode("utf-8", "surrogateescape")
            write_in(fd, name, data, f"{outlet.directory}/{name}")


def write(outlet: Outlet, allocation: Allocation, made: dict[str, dict[str, Any]]) -> None:
    """Write the documents of a claim; those that it has no longer are removed. Raises CdiError."""
    with closing(open_directory(outlet.directory, create=True, private=True)) as fd:
        for kind in (CDI_CLASS, CDI_SLICE_CLASS):
            name = _file(kind, allocation.uid)
            if kind in made:
                # Without blanks, which json adds slowly: a pod waits for this.
                data = json.dumps(made[kind]).encode("utf-8", "surrogateescape")
                write_in(fd, name, data, f"{outlet.directory}/{name}")
            else:
                _remove(fd, name)


def remove(outlet: Outlet, uid: str) -> None:
    """Remove the documents of a claim, if there are any. Raises OSError, HostError."""
    try:
        fd = os.open(outlet.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with closing(fd):
        for kind in (CDI_CLASS, CDI_SLICE_CLASS):
            _remove(fd, _file(kind, uid))


def _remove(directory: int, name: str) -> None:
    """A document, and what of it was being written when a plugin was killed."""
    for each in (name, *(one for one in os.listdir(directory) if one.startswith(f".{name}."))):
        try:
            os.unlink(each, dir_fd=directory)
        except FileNotFoundError:
            pass


def uids_there(outlet: Outlet) -> set[str]:
    """The UIDs of the claims that have documents, or parts of one. Raises CdiError, HostError."""
    try:
        names = os.listdir(outlet.directory)
    except FileNotFoundError:
        return set()
    except OSError as error:
        of_host(error, "list specifications", outlet.directory)
        raise CdiError.of("list specifications", outlet.directory, error) from None
    prefixes = tuple(f"{CDI_VENDOR}-{kind}-" for kind in (CDI_CLASS, CDI_SLICE_CLASS))
    # What `replace_file` has not put in its place yet is called .NAME.PID.
    whole = (name[1:].rpartition(".")[0] if name.startswith(".") else name for name in names)
    return {
        name[len(prefix) : -len(_SUFFIX)]
        for name in whole
        for prefix in prefixes
        if name.startswith(prefix) and name.endswith(_SUFFIX)
    }

"""From the host as it is now to a document: discover, select, check the requirements, describe."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from nvc.base.errors import InternalError
from nvc.base.program import programs
from nvc.discovery import discover
from nvc.discovery.hostroot import HostRoot
from nvc.discovery.outer import refuse_slices
from nvc.frontends.cdi.document import DocumentOptions, NodeStatus, build_document
from nvc.frontends.cdi.hookspec import CHAINING
from nvc.frontends.cdi.sliced import Slicing, sizes_of
from nvc.frontends.cdi.stamp import parts_of, staleness, stamp_of_document, stamp_of_facts
from nvc.frontends.cdi.store import CdiError
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions, Request
from nvc.model.selection import select
from nvc.request.config import Config
from nvc.request.environment import bounds_of
from nvc.request.requirements import check
from nvc.slices.make import shim

_PLACES = ("/usr/bin", "/usr/local/bin")


def installed_hook() -> str:
    """The absolute path of nvc-cdi-hook of this installation. Raises CdiError."""
    for directory in filter(None, (programs(), *_PLACES)):
        path = f"{directory}/{CHAINING}"
        if os.access(path, os.X_OK):
            return path
    raise CdiError("find hook", CHAINING, "not installed beside nvc-cli", "name it with --hook-path")


def slicing_of(config: Config) -> Slicing | None:
    """What documents of slices are made of, None where the configuration defines no sizes.

    The shim is named by the link to its newest version. Raises InitializationError without a shim.
    """
    sizes = sizes_of(config)
    if not sizes:
        return None
    return Slicing(sizes, shim.current(), config.vgpu_uncounted, bounds_of(config))


def driver_arguments(options: DriverOptions) -> tuple[str, ...]:
    """Where the driver is, as options of the hook that makes slices."""
    found = [f"--driver-root={options.root}", f"--ldcache={options.ldcache}"]
    return (*found, *(f"--library-directory={path}" for path in options.library_directories))


def generate(
    kernel: Kernel,
    options: DriverOptions,
    request: Request,
    how: DocumentOptions,
    slicing: Slicing | None = None,
) -> tuple[dict[str, Any], HostFacts]:
    """The document for this host, stamped, and the facts that it rests on; with `slicing`, of slices.

    Raises NvcError.
    """
    facts = discover(kernel, options)
    return document_of(kernel, facts, request, how, options, slicing), facts


def document_of(
    kernel: Kernel,
    facts: HostFacts,
    request: Request,
    how: DocumentOptions,
    options: DriverOptions,
    slicing: Slicing | None = None,
) -> dict[str, Any]:
    """The document for `facts`, which were found by `options`, stamped. Raises DeviceError, RequirementError."""
    from nvc.frontends.cdi.validate import problems

    if slicing is not None:
        refuse_slices(facts)
    selection = select(facts, request)
    check(request.requirements, facts, selection)
    how = how.replace(stamp=stamp_of_facts(facts).text(), driver_arguments=driver_arguments(options))
    document = build_document(facts, selection, request, how, dict(_node_status(kernel, facts)), slicing)
    wrong = problems(document)
    if wrong:
        raise InternalError("make specification", "", wrong[0])
    return document


def _node_status(kernel: Kernel, facts: HostFacts) -> Iterator[tuple[str, NodeStatus]]:
    """Owner, mode and number of every device node that a document could name."""
    with HostRoot.at(kernel, facts.device_root) as root:
        for path in _node_paths(facts):
            if st := root.character(path):  # nvidia-caps nodes are made on demand
                number = os.major(st.st_rdev), os.minor(st.st_rdev)
                yield path, NodeStatus(*number, stat.S_IMODE(st.st_mode) & 0o777, st.st_uid, st.st_gid)


def _node_paths(facts: HostFacts) -> Iterator[str]:
    yield from (one.node.path for one in facts.controls)
    for gpu in facts.gpus:
        yield gpu.node.path
        yield from gpu.dri_nodes
        for mig in gpu.mig:
            for node in (mig.gi_node, mig.ci_node):
                if node is not None:
                    yield node.path


def findings(document: dict[str, Any], facts: HostFacts | None) -> list[str]:
    """Why containers would not get what a valid document promises: it is stale, or what it names is gone.

    `facts` are None where no driver was found; then only files and nodes are looked at.
    """
    found = []
    stamp = stamp_of_document(document)
    stale = staleness(stamp, facts) if stamp and facts else ""
    if stale:
        found.append(f"is stale: it {stale}; run `nvc-cli cdi refresh`")
    return found + list(dict.fromkeys(_gone(document)))


def _gone(document: dict[str, Any]) -> Iterator[str]:
    for mount in parts_of(document, "mounts"):
        if not os.path.exists(mount["hostPath"]):
            yield f"mounts {mount['hostPath']}, which does not exist"
    for hook in parts_of(document, "hooks"):
        if not os.access(hook["path"], os.X_OK):
            yield f"calls {hook['path']}, which cannot be executed"
    for node in parts_of(document, "deviceNodes"):
        path = node.get("hostPath") or node["path"]
        number = node.get("major"), node.get("minor")
        try:
            status = os.stat(path)
        except OSError:
            if None in number:
                yield f"names the device {path}, which does not exist"
            continue
        if None not in number and (os.major(status.st_rdev), os.minor(status.st_rdev)) != number:
            yield f"has {path} as {number[0]}:{number[1]}, which is another device now"

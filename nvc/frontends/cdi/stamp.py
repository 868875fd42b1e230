"""Telling a stale document: what it was made from, and whether that is still there.

The stamp is kept in the environment of the document's hooks. That has been there since the first version of
the specification, while annotations need 0.6.0, which would lock older engines out; and unlike `env` of the
container edits no container ever sees it. It is a digest of what the document was made from rather than the
inventory's key, since that also changes with every boot and every new inode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from nvc.base.value import Value
from nvc.frontends.cdi.hookspec import STAMP
from nvc.model.facts import HostFacts


class Stamp(Value):
    """What a document says it was made from."""

    driver: str  # its version for people
    key: str  # digest of the facts, hexadecimal
    root: str  # the driver root

    def text(self) -> str:
        return f"{self.driver},{self.key},{self.root}"


def stamp_of_facts(facts: HostFacts) -> Stamp:
    """The stamp for a document made from `facts` now.

    Sockets are left out, since services come and go; identities of files too: a driver that is installed again
    lies at the same paths.
    """
    relevant = (
        facts.driver_label,
        facts.cuda_version,
        facts.driver_root,
        facts.system_root,
        facts.device_root,
        tuple(
            (gpu.index, gpu.uuid, tuple(gpu.node), gpu.proc_dir, gpu.dri_nodes, gpu.mig_enabled)
            + tuple((mig.index, mig.uuid, mig.gi_access, mig.ci_access) + _node(mig.gi_node) + _node(mig.ci_node)
                    for mig in gpu.mig)
            for gpu in facts.gpus
        ),
        tuple((library.path, library.soname, library.arch) for library in facts.libraries + facts.libraries32),
        tuple(binary.path for binary in facts.binaries),
        tuple(firmware.path for firmware in facts.firmwares),
        tuple((manifest.path, manifest.library, manifest.target) for manifest in facts.manifests),
        tuple((module.path, module.target) for module in facts.modules),
        tuple(tuple(one.node) for one in facts.controls),
    )  # fmt: skip
    digest = hashlib.sha256(repr(relevant).encode("utf-8", "surrogateescape")).hexdigest()
    return Stamp(facts.driver_label, digest[:32], facts.driver_root)


def _node(node: Any) -> tuple[Any, ...]:
    return () if node is None else tuple(node)


def stamp_of_document(document: dict[str, Any]) -> Stamp | None:
    """The stamp of a valid document, None where it has none: another tool's, or one without hooks."""
    for hook in parts_of(document, "hooks"):
        for entry in hook.get("env") or ():
            name, _, value = entry.partition("=")
            parts = value.split(",", 2)
            if name == STAMP and len(parts) == 3:
                return Stamp(*parts)
    return None


def staleness(stamp: Stamp, facts: HostFacts) -> str:
    """Why a document with this stamp no longer fits the host, or ""."""
    now = stamp_of_facts(facts)
    if stamp.root != now.root:
        return ""  # of a driver that nobody asked about
    if stamp.driver != now.driver:
        return f"was made for driver {stamp.driver}, this host has {now.driver}"
    if stamp.key != now.key:
        return "was made when this host had other devices or driver files"
    return ""


def parts_of(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The edits of one kind, of all containers and of each device."""
    for owner in (document, *(document.get("devices") or ())):
        yield from (owner.get("containerEdits") or {}).get(name) or ()

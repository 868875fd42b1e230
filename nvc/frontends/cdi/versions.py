"""Which version of the specification a document needs: old engines refuse what is newer than they are.

Podman 4.3, for one, reads 0.5.0 at most and gives no reason. Source of the table: the version history in
SPEC.md of the Container Device Interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Every released version, oldest first. 0.8.0 and 1.0.0 brought nothing that a document shows.
KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
#: The first with a tag, and the oldest that is ever written.
FLOOR = "0.3.0"


def order(version: str) -> int:
    """The place of a version in KNOWN, -1 for an unknown one. A leading `v` does not count."""
    version = version[1:] if version.startswith("v") else version
    return KNOWN.index(version) if version in KNOWN else -1


def lowest_version(document: dict[str, Any]) -> str:
    """The lowest version whose features cover a well-formed document."""
    return max(_needs(document), key=order)


def _needs(document: dict[str, Any]) -> Iterator[str]:
    yield FLOOR
    if document.get("annotations"):
        yield "0.6.0"
    if "." in str(document.get("kind", "")).partition("/")[2]:
        yield "0.6.0"
    yield from _edits_need(document.get("containerEdits") or {})
    for device in document.get("devices") or ():
        if device.get("annotations"):
            yield "0.6.0"
        if not device.get("name", "")[:1].isalpha():  # else it begins with a digit
            yield "0.5.0"
        yield from _edits_need(device.get("containerEdits") or {})


def _edits_need(edits: dict[str, Any]) -> Iterator[str]:
    if any(mount.get("type") for mount in edits.get("mounts") or ()):
        yield "0.4.0"
    if any(node.get("hostPath") for node in edits.get("deviceNodes") or ()):
        yield "0.5.0"
    if edits.get("additionalGids"):
        yield "0.7.0"
    intel = edits.get("intelRdt")
    if intel is not None:
        yield "1.1.0" if "schemata" in intel or "enableMonitoring" in intel else "0.7.0"
    if edits.get("netDevices"):
        yield "1.1.0"

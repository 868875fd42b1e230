"""The ResourceSlices of a node: what they are to say, and what has to be done to those that are there. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from nvc.base.value import Value
from nvc.kubernetes.claims.devices import Device, document
from nvc.kubernetes.names import CLAIM_API

#: Devices of one object: the API server takes fewer where any of them has a taint.
MOST, MOST_WITH_TAINTS = 128, 64
NAME_MAX = 253
#: What the plugin wrote, so that what the API server fills in or drops is not taken for a change.
DIGEST = "gpu.nvc.dev/digest"


class Owner(Value):
    """Who publishes for which node."""

    driver: str
    node: str
    uid: str  # of the Node object


class Mark(Value):
    """One state of an object, as far as this program writes it."""

    uid: str
    generation: int  # the API server counts it up with each change of the spec
    digest: str
    owner: str  # the UID of the Node


class Changes(Value):
    """Requests that bring the objects of a pool up to date, in this order."""

    create: tuple[dict[str, Any], ...]
    update: tuple[dict[str, Any], ...]
    delete: tuple[str, ...]  # names

    def __bool__(self) -> bool:
        return bool(self.create or self.update or self.delete)


def parts_of(devices: tuple[Device, ...]) -> list[tuple[Device, ...]]:
    """The devices of each object. The first one is there even without a device: it says that the node has none."""
    most = MOST_WITH_TAINTS if any(device.problems for device in devices) else MOST
    return [devices[at : at + most] for at in range(0, len(devices), most)] or [()]


def mark_of(slice: dict[str, Any]) -> Mark:
    """The state of an object that the API server has."""
    meta = slice.get("metadata") or {}
    found = (meta.get("annotations") or {}).get(DIGEST)
    owners: list[dict[str, Any]] = meta.get("ownerReferences") or [{}]
    generation = meta.get("generation")
    return Mark(
        str(meta.get("uid") or ""),
        generation if type(generation) is int else 0,
        found if type(found) is str else "",
        str(owners[0].get("uid") or ""),
    )


def foreign(written: Mapping[str, Mark], kind: str, slice: dict[str, Any]) -> bool:
    """Whether others made a change that a watch tells of; `written` has by name what this program wrote last."""
    mine, there = written.get((slice.get("metadata") or {}).get("name", "")), mark_of(slice)
    if kind == "DELETED":
        return mine is not None and mine.uid == there.uid
    late = mine is not None and mine.uid == there.uid and there.generation < mine.generation
    return mine != there and not late


def changes(
    owner: Owner, devices: tuple[Device, ...], there: list[dict[str, Any]], written: Mapping[str, Mark]
) -> Changes:
    """What has to be done, given the objects that the API server has of this driver and node.

    `written` has by name what this program wrote last. An object in another state is written again: others may have
    changed it. That costs nothing where nothing has changed, since the API server keeps the version then.

    Objects are changed in place as long as each keeps its devices. Otherwise the pool gets a new generation, and
    the scheduler takes no device of it until all its objects are there.
    """
    parts = parts_of(devices)
    known = {slice["metadata"]["name"]: slice for slice in there}
    names = [name_of(owner, place) for place in range(len(parts))]
    generations = [_generation(slice) for slice in there]
    same = sorted(known) == sorted(names) and len(set(generations)) == 1 and all(
        [one["name"] for one in known[name].get("spec", {}).get("devices") or ()] == [one.name for one in part]
        for name, part in zip(names, parts)
    )  # fmt: skip
    generation = generations[0] if same else max(generations, default=0) + 1
    create, update = [], []
    for name, part in zip(names, parts):
        wanted = _object(owner, name, part, generation, len(parts))
        old = known.get(name)
        if old is None:
            create.append(wanted)
        elif not written.get(name) == mark_of(old) == _meant(mark_of(old), wanted):
            wanted["metadata"]["resourceVersion"] = old["metadata"].get("resourceVersion", "")
            update.append(wanted)
    gone = tuple(name for name in known if name not in names)
    return Changes(tuple(create), tuple(update), gone)


def name_of(owner: Owner, place: int) -> str:
    """The name of one object: in the order of the pool, since the scheduler takes the first device that fits."""
    digest = hashlib.sha256(f"{owner.driver} {owner.node}".encode()).hexdigest()[:8]
    text = f"{place:02x}-{digest}-{owner.driver}-{owner.node}"
    return text[:NAME_MAX].rstrip("-.")


def _object(
    owner: Owner, name: str, part: tuple[Device, ...], generation: int, count: int
) -> dict[str, Any]:
    spec = {
        "driver": owner.driver,
        "nodeName": owner.node,
        "pool": {"name": owner.node, "generation": generation, "resourceSliceCount": count},
        "devices": [document(device) for device in part],
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:32]
    reference = {"apiVersion": "v1", "kind": "Node", "name": owner.node, "uid": owner.uid, "controller": True}
    return {
        "apiVersion": CLAIM_API,
        "kind": "ResourceSlice",
        "metadata": {"name": name, "annotations": {DIGEST: digest}, "ownerReferences": [reference]},
        "spec": spec,
    }


def _meant(mark: Mark, wanted: dict[str, Any]) -> Mark:
    """The state that an object should be in, of those with the UID and generation that it has."""
    meta = wanted["metadata"]
    return Mark(mark.uid, mark.generation, meta["annotations"][DIGEST], meta["ownerReferences"][0]["uid"])


def _generation(slice: dict[str, Any]) -> int:
    found = slice.get("spec", {}).get("pool", {}).get("generation")
    return found if type(found) is int else 0

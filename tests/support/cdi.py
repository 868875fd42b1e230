"""The public JSON schema of the Container Device Interface, and calls of nvc-cdi-hook as a runtime makes them."""

from __future__ import annotations

import glob
import json
import os
from typing import Any

import jsonschema
import referencing
from referencing.jsonschema import DRAFT7

from nvc.frontends.cdi.document import DocumentOptions, NodeStatus, build_document
from nvc.frontends.cdi.stamp import stamp_of_facts
from nvc.model.facts import HostFacts
from nvc.model.request import Request
from nvc.model.selection import select

from .bundle import Bundle
from .facts import facts as made_facts

#: Of the package golang-github-container-orchestrated-devices-container-device-interface-dev.
_SCHEMAS = "/usr/share/gocode/src/github.com/*/container-device-interface/schema"
HOOK = "/usr/bin/nvc-cdi-hook"
CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx")


def schema_problems(document: Any) -> list[str]:
    """What the public schema finds wrong with a document."""
    found = glob.glob(_SCHEMAS)
    assert found, "the schema is missing: run `make setup`"

    def read(name: str) -> Any:
        with open(os.path.join(found[0], name), encoding="utf-8") as file:
            return json.load(file)

    defs = referencing.Resource.from_contents(read("defs.json"), DRAFT7)
    registry: Any = referencing.Registry().with_resource("defs.json", defs)
    validator = jsonschema.Draft7Validator(read("schema.json"), registry=registry)
    return [error.message for error in validator.iter_errors(document)]


def document(
    host: HostFacts | None = None,
    capabilities: tuple[str, ...] = CAPABILITIES,
    devices: tuple[str, ...] = ("all",),
    nodes: dict[str, NodeStatus] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A document for facts made by hand; `options` are those of DocumentOptions."""
    host = host or made_facts()
    request = Request(devices=devices, capabilities=capabilities)
    wanted = {"hook_path": HOOK, "stamp": stamp_of_facts(host).text(), **options}
    return build_document(host, select(host, request), request, DocumentOptions(**wanted), nodes or {})


def device(made: dict[str, Any], name: str) -> dict[str, Any]:
    """The edits of one device of a document."""
    return {item["name"]: item["containerEdits"] for item in made["devices"]}[name]


def add_hook(
    bundle: Bundle,
    stage: str,
    *words: str,
    program: str = "nvc-cdi-hook",
    kind: str = "createContainer",
) -> None:
    """Add a hook that calls nvc-cdi-hook with `words`, as a specification's hooks would be."""
    path = os.path.join(stage, "bin/nvc-cdi-hook")
    bundle.hook(kind, path, [program, *words], env=["PATH=/usr/bin:/bin"])


def mount(bundle: Bundle, source: str, target: str, *more: str) -> None:
    """Add a bind mount as a specification has it."""
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate", *more]
    entry = {"source": source, "destination": target, "type": "bind", "options": options}
    bundle.config["mounts"].append(entry)


def give(bundle: Bundle, made: dict[str, Any], name: str = "all") -> None:
    """Edit a bundle's configuration as an engine does for one device; its nodes are left out."""
    for edits in (device(made, name), made["containerEdits"]):
        bundle.config["process"]["env"] += edits.get("env", ())
        for one in edits.get("mounts", ()):
            mount(bundle, one["hostPath"], one["containerPath"], *one["options"])
        for hook in edits.get("hooks", ()):
            bundle.hook(hook["hookName"], hook["path"], hook["args"], env=hook["env"])

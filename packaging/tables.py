"""Writes what pages have of tables in the code.

Variables go to docs/hooks.md, policies to docs/sharing.md, and how a slice is asked for to docs/cli.md. The schema
of the chart's values has the last, and keys of config.toml.

Needs `make native`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, REPO)

from nvc.frontends.nri.annotations import DOMAIN  # noqa: E402
from nvc.model.facts import GATED  # noqa: E402
from nvc.model.request import SLICE_FIELDS, Field, fields_by  # noqa: E402
from nvc.model.slices import isolation, policy, time_settings  # noqa: E402
from nvc.request.config import file  # noqa: E402
from nvc.request.config.keys import KEYS  # noqa: E402
from nvc.request.environment import VARIABLES  # noqa: E402

FIELDS_HEAD = "| option for a slice | | also |\n| --- | --- | --- |\n"
VARIABLES_HEAD = "| variable | meaning |\n| --- | --- |\n"
SCHEMA = "packaging/kubernetes/chart/values.schema.json"
TEXT = {"type": "string"}
#: What JSON Schema says of a kind of value; of others that they are texts.
KINDS: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": file.MAX_TIMEOUT},
    "paths": {"type": "array", "items": {"type": "string", "pattern": "^/"}},
    "kinds": {"type": "array", "items": {"enum": list(GATED)}},
    "slices": {"enum": list(file.VARIABLES)},
    "isolation": {"enum": list(isolation.OPERATORS)},
    "verdict": {"enum": list(file.VERDICTS)},
    "stranger": {"enum": list(file.STRANGERS)},
    "cores": {"type": ["integer", "string"]},
    "period": {"type": "string", "pattern": "^$|^[0-9]+(us|ms|s)$"},
    "weight": {"type": "integer", "minimum": 0, "maximum": time_settings.WEIGHT_MAX},
}
#: Likewise of a kind of field of a slice.
ASKED: dict[str, dict[str, Any]] = {
    "policy": {"enum": [row.name for row in policy.TABLE if not row.server]},
    "cores": {"type": "integer", "minimum": 1, "maximum": time_settings.ALL},
    "weight": {"type": "integer", "minimum": 1},
    "period": {"type": "string", "pattern": "^[0-9]+(us|ms|s)$"},
    "flag": {"type": "boolean"},
}
#: Keys that other values of the chart write: `sizes`, `metrics`.
WRITTEN = ("vgpu", "metrics")


def main() -> None:
    replace_table("docs/sharing.md", policy.HEAD, policy.table())
    replace_table("docs/hooks.md", VARIABLES_HEAD, variables())
    replace_table("docs/cli.md", FIELDS_HEAD, fields())
    path = os.path.join(REPO, SCHEMA)
    with open(path, encoding="utf-8") as there:
        schema = json.load(there)
    values = schema["properties"]
    values["config"]["properties"] = {name: settings(name) for name in (file.OURS, file.DAEMON)}
    claimed = values["deviceClasses"]["properties"]["sliceParameters"]
    for table, way, own, isolations in (
        (values["sizes"]["items"], "size", ("name", "devices"), [*filter(None, isolation.OPERATORS)]),
        (claimed, "claim", ("capabilities",), list(isolation.CLAIMS)),
    ):
        kept = {name: table["properties"][name] for name in own}
        table["properties"] = {**kept, **asked(fields_by(way), isolations)}
    text = json.dumps(schema, indent=1) + "\n"
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def replace_table(page: str, head: str, table: str) -> None:
    path = os.path.join(REPO, page)
    with open(path, encoding="utf-8") as there:
        before, found, rest = there.read().partition(head)
    if not found:
        raise SystemExit(f"{page} has no table that begins with {head!r}")
    with open(path, "w", encoding="utf-8") as out:
        out.write(before + table + rest[rest.index("\n\n") + 1 :])


def variables() -> str:
    rows = [(f"`{row.name}`", row.text) for row in VARIABLES]
    swarm = "if any is set, their joined values replace `NVIDIA_VISIBLE_DEVICES`"
    rows.insert(1, ("the names in `swarm-resource`", swarm))
    return VARIABLES_HEAD + "".join(f"| {name} | {text} |\n" for name, text in rows)


def fields() -> str:
    """The table of docs/cli.md: how each field of a slice is asked for."""
    lines = [FIELDS_HEAD]
    for row in SLICE_FIELDS:
        option = f"`--{row.option} {row.metavar}".rstrip() + "`"
        text = f"{row.text.replace(': {policies}', '')} ([more]({row.page}))"
        names = {"variable": row.variable, "annotation": f"{DOMAIN}{row.name}"}
        also = [f"`{name}`" for way, name in names.items() if way in row.by]
        keys = " or ".join(way for way in ("size", "claim") if way in row.by)
        also += [f"`{row.key}` of a {keys}"] if keys else []
        lines.append(f"| {option} | {text} | {', '.join(also)} |\n")
    return "".join(lines)


def settings(table: str) -> dict[str, Any]:
    keys = {key: KINDS.get(kind, TEXT) for key, (_, kind) in KEYS[table].items() if key not in WRITTEN}
    return {"type": "object", "additionalProperties": False, "properties": keys}


def asked(rows: tuple[Field, ...], isolations: list[str]) -> dict[str, Any]:
    kinds = {**ASKED, "isolation": {"enum": isolations}}
    return {row.key: kinds.get(row.kind, TEXT) for row in rows}


if __name__ == "__main__":
    main()

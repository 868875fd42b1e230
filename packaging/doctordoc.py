"""Writes docs/errors.md, the checks in docs/doctor.md, and the policies in docs/sharing.md and in the schema of the
chart's values. Needs `make native`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, REPO)

from nvc.doctor.catalog import table  # noqa: E402
from nvc.doctor.codes import page  # noqa: E402
from nvc.slices.model import policy  # noqa: E402

HEADING = "## Checks\n\n"
SCHEMA = "packaging/kubernetes/chart/values.schema.json"


def main() -> None:
    """All of them, in place."""
    with open(os.path.join(REPO, "docs/errors.md"), "w", encoding="utf-8") as out:
        out.write(page())
    path = os.path.join(REPO, "docs/doctor.md")
    with open(path, encoding="utf-8") as file:
        text = file.read().partition(HEADING)[0]
    with open(path, "w", encoding="utf-8") as out:
        out.write(text + HEADING + table())
    path = os.path.join(REPO, "docs/sharing.md")
    with open(path, encoding="utf-8") as file:
        before, head, rest = file.read().partition(policy.HEAD)
    with open(path, "w", encoding="utf-8") as out:
        out.write(before + policy.table() + rest[rest.index("\n\n") + 1 :] if head else before)
    path = os.path.join(REPO, SCHEMA)
    with open(path, encoding="utf-8") as file:
        text = json.dumps(named(json.load(file)), indent=1) + "\n"
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def named(schema: Any) -> Any:
    """The schema of the chart's values with the names of all policies."""
    if isinstance(schema, list):
        return [named(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: named(value) for name, value in schema.items()}
    return (
        {**kept, "policy": {"enum": [*policy.POLICIES]}} if "enum" in str(kept.get("policy", "")) else kept
    )


if __name__ == "__main__":
    main()

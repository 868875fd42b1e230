"""The two files beside a changed file: FILE.nvc-backup is its original, FILE.nvc-undo records each changed key.

Engines read every file of a drop-in directory (*.d), so the files of a drop-in are in the directory above it.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nvc.frontends.engines import EngineError
from nvc.frontends.engines.files.place import above_drop_ins

VERSION = 1


def backup_of(path: str) -> str:
    """The path of the copy that is kept of a file before its first change."""
    return above_drop_ins(path) + ".nvc-backup"


def record_of(path: str) -> str:
    """The path of the record that says how a file was changed."""
    return above_drop_ins(path) + ".nvc-undo"


def _kind_of(path: str) -> str:
    """The directory that tells a drop-in from the file beside that; "" for a file that is none."""
    name = os.path.basename(os.path.dirname(path))
    return name if name.endswith(".d") else ""


def is_of(record: dict[str, Any], path: str) -> bool:
    """Whether a record is not of a file of the same name, of which one is a drop-in: they have one place."""
    return bool(record.get("kind", _kind_of(path)) == _kind_of(path))


def load(data: bytes | None, path: str) -> dict[str, Any] | None:
    """The record in `data`; None if `data` is None. Raises EngineError if nvc did not write it."""
    if data is None:
        return None
    try:
        record = json.loads(data)
        for key in record["keys"]:
            int(key["parents"]), bool(key["had"]), key["value"]
        if record["version"] != VERSION or not all(list(key["path"]) for key in record["keys"]):
            raise ValueError("version")
        bool(record["exact"]), bool(record["existed"]), str(record["text"])
        inside = (path.startswith(f"{directory}/") for directory in record["directories"])
        if is_of(record, path) and not all(inside):
            raise ValueError("not a directory that the file is in")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise EngineError(
            "read undo record", record_of(path), "not written by this program",
            f"compare {path} with {backup_of(path)}, then remove both records",
        ) from None  # fmt: skip
    return dict(record)


def begin(path: str, existed: bool, directories: list[str]) -> dict[str, Any]:
    """The record of a file that is about to be changed for the first time."""
    return {
        "version": VERSION,
        "kind": _kind_of(path),
        "text": "",  # what was written last
        "exact": True,  # nobody else changed the file between our changes
        "existed": existed,
        "directories": directories,  # made for it, outermost first
        "keys": [],
    }


def values(key: dict[str, Any]) -> list[Any]:
    """What nvc has set a recorded key to, the last first: a change that is cut short leaves an earlier one."""
    return [key["value"], *key.get("earlier", ())]


def remember(record: dict[str, Any], path: tuple[str, ...], document: Any, value: Any, append: bool) -> None:
    """Record the key as it is in `document`, unless an earlier change did; `value` is its new value."""
    for key in record["keys"]:
        if tuple(key["path"]) == path and key["append"] == append and (not append or key["value"] == value):
            key["earlier"] = [one for one in values(key) if one != value]
            key["value"] = value
            return
    parents, table = 0, document
    for name in path[:-1]:
        if not isinstance(table, dict) or name not in table:
            break
        parents, table = parents + 1, table[name]
    had = parents == len(path) - 1 and isinstance(table, dict) and path[-1] in table
    record["keys"].append({
        "path": list(path),
        "parents": parents,  # that were there
        "had": had,
        "previous": table[path[-1]] if had and not append else None,
        "value": value,
        "append": append,
    })  # fmt: skip

"""JSON read and written anew by the standard library: values and their order stay, with the file's indentation.

What else of the layout is lost is in the copy that undo.py keeps beside the file.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from nvc.frontends.engines import EngineError


def load(text: str, path: str) -> Any:
    """The document in `text`, an empty one for blanks. Raises EngineError, which names line and column."""
    if not text.strip(" \t\r\n"):
        return {}
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        cause = f"line {error.lineno} column {error.colno}: {error.msg}"
    except RecursionError:
        cause = "too many levels"
    except ValueError as error:
        cause = str(error)
    else:
        if isinstance(document, dict):
            return document
        cause = "not an object"
    raise EngineError("parse", path, cause)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # one of them would be lost
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {json.dumps(max(names, key=names.count))} occurs twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


def assign(text: str, path: str, keys: tuple[str, ...], value: Any) -> str:
    """`text` with `value` at `keys`; objects on the way are made. Raises EngineError."""
    document = table = load(text, path)
    for place, name in enumerate(keys[:-1]):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise EngineError("set key", path, f"{'.'.join(keys[: place + 1])} is not an object")
    table[keys[-1]] = value
    return _written(document, text)


def delete(text: str, path: str, keys: tuple[str, ...]) -> str:
    """`text` without the key. Raises EngineError."""
    document = table = load(text, path)
    for name in keys[:-1]:
        table = table.get(name)
        if not isinstance(table, dict):
            return text
    if keys[-1] not in table:
        return text
    del table[keys[-1]]
    return _written(document, text)


def _written(document: Any, like: str) -> str:
    """A document with the indentation and the end of the text `like`."""
    shown = re.search(r"\{[ \r]*\n([ \t]+)\"", like)
    indent = shown[1] if shown else None if re.search(r"\{.*\S.*\}", like) else 4
    end = "\n" if not like.strip() or like.endswith("\n") else ""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):  # written as \udXXX in `like`
        text = json.dumps(document, indent=indent)
    return text + end

"""Block YAML for documents of the Container Device Interface, and nothing else.

All strings are in double quotes, so that none can be read as a number, a boolean or a date.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def yaml_text(document: dict[str, Any]) -> str:
    """`document` as YAML 1.2 with a newline at its end. Keys must be plain words."""
    return "".join(f"{line}\n" for line in ["---", *_mapping(document, "")])


def _mapping(values: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if value and isinstance(value, dict):
            yield f"{indent}{_key(key)}:"
            yield from _mapping(value, indent + "  ")
        elif value and isinstance(value, list):
            yield f"{indent}{_key(key)}:"
            yield from _sequence(value, indent)
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}"


def _sequence(values: list[Any], indent: str) -> Iterator[str]:
    for value in values:
        if value and isinstance(value, (dict, list)):
            inner = indent + "  "
            lines = _mapping(value, inner) if isinstance(value, dict) else _sequence(value, inner)
            yield f"{indent}- {next(lines)[len(inner) :]}"
            yield from lines
        else:
            yield f"{indent}- {_scalar(value)}"


def _key(key: str) -> str:
    return key if key.isascii() and key.isidentifier() else _scalar(key)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        # Lone surrogates, which stand for undecodable bytes of a file name, have no place in YAML.
        text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return '"' + "".join(_escaped(c) for c in text) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else "{}" if isinstance(value, dict) else "[]"


def _escaped(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    if " " <= c <= "~":
        return c
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

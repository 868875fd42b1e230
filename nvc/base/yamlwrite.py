"""Block YAML for documents made of dictionaries, lists, texts, numbers, booleans and None.

All strings are in double quotes, so that none can be read as a number, a boolean or a date.
"""

from __future__ import annotations

import math

from nvc.base.types import Any, Iterator

#: YAML 1.1 reads these as booleans or null, as keys too.
WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def yaml_text(document: dict[str, Any]) -> str:
    """`document` as YAML 1.2 with a newline at its end."""
    return "".join(f"{line}\n" for line in ["---", *_mapping(document, "")])


def _mapping(values: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if value and isinstance(value, dict):
            yield f"{indent}{_key(key)}:"
            yield from _mapping(value, indent + "  ")
        elif value and isinstance(value, (list, tuple)):
            yield f"{indent}{_key(key)}:"
            yield from _sequence(value, indent)
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}"


def _sequence(values: list[Any] | tuple[Any, ...], indent: str) -> Iterator[str]:
    for value in values:
        if value and isinstance(value, (dict, list, tuple)):
            inner = indent + "  "
            lines = _mapping(value, inner) if isinstance(value, dict) else _sequence(value, inner)
            yield f"{indent}- {next(lines)[len(inner) :]}"
            yield from lines
        else:
            yield f"{indent}- {_scalar(value)}"


def _key(key: str) -> str:
    plain = key.isascii() and key.isidentifier() and key.lower() not in WORDS
    return key if plain else _scalar(key)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        # Lone surrogates, which stand for undecodable bytes of a file name, have no place in YAML.
        text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return '"' + "".join(_escaped(c) for c in text) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, float):
        return _number(value)
    return str(value) if isinstance(value, int) else "{}" if isinstance(value, dict) else "[]"


def _number(value: float) -> str:
    if value != value or value in (math.inf, -math.inf):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    # YAML 1.1 wants a point and a sign of the exponent, or else reads a text.
    point = "" if "." in mantissa else ".0"
    return f"{mantissa}{point}e{'' if exponent[0] == '-' else '+'}{exponent.lstrip('+')}" if e else mantissa


def _escaped(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    if " " <= c <= "~":
        return c
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

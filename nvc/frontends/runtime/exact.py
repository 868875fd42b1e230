"""JSON that is written as it was read: numbers keep their digits and their notation."""

from __future__ import annotations

from nvc.base.fastjson import parse
from nvc.base.types import Any
from nvc.request.oci import MAX_CONFIG


class Number(str):
    """A number as text, in the notation of its document."""

    __slots__ = ()


def read(data: bytes) -> Any:
    """The document in `data`, with every number a Number. Raises JsonError."""
    return parse(data, MAX_CONFIG, number=Number)


def write(value: Any, like: bytes = b"") -> bytes:
    """`value` as JSON in UTF-8, indented like the document `like`; on one line if `like` is one line."""
    from _json import encode_basestring

    parts: list[str] = []
    _write(value, _indent_of(like), "\n", parts, encode_basestring)
    text = "".join(parts)
    if like.endswith(b"\n"):
        text += "\n"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can spell
        from _json import encode_basestring_ascii

        parts.clear()
        _write(value, _indent_of(like), "\n", parts, encode_basestring_ascii)
        return ("".join(parts) + ("\n" if like.endswith(b"\n") else "")).encode("ascii")


def _indent_of(like: bytes) -> str:
    """The indentation of the first indented line; "" for a document on one line."""
    for line in like.strip().split(b"\n", 3)[1:3]:
        blanks = line[: len(line) - len(line.lstrip(b" \t"))]
        if blanks:
            return blanks.decode("ascii")
    return ""


def _write(value: Any, indent: str, line: str, parts: list[str], quoted: Any) -> None:
    """Append the text of `value` to `parts`. `line` is a line break and the indentation of `value`."""
    if isinstance(value, (Number, int)) and value is not True and value is not False:
        parts.append(str(value))
    elif isinstance(value, str):
        parts.append(quoted(value))
    elif isinstance(value, (dict, list)):
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        inner = line + indent if indent else ""
        parts.append(opening)
        for place, item in enumerate(value):
            parts.append(("," if place else "") + inner)
            if isinstance(value, dict):
                parts.append(quoted(item) + (": " if indent else ":"))
                item = value[item]
            _write(item, indent, inner, parts, quoted)
        parts.append((line if indent and value else "") + closing)
    else:
        parts.append({True: "true", False: "false", None: "null"}[value])

"""Reader of the YAML that specifications are written in: blocks of mappings and sequences, scalars, comments.

It reads what Go and PyYAML write for these documents, and JSON. What it does not know (anchors, tags, several
documents, folded text, flow collections over plain words) is refused by name, never guessed.

nvc-runtime reads specifications while a container starts: PyYAML takes 60 ms to be imported there, and 14 times as
long to read one.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

DEPTH_LIMIT = 32
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_WIDTHS = {"x": 2, "u": 4, "U": 8}
_WORDS = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
#: At the beginning of a plain scalar these would mean something that is not read here.
_INDICATORS = "&*!|>%@`{}[],?"


class YamlError(ValueError):
    """What is wrong, with the number of its line."""


class _Line:
    __slots__ = ("number", "indent", "text")

    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number = number
        self.indent = indent
        self.text = text


def parse_yaml(text: str) -> Any:
    """The value of a document. Raises YamlError."""
    lines = _lines(text)
    if not lines:
        return None
    reader = _Reader(lines)
    value = reader.node(lines[0].indent, 0)
    if reader.at < len(lines):
        _fail(lines[reader.at], "is indented unlike what is above")
    return value


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(text.split("\n"), 1):
        raw = raw.rstrip(" \r")
        body = raw.lstrip(" ")
        if not body or body.startswith("#"):
            continue
        line = _Line(number, len(raw) - len(body), body)
        if body.startswith("\t"):
            _fail(line, "is indented with a tab")
        if raw == "---" and not found:
            continue
        if raw == "..." or raw.startswith(("--- ", "%")) or raw == "---":
            _fail(line, "begins another document or a directive")
        found.append(line)
    return found


def _fail(line: _Line, what: str) -> NoReturn:
    raise YamlError(f"line {line.number} {what}")


class _Reader:
    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0

    def node(self, indent: int, depth: int) -> Any:
        """The value of the block that begins at the current line."""
        line = self.lines[self.at]
        if depth > DEPTH_LIMIT:
            _fail(line, "is nested too deeply")
        if line.text == "-" or line.text.startswith("- "):
            return self.sequence(indent, depth)
        if _key_end(line) >= 0:
            return self.mapping(indent, depth)
        self.at += 1
        return _scalar(line, line.text)

    def sequence(self, indent: int, depth: int) -> list[Any]:
        values = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or not (line.text == "-" or line.text.startswith("- ")):
                break
            rest = line.text[1:].lstrip(" ")
            if not rest or rest.startswith("#"):
                self.at += 1
                values.append(self.below(indent, depth))
            else:  # what follows the dash is a block of its own, indented as far as it stands
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                values.append(self.node(inner, depth + 1))
        return values

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or line.text == "-" or line.text.startswith("- "):
                break
            end = _key_end(line)
            if end < 0:
                _fail(line, "is no `key: value`")
            key = _scalar(line, line.text[:end].rstrip(" "))
            if not isinstance(key, str):
                key = line.text[:end].rstrip(" ")
            if key in values:
                _fail(line, "repeats a key")
            rest = line.text[end + 1 :].lstrip(" ")
            self.at += 1
            if rest and not rest.startswith("#"):
                values[key] = _scalar(line, rest)
            else:
                values[key] = self.below(indent, depth, sequences=True)
        return values

    def below(self, indent: int, depth: int, sequences: bool = False) -> Any:
        """The block that belongs to the line above; None where there is none."""
        if self.at == len(self.lines):
            return None
        line = self.lines[self.at]
        # A sequence may stand as far left as its key.
        if line.indent > indent or (sequences and line.indent == indent and line.text[:2] in ("-", "- ")):
            return self.node(line.indent, depth + 1)
        return None


def _key_end(line: _Line) -> int:
    """Where the colon after a key is, -1 where the line has none."""
    text = line.text
    if text[0] in "\"'":
        end = _quoted_end(line, text)
        return end if text[end : end + 1] == ":" and text[end + 1 : end + 2] in ("", " ") else -1
    if text[0] in "{[":
        return -1
    at = text.find(": ")
    if at < 0 and text.endswith(":"):
        at = len(text) - 1
    comment = text.find(" #")
    return -1 if 0 <= comment < at else at


def _quoted_end(line: _Line, text: str) -> int:
    """The index behind the quote that ends the string at the beginning of `text`."""
    quote = text[0]
    at = 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 2
        elif text[at] == quote:
            if quote == "'" and text[at + 1 : at + 2] == "'":
                at += 2
                continue
            return at + 1
        else:
            at += 1
    _fail(line, "has a string that does not end on it")


def _scalar(line: _Line, text: str) -> Any:
    if text[:1] in ('"', "'"):
        end = _quoted_end(line, text)
        rest = text[end:].lstrip(" ")
        if rest and not (rest.startswith("#") and text[end] == " "):
            _fail(line, "goes on behind a string")
        inner = text[1 : end - 1]
        return inner.replace("''", "'") if text[0] == "'" else _unescaped(line, inner)
    comment = text.find(" #")
    if comment >= 0:
        text = text[:comment].rstrip(" ")
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            _fail(line, "has a collection in flow style that is not JSON")
    if text[:1] in _INDICATORS or text in ("-", "?") or text.startswith(("- ", "? ")):
        _fail(line, f"has a value that begins with {text[0]!r}" if text else "has no value")
    if ": " in text or text.endswith(":"):
        _fail(line, "has a mapping inside of a value")
    if text in _WORDS:
        return _WORDS[text]
    return _number(text)


def _number(text: str) -> Any:
    """A whole number in one of the notations of YAML 1.2, or the text itself."""
    digits = text[1:] if text[:1] in "+-" else text
    if len(digits) > 20 or not digits.isascii():
        return text
    for prefix, base in (("0x", 16), ("0o", 8)):
        if text.startswith(prefix):
            try:
                return int(digits[2:], base) if digits[2:].isalnum() else text
            except ValueError:
                return text
    return int(text) if digits.isdigit() else text


def _unescaped(line: _Line, text: str) -> str:
    if "\\" not in text:
        return text
    out = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        kind = text[at + 1]
        at += 2
        if kind in _ESCAPES:
            out.append(_ESCAPES[kind])
            continue
        digits = text[at : at + _WIDTHS.get(kind, 0)]
        try:
            if not digits.isalnum() or len(digits) != _WIDTHS[kind]:
                raise ValueError
            out.append(chr(int(digits, 16)))
        except (ValueError, KeyError, OverflowError):
            _fail(line, f"has the escape \\{kind}, which means nothing")
        at += len(digits)
    # JSON in YAML spells what is beyond 16 bits as a pair.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

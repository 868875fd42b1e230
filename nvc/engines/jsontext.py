"""JSON changed as a text: what is not the key in question stays as it is, to the last blank.

Its parser knows where each value stands, which those of the standard library do not tell.
"""

from __future__ import annotations

import json
import re

from nvc.engines import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
MAX_DEPTH = 64


class _Fault(Exception):
    """Where and why the text is no JSON."""


class _Node:
    """A value at text[start:end]; an object's members are (name, place of the name, value)."""

    __slots__ = ("start", "end", "members")

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.members: list[tuple[str, int, _Node]] | None = None

    def member(self, name: str) -> _Node | None:
        """The value of a key; of two of a name, the last."""
        found = [value for key, _, value in self.members or () if key == name]
        return found[-1] if found else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> _Node:
        node = self.value(0)
        if self.at != len(self.text):
            raise _Fault(self.at, "more text after the document")
        return node

    def blanks(self) -> str:
        """Pass over blanks; the next character, "" at the end."""
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def token(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _Fault(self.at, f"want {what}")
        self.at = match.end()
        return match[0]

    def value(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise _Fault(self.at, f"more than {MAX_DEPTH} levels")
        first = self.blanks()
        node = _Node(self.at)
        if first == "{":
            node.members = []
            self.items("}", lambda: self.member(node, depth))
        elif first == "[":
            self.items("]", lambda: self.value(depth + 1))
        elif first == '"':
            self.token(_STRING, "a string of JSON")
        else:
            self.token(_SCALAR, "a value")
        node.end = self.at
        self.blanks()
        return node

    def items(self, closing: str, item: Any) -> None:
        self.at += 1
        if self.blanks() != closing:
            item()
            while self.blanks() == ",":
                self.at += 1
                self.blanks()
                item()
        if self.blanks() != closing:
            raise _Fault(self.at, f"want ',' or '{closing}'")
        self.at += 1

    def member(self, node: _Node, depth: int) -> None:
        place = self.at
        name = json.loads(self.token(_STRING, "a key in double quotes"))
        if self.blanks() != ":":
            raise _Fault(self.at, "want ':'")
        self.at += 1
        assert node.members is not None
        node.members.append((name, place, self.value(depth + 1)))


def _parse(text: str, path: str) -> _Node:
    try:
        node = _Parser(text).document()
        if node.members is None:
            raise _Fault(node.start, "not an object")
    except _Fault as fault:
        at, cause = fault.args
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise EngineError(
            "parse", path, f"line {line} column {column}: {cause}", "correct it; it was left as it is"
        ) from None
    return node


def load(text: str, path: str) -> Any:
    """The document in `text`, an empty one for blanks. Raises EngineError, which names line and column."""
    if not text.strip():
        return {}
    _parse(text, path)
    return json.loads(text)


def assign(text: str, path: str, keys: tuple[str, ...], value: Any) -> str:
    """`text` with `value` at `keys`; objects on the way are made. Raises EngineError."""
    if not text.strip():
        text = "{}\n"
    node = _parse(text, path)
    for depth, name in enumerate(keys):
        inner = node.member(name)
        if inner is None:
            for outer in reversed(keys[depth + 1 :]):
                value = {outer: value}
            return _insert(text, node, depth + 1, name, value)
        if depth + 1 < len(keys) and inner.members is None:
            raise EngineError("set key", path, f"{'.'.join(keys[: depth + 1])} is not an object")
        node = inner
    return text[: node.start] + _dump(text, value, len(keys)) + text[node.end :]


def delete(text: str, path: str, keys: tuple[str, ...]) -> str:
    """`text` without the key; what stands around it stays."""
    node = _parse(text, path)
    for name in keys[:-1]:
        inner = node.member(name)
        if inner is None or inner.members is None:
            return text
        node = inner
    members = node.members or []
    places = [place for place, member in enumerate(members) if member[0] == keys[-1]]
    for place in reversed(places):
        start = members[place][1]
        end = members[place][2].end
        if place:  # with the comma before it
            start = members[place - 1][2].end
        elif len(members) > 1:  # the first of several: with the comma after it
            end = members[place + 1][1]
        else:
            start, end = node.start + 1, node.end - 1
        text = text[:start] + text[end:]
        if len(places) > 1:
            return delete(text, path, keys)
    return text


def _unit(text: str) -> str:
    """The blanks of one level, four where the text does not show it; "" for a document on one line."""
    match = re.search(r"\{[ \r]*\n([ \t]+)\"", text)
    if match:
        return match[1]
    return "" if re.match(r"\s*\{[^\n]*\S", text) and not re.match(r"\s*\{\s*\}", text) else "    "


def _dump(text: str, value: Any, depth: int) -> str:
    unit = _unit(text)
    made = json.dumps(value, indent=unit or None, ensure_ascii=False)
    return made.replace("\n", "\n" + unit * depth)


def _insert(text: str, node: _Node, depth: int, name: str, value: Any) -> str:
    unit = _unit(text)
    entry = f"{json.dumps(name)}: {_dump(text, value, depth)}"
    if node.members:
        end = node.members[-1][2].end
        line = f"\n{unit * depth}" if unit and "\n" in text[node.start : node.end] else " "
        return f"{text[:end]},{line}{entry}{text[end:]}"
    inner = f"\n{unit * depth}{entry}\n{unit * (depth - 1)}" if unit else entry
    return f"{text[: node.start]}{{{inner}}}{text[node.end :]}"

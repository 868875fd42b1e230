"""JSON of foreign origin, bounded before it is parsed, without importing `json` (7 ms in a hook).

The scanner is the interpreter's own, in C; what it calls for numbers and constants is given here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    make_scanner: Callable[[object], Callable[[str, int], tuple[Any, int]]]
    make_encoder: Callable[..., Callable[[object, int], tuple[str, ...]]]
    encode_basestring_ascii: Callable[[str], str]
else:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

#: Levels of arrays and objects; a bundle's configuration has about eight.
MAX_DEPTH = 64
#: Strings, and arrays and objects, in one document: each costs 50 bytes and more, however short it was.
MAX_STRINGS = MAX_CONTAINERS = 1 << 20
#: For shapes of what is read; the longest text in one, and the longest list.
NUMBER, POSITIVE, WORD, PID = range(1 << 63), range(1, 1 << 63), range(1 << 32), range(1, 1 << 31)
TEXT_MAX, MANY = 1 << 16, 1 << 20
_BLANKS = " \t\n\r"
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


class JsonError(ValueError):
    """The text is not JSON, or not within bounds; the message is one line without its content."""


def parse(data: bytes, limit: int, depth: int = MAX_DEPTH) -> Any:
    """The value of one JSON document in UTF-8. Of a key given twice the last value holds.

    `limit` is in bytes; a caller reads at most one more. Raises JsonError.
    """
    if len(data) > limit:
        raise JsonError(f"larger than {limit} bytes")
    _check_shape(data, depth)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None
    body = text.lstrip(_BLANKS)
    if not body:
        raise JsonError("empty")
    try:
        value, end = _scan(body)
    except StopIteration as stop:
        raise _malformed(text, len(text) - len(body) + _number(stop.value)) from None
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError with a position
        position = getattr(error, "pos", None)
        if position is None:
            raise JsonError("malformed") from None
        raise _malformed(text, len(text) - len(body) + position) from None
    if body[end:].strip(_BLANKS):
        raise _malformed(text, len(text) - len(body) + end)
    return value


def write(value: Any, like: bytes) -> bytes:
    """`value` as JSON of ASCII: on one line, or indented for people where `like` is.

    Raises ValueError for a number that is none of JSON.
    """
    if b"\n" in like.strip():
        import json

        indent = "\t" if b"\n\t" in like else 4
        return f"{json.dumps(value, indent=indent, allow_nan=False)}\n".encode("ascii")
    encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, False)
    return "".join(encode(value, 0)).encode("ascii")


def row(*values: Any) -> tuple[Any, ...]:
    """For a list that becomes a tuple."""
    return values


def checked(value: object, shape: Any) -> Any:
    """The value, if it is of that shape. Raises JsonError.

    A shape is a number of a range, a text (str), true or false (bool), anything (object), or a list of one thing
    ([...]). A tuple is a list of just these things, of which its first member makes something.
    """
    if isinstance(shape, range):
        if type(value) is int and value in shape:
            return value
    elif shape is object:
        return value
    elif shape is bool:
        if isinstance(value, bool):
            return value
    elif shape is str:
        if isinstance(value, str) and len(value) <= TEXT_MAX:
            return value
    elif isinstance(value, list):
        if isinstance(shape, list):
            if len(value) <= MANY:
                return tuple(checked(one, shape[0]) for one in value)
        elif len(value) == len(shape) - 1:
            return shape[0](*map(checked, value, shape[1:]))
    wanted = f"list of {len(shape) - 1}" if isinstance(shape, tuple) else getattr(shape, "__name__", "list")
    wanted = f"number of {shape[0]} to {shape[-1]}" if isinstance(shape, range) else wanted
    raise JsonError(f"{value!r:.40}: not a {wanted}")


def _check_shape(data: bytes, depth: int) -> None:
    """Raise JsonError for brackets that do not match or are nested too deep; none of it in a Python loop
    over the text.

    Outside of strings, which begin and end with a quote that no backslash precedes, only brackets are kept, of
    one kind; removing each empty pair then takes away one level. What follows a malformed place may be taken for
    something else, but a parser does not get there.
    """
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_STRINGS:
        raise JsonError(f"more than {MAX_STRINGS} strings")
    outside = b"".join(plain.split(b'"')[::2])
    brackets = outside.translate(_ONE_KIND, _NO_BRACKET)
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise JsonError(f"more than {MAX_CONTAINERS} arrays and objects")
    for _ in range(depth):
        fewer = brackets.replace(b"[]", b"")
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    if brackets:
        deeper = b"[]" in brackets
        raise JsonError(f"more than {depth} levels" if deeper else "brackets do not match: truncated?")


def _malformed(text: str, position: int) -> JsonError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return JsonError(f"not JSON at line {line} column {column}")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _integer(text: str) -> int:
    """Bounded: the conversion takes quadratic time in Python 3.10."""
    if len(text) > 20:
        raise JsonError("a number of more than 20 digits")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not a number of JSON")


class _Context:
    """What the scanner asks of a `json.JSONDecoder`."""

    strict = True  # no control characters in strings
    object_hook = None
    object_pairs_hook = None

    parse_float = float
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_constant)


def _scan(text: str) -> tuple[Any, int]:
    scan = make_scanner(_Context())
    try:
        return scan(text, 0)
    except SystemError:  # before 3.12 it can only raise JSONDecodeError where that was imported
        import json.decoder  # noqa: F401

        return scan(text, 0)

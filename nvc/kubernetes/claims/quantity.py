"""Quantities of Kubernetes: `16Gi`, `17179869184`, `25`, `1e3`, `500m`. Pure."""

from __future__ import annotations

from nvc.base.errors import InputError

#: Powers of 1000 and 1024 by suffix.
DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
MIB = 1 << 20
_TEXT_MAX = 64
_DIGITS = frozenset("0123456789")
_EXPONENT_MAX = 30
_HINT = "write 16Gi, 512Mi, or a plain number"


def parse_quantity(name: str, value: object) -> int:
    """The whole number that a quantity is; a fraction is rounded up, as the API server does.

    Raises InputError naming `name` for anything that is no quantity, and for a negative one.
    """
    if type(value) is int:
        value = str(value)
    if type(value) is not str or not value or len(value) > _TEXT_MAX:
        raise InputError(name, shown(value)[:_TEXT_MAX], "not a quantity", _HINT)
    if value.startswith("-"):
        raise InputError(name, value, "negative", _HINT)
    digits, fraction, suffix = _split(name, value)
    number = int(digits + fraction or "0")
    places = len(fraction)  # number / 10**places is what stands before the suffix
    if suffix in BINARY:
        return _rounded_up(number << 10 * BINARY[suffix], places)
    places -= 3 * DECIMAL[suffix] if suffix in DECIMAL else _exponent(name, value, suffix)
    return int(number * 10**-places) if places < 0 else _rounded_up(number, places)


def shown(value: object) -> str:
    """A value of JSON as an error quotes it; of what has others inside, however deep, only what it is."""
    return "a list" if type(value) is list else "an object" if type(value) is dict else str(value)


def _split(name: str, text: str) -> tuple[str, str, str]:
    body = text[1:] if text.startswith("+") else text
    end = 0
    while end < len(body) and body[end] in _DIGITS or body[end : end + 1] == ".":
        end += 1
    digits, _, fraction = body[:end].partition(".")
    suffix = body[end:]
    known = suffix in DECIMAL or suffix in BINARY or suffix[:1] in ("e", "E") and len(suffix) > 1
    if not (digits or fraction) or "." in fraction or not known:
        raise InputError(name, text, "not a quantity", _HINT)
    return digits, fraction, suffix


def _exponent(name: str, text: str, suffix: str) -> int:
    sign, digits = suffix[1:2], suffix[1:]
    digits = digits[1:] if sign in ("+", "-") else digits
    if not digits or not _DIGITS.issuperset(digits) or len(digits) > 2 or int(digits) > _EXPONENT_MAX:
        raise InputError(name, text, "not a quantity", _HINT)
    return -int(digits) if sign == "-" else int(digits)


def _rounded_up(number: int, places: int) -> int:
    return int(-(-number // 10**places))


def mib_text(count: int) -> str:
    """A whole number of MiB in bytes, as the API server would write it: `80Gi`, `81559Mi`."""
    assert count % MIB == 0, count
    return f"{count >> 30}Gi" if count and count % (1 << 30) == 0 else f"{count >> 20}Mi"

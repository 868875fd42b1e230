"""Quantities of Kubernetes: `16Gi`, `17179869184`, `25`, `1e3`, `500m`. Pure."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from nvc.base.errors import InputError

#: Powers of 1000 and 1024 by suffix.
DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
MIB = 1 << 20
_TEXT_MAX = 64
_FORM = re.compile(r"([+-]?)(\d*)\.?(\d*)(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([+-]?\d{1,2}))", re.ASCII)
_EXPONENT_MAX = 30
_HINT = "write 16Gi, 512Mi, or a plain number"


def parse_quantity(name: str, value: object) -> int:
    """The whole number that a quantity is; a fraction is rounded up, as the API server does.

    Raises InputError naming `name` for anything that is no quantity, and for a negative one.
    """
    text = str(value) if type(value) is int else value
    found = _FORM.fullmatch(text) if type(text) is str and len(text) <= _TEXT_MAX else None
    if found is None or not (found[2] or found[3]) or abs(int(found[5] or 0)) > _EXPONENT_MAX:
        raise InputError(name, shown(value)[:_TEXT_MAX], "not a quantity", _HINT)
    if found[1] == "-":
        raise InputError(name, found[0], "negative", _HINT)
    scale = Fraction(10) ** int(found[5] or 3 * DECIMAL.get(found[4], 0)) * 1024 ** BINARY.get(found[4], 0)
    return math.ceil(Fraction(int(found[2] + found[3]), 10 ** len(found[3])) * scale)


def shown(value: object) -> str:
    """A value of JSON as an error quotes it; of what has others inside, however deep, only what it is."""
    return "a list" if type(value) is list else "an object" if type(value) is dict else str(value)


def mib_text(count: int) -> str:
    """A whole number of MiB in bytes, as the API server would write it: `80Gi`, `81559Mi`."""
    assert count % MIB == 0, count
    return f"{count >> 30}Gi" if count and count % (1 << 30) == 0 else f"{count >> 20}Mi"

"""Names of the Container Device Interface: `vendor/class=device`, by the rules of the reference loader."""

from __future__ import annotations

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGITS = frozenset("0123456789")
_ALNUM = _LETTERS | _DIGITS
_IN_VENDOR = _ALNUM | frozenset("_-.")
_IN_DEVICE = _ALNUM | frozenset("_-.:")

#: The specification's limit for a class; other names share it so that no message grows without bound.
LIMIT = 63
DEVICE_LIMIT = 253


def vendor_problem(name: str) -> str:
    """Why `name` cannot be a vendor or class, or "". Dots in a class need version 0.6.0."""
    return _problem(name, _LETTERS, "a letter", _IN_VENDOR, "'_', '-' and '.'")


def class_problem(name: str) -> str:
    """Why `name` cannot be a class, or ""."""
    if len(name) > LIMIT:
        return f"is longer than {LIMIT} characters"
    return vendor_problem(name)


def device_problem(name: str) -> str:
    """Why `name` cannot be a device's, or ""."""
    return _problem(name, _ALNUM, "a letter or digit", _IN_DEVICE, "'_', '-', '.' and ':'")


def _problem(name: str, first: frozenset[str], what: str, within: frozenset[str], others: str) -> str:
    if not name:
        return "is empty"
    if len(name) > DEVICE_LIMIT:
        return f"is longer than {DEVICE_LIMIT} characters"
    if name[0] not in first:
        return f"does not begin with {what}"
    if not within.issuperset(name):
        return f"has characters other than letters, digits, {others}"
    return "" if name[-1] in _ALNUM else "does not end with a letter or digit"


def kind_problem(kind: str) -> str:
    """Why `kind` is not `vendor/class`, or ""."""
    vendor, slash, name = kind.partition("/")
    if not slash:
        return "is not vendor/class"
    problem = vendor_problem(vendor)
    if problem:
        return f"has a vendor that {problem}"
    problem = class_problem(name)
    return f"has a class that {problem}" if problem else ""

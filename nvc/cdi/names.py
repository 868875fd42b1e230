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
    if not name:
        return "is empty"
    if len(name) > DEVICE_LIMIT:
        return f"is longer than {DEVICE_LIMIT} characters"
    if name[0] not in _LETTERS:
        return "does not begin with a letter"
    if not _IN_VENDOR.issuperset(name):
        return "has characters other than letters, digits, '_', '-' and '.'"
    if name[-1] not in _ALNUM:
        return "does not end with a letter or digit"
    return ""


def class_problem(name: str) -> str:
    """Why `name` cannot be a class, or ""."""
    if len(name) > LIMIT:
        return f"is longer than {LIMIT} characters"
    return vendor_problem(name)


def device_problem(name: str) -> str:
    """Why `name` cannot be a device's, or ""."""
    if not name:
        return "is empty"
    if len(name) > DEVICE_LIMIT:
        return f"is longer than {DEVICE_LIMIT} characters"
    if name[0] not in _ALNUM:
        return "does not begin with a letter or digit"
    if not _IN_DEVICE.issuperset(name):
        return "has characters other than letters, digits, '_', '-', '.' and ':'"
    if name[-1] not in _ALNUM:
        return "does not end with a letter or digit"
    return ""


def kind_problem(kind: str) -> str:
    """Why `kind` (vendor/class) is none, or ""."""
    vendor, slash, name = kind.partition("/")
    if not slash:
        return "is not vendor/class"
    problem = vendor_problem(vendor)
    if problem:
        return f"has a vendor that {problem}"
    problem = class_problem(name)
    return f"has a class that {problem}" if problem else ""


def begins_with_letter(name: str) -> bool:
    """Whether a device name is one that versions before 0.5.0 accept."""
    return bool(name) and name[0] in _LETTERS

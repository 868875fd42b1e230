"""Checks what another process has told in JSON against a shape, and makes values of it.

A shape is a number of a range, a text (str), true or false (bool), or a list of one thing ([...]). A tuple is a
list of just these things, of which its first member makes something. Pure.
"""

from __future__ import annotations

from typing import Any

NUMBER, POSITIVE, WORD, PID = range(1 << 63), range(1, 1 << 63), range(1 << 32), range(1, 1 << 31)
TEXT_MAX, MANY = 4096, 1 << 20


class WireError(ValueError):
    """A message that makes no sense."""


def row(*values: Any) -> tuple[Any, ...]:
    """For a list that becomes a tuple."""
    return values


def checked(value: object, shape: Any) -> Any:
    """The value of that shape. Raises WireError."""
    if isinstance(shape, range):
        if type(value) is int and value in shape:
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
    raise WireError(f"{value!r:.40}: not {shape!r:.80}")

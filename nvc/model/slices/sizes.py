"""Parses amounts of memory as people and other systems write them.

Anything ambiguous is an error that names the option or variable: a misread limit would be no limit.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.model.request import Size

#: Binary, whatever the case: HAMi writes `3000m` and `3g`.
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
#: Less is a mistake of units: `10` was meant to be 10 GiB, `4096` 4096 MiB.
SMALLEST = 1 << 20
LARGEST = 1 << 50
#: MiB. More is a number of bytes, or of KiB: no GPU has 4 TiB.
MEBIBYTES_MAX = 1 << 22
DIGITS = frozenset("0123456789")
HINT = "write 10GiB, 512MiB, a number of bytes, or 25% of the device"


def parse_size(name: str, text: str) -> Size:
    """Parse a size; `name` is the option or variable, for messages.

    A whole number, then nothing (bytes), one of K, M, G, T with or without `i` or `iB`, or `%`. Case does not
    matter and units are binary. Raises InputError for anything else: `10GB` may mean either kind of gigabyte.
    """
    if text.endswith("%"):
        percent = _number(name, text, text[:-1])
        if not 1 <= percent <= 100:
            raise InputError(name, text, "want a whole number from 1% to 100%")
        return Size(name, text, 0, percent, 100)
    if text.startswith("-"):
        raise InputError(name, text, "negative", HINT)
    digits = _leading_digits(text)
    unit = text[len(digits) :].lower()
    if unit not in UNITS and unit[:-1] in ("k", "m", "g", "t") and unit.endswith("b"):
        raise InputError(name, text, "a unit of 1000 or of 1024?", f"write {digits}{unit[0].upper()}iB")
    unit = unit.removesuffix("b").removesuffix("i") if unit.endswith(("ib", "i")) else unit
    if unit not in UNITS or (unit == "" and len(digits) != len(text)):
        raise InputError(name, text, "not a size", _nearest(text))
    count = _number(name, text, digits) * UNITS[unit]
    if 0 < count < SMALLEST and not unit:
        hint = f"did you mean {text}{'GiB' if count < 1024 else 'MiB'}?"
        raise InputError(name, text, f"{text} bytes is less than 1 MiB", hint)
    return in_bytes(name, text, count)


def _nearest(text: str) -> str:
    """How to write what looks like a size with spaces or a fraction; HINT for anything else."""
    import re  # nobody else needs it here, and container starts must be fast
    from fractions import Fraction

    words = text.replace(" ", "")
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([kmgt])i?b?", words, re.IGNORECASE | re.ASCII)
    if found is None:
        return HINT
    count = Fraction(found[1]) * UNITS[found[2].lower()]
    if count < SMALLEST or count % SMALLEST:
        return HINT
    return f"write {int(count) >> 20}MiB" if int(count) % (1 << 30) else f"write {int(count) >> 30}GiB"


def in_bytes(name: str, text: str, count: int) -> Size:
    """The size of `count` bytes. Raises InputError for less than 1 MiB or more than any device has."""
    if count == 0:
        hint = "leave it out for no limit; for a slice that runs: `nvc-cli vgpu set SLICE --unlimited`"
        raise InputError(name, text, "0 is not allowed", hint)
    if count < SMALLEST:
        raise InputError(name, text, f"{count} bytes is less than 1 MiB", HINT)
    if count > LARGEST:
        raise InputError(name, text, "more than any device has", HINT)
    return Size(name, text, count)


def parse_gibibytes(name: str, text: str) -> Size:
    """Parse a plain number of GiB, the form of cGPU's variables. Raises InputError."""
    return in_bytes(name, text, _number(name, text, text) << 30)


def parse_mebibytes(name: str, text: str) -> Size:
    """A plain number of MiB, as NVIDIA's variables have it. Raises InputError."""
    if not text or not DIGITS.issuperset(text):
        raise InputError(name, text, "not a whole number of MiB", "write 4096 for 4 GiB")
    count = _number(name, text, text)
    if count > MEBIBYTES_MAX:
        cause = f"{text} MiB is more than any GPU has: is it a number of bytes?"
        raise InputError(name, text, cause, f"write MiB: {count >> 20}" if count >> 20 else "write MiB")
    return in_bytes(name, text, count << 20)


def parse_part(name: str, text: str, whole_name: str, whole_text: str) -> Size:
    """Parse the fraction `text`/`whole_text` of a device, the form of cGPU's two variables. Raises InputError."""
    part, whole = _number(name, text, text), _number(whole_name, whole_text, whole_text)
    if whole == 0:
        raise InputError(whole_name, whole_text, "0 is not allowed", "say of how many parts a device consists")
    if not 1 <= part <= whole:
        raise InputError(name, text, f"want 1 to {whole}, which {whole_name} says the device has")
    return Size(name, text, 0, part, whole)


def parse_number(name: str, text: str, low: int, high: int, unit: str = "") -> int:
    """Parse a whole number from `low` to `high`; `unit` may follow it. Raises InputError."""
    digits = text.removesuffix(unit)
    sound = (
        digits and DIGITS.issuperset(digits) and len(digits) <= 18 and (digits == "0" or digits[0] != "0")
    )
    if not sound or not low <= int(digits) <= high:
        raise InputError(name, text, f"want a whole number from {low} to {high}")
    return int(digits)


def size_text(count: int) -> str:
    """`count` bytes for people: `10 GiB` where it is whole, else MiB rounded to the nearest."""
    if count and count % (1 << 30) == 0:
        return f"{count >> 30} GiB"
    return f"{(count + (1 << 19)) >> 20} MiB"


def _leading_digits(text: str) -> str:
    end = 0
    while end < len(text) and text[end] in DIGITS:
        end += 1
    return text[:end]


def _number(name: str, text: str, digits: str) -> int:
    if not digits or not DIGITS.issuperset(digits):
        cause = "negative" if text.startswith("-") else "not a size" if text else "empty"
        raise InputError(name, text, cause, HINT)
    if len(digits) > 1 and digits[0] == "0":
        raise InputError(name, text, "begins with 0", "write it without, in decimal")
    if len(digits) > 18:
        raise InputError(name, text, "more than any device has", HINT)
    return int(digits)

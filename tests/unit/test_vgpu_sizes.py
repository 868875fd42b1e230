"""Every way to write a size, and every way not to."""

from __future__ import annotations

import pytest
from support import GIB

from nvc.base.errors import InputError
from nvc.model.slices import sizes

NAME = "--vgpu-memory"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GiB", 10 * GIB), ("10gib", 10 * GIB), ("3g", 3 * GIB), ("3000m", 3000 << 20),
        ("512MiB", 512 << 20), ("2T", 2048 * GIB), ("1048576k", GIB), ("1048576", 1 << 20),
    ],
)  # fmt: skip
def test_bytes(text: str, expected: int) -> None:
    size = sizes.parse_size(NAME, text)
    assert (size.bytes, size.part, size.name, size.text) == (expected, 0, NAME, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("0", "0 is not allowed"),
        ("-1", "negative"),
        ("+1GiB", "not a size"),
        ("10gb", "write 10GiB"),
        ("1e9", "not a size"),
        ("1.5GiB", "not a size; write 1536MiB"),
        ("0.5g", "not a size; write 512MiB"),
        ("1.3GiB", "not a size; write 10GiB, 512MiB, "),
        ("0x10", "not a size"),
        ("010G", "begins with 0"),
        ("10 GiB", "not a size; write 10GiB"),
        (" 10GiB", "not a size"),
        ("80", "80 bytes is less than 1 MiB; did you mean 80GiB?"),
        ("10GiBi", "not a size"),
        ("99999999T", "more than any device"),
        ("9" * 5000, "more than any device"),
        ("١٠G", "not a size"),
        ("0%", "want a whole number from 1% to 100%"),
        ("101%", "want a whole number from 1% to 100%"),
        ("2.5%", "not a size"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        sizes.parse_size(NAME, text)
    message = str(caught.value)
    assert NAME in message and why in message and len(message) < 700 and "\n" not in message


def test_cgpu() -> None:
    assert sizes.parse_gibibytes("A", "3").bytes == 3 * GIB
    part = sizes.parse_part("A", "3", "B", "15")
    assert (part.part, part.whole) == (3, 15)
    for text in ("0", "16", "-1", "3G", ""):
        with pytest.raises(InputError, match="A"):
            sizes.parse_part("A", text, "B", "15")
    with pytest.raises(InputError, match="B"):
        sizes.parse_part("A", "1", "B", "0")
    with pytest.raises(InputError, match="A"):
        sizes.parse_gibibytes("A", "3G")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MiB"), (10 * GIB, "10 GiB"), (GIB + (1 << 20), "1025 MiB"), (1 << 19, "1 MiB")],
)
def test_shown(count: int, text: str) -> None:
    assert sizes.size_text(count) == text

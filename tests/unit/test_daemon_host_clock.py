"""The clock that nvcd and the shims share, from another time namespace."""

from __future__ import annotations

import pytest
from support import run
from support.clocks import apart

from nvc.daemon.io.host_clock import OFFSETS, SECOND, ahead


def test_a_namespace_s_clock_is_ahead(scratch: str) -> None:
    """What the kernel says to the child of `unshare`, which is in the new one."""
    shown = run(*apart(5000), "cat", OFFSETS).stdout
    with open(f"{scratch}/offsets", "x", encoding="ascii") as out:
        out.write(shown)
    assert ahead(f"{scratch}/offsets") == 5000 * SECOND


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("monotonic           5         7\nboottime           -3         0\n", 5_000_000_007),
        ("monotonic          -5         0\n", -5_000_000_000),
        ("", 0),
    ],
)
def test_offsets(scratch: str, text: str, found: int) -> None:
    with open(f"{scratch}/offsets", "w", encoding="ascii") as out:
        out.write(text)
    assert ahead(f"{scratch}/offsets") == found
    assert ahead(f"{scratch}/none") == 0

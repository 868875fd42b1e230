"""No test depends on how long the machine has run, on where the checkout lies, or on what else is there."""

from __future__ import annotations

import re

import pytest
from support.sources import read, sources

#: Options of unshare(1). `apart` of support/clocks.py asks for no clock that began before the machine's.
CLOCKS = re.compile(r"--(monotonic|boottime)\b")
#: mount(8) on a directory of the host that may have the checkout in it.
COVERED = re.compile(
    r"\bmount\b[^\n;&|]* /(srv|tmp|var/tmp|home|root|opt|run|dev/shm)(?=[ ]*(['\";&|#\\\n]|$))"
)
CLOCKWORK = ("tests/support/clocks.py", "tests/support/elsewhere.sh", "tests/unit/test_house_places.py")


def wrong(name: str, text: str) -> list[str]:
    """What a file does that depends on the machine."""
    found = []
    if name not in CLOCKWORK and CLOCKS.search(text):
        found.append(f"{name}: `apart` of support/clocks.py makes time namespaces")
    if "uncover" not in text and (covered := COVERED.search(text)):
        found.append(f"{name}: {covered[0]!r} hides the checkout: see support/covered.py")
    return found


def test_no_test_wants_an_old_machine_or_a_checkout_elsewhere() -> None:
    names = [name for name in sources(".py", ".sh", ".c") if name.startswith("tests/")]
    assert [one for name in names for one in wrong(name, read(name))] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('run("unshare", "--time", f"--monotonic={seconds}")', 1),
        ("mount -t tmpfs -o mode=755 tmpfs /srv\\n", 1),
        ("mount -t tmpfs -o mode=755 tmpfs /srv\n", 1),
        ("'mount -t tmpfs none /run && exec \"$@\"'", 1),
        ("{uncover(REPO)}\nmount -t tmpfs tmpfs /srv\nuncover\n", 0),
        ("mount --bind /run /sys/fs", 0),
        ("mount -t tmpfs tmpfs /run/nvc\n", 0),
    ],
)
def test_what_is_found(text: str, count: int) -> None:
    assert len(wrong("tests/x.py", text)) == count

"""The loader cache of a simulated root: `ldconfig -p` reads it, and names stand in the loader's order."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples, need, run

from nvc.testing.sim.loadercache import name_key, write

KINDS = {"x86_64": "libc6,x86-64", "i386": "libc6", "aarch64": "libc6,AArch64", "arm": "libc6,hard-float"}


def printed(cache: bytes, directory: os.PathLike[str]) -> list[str]:
    path = os.path.join(directory, "cache")
    with open(path, "wb") as out:
        out.write(cache)
    lines = run(need("ldconfig"), "-p", "-C", path).stdout.splitlines()
    return [line.strip() for line in lines if " => " in line]


def line(entry: tuple[str, str, str]) -> str:
    name, path, arch = entry
    return f"{name} ({KINDS[arch]}) => {path}"


NAMES = st.text("ab.019", min_size=1, max_size=12)


@given(NAMES, NAMES)
def test_the_order_is_the_loaders(one: str, other: str) -> None:
    """Against glibc's rule, written from its description: runs of digits compare as numbers and come last."""

    def rule(a: str, b: str) -> int:
        i = j = 0
        while i < len(a):
            x, y = a[i], b[j] if j < len(b) else "\0"
            if x.isdigit() and y.isdigit():
                m, n = i, j
                while m < len(a) and a[m].isdigit():
                    m += 1
                while n < len(b) and b[n].isdigit():
                    n += 1
                if int(a[i:m]) != int(b[j:n]):
                    return int(a[i:m]) - int(b[j:n])
                i, j = m, n
            elif x.isdigit():
                return 1
            elif y.isdigit():
                return -1
            elif x != y:
                return ord(x) - ord(y)
            else:
                i, j = i + 1, j + 1
        return 0 if j >= len(b) else -1

    found, wanted = (name_key(one), name_key(other)), rule(one, other)
    assert (found[0] > found[1]) - (found[0] < found[1]) == (wanted > 0) - (wanted < 0)


@given(
    entries=st.lists(st.tuples(NAMES, NAMES, st.sampled_from(sorted(KINDS))), max_size=40),
    combined=st.booleans(),
)
@settings(max_examples=examples(25), deadline=None)
def test_any_entries_come_back(
    entries: list[tuple[str, str, str]], combined: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = printed(write(entries, combined), tmp_path_factory.mktemp("cache"))
    assert sorted(lines) == sorted(line(entry) for entry in entries)
    names = [text.split(" ")[0] for text in lines]
    assert names == sorted(names, key=name_key, reverse=True)

"""A taste of what `make fuzz` feeds the parsers: their seeds, what was once found, and some mutations of those."""

from __future__ import annotations

import os
import random

import pytest
from support import EXPLORE
from support.fuzz import CORPUS, broken, fuzz, limit_memory, seeds, smaller
from support.fuzz_parsers import PARSERS, Parser
from support.processes import in_child

INPUTS = 150
#: Seeds that a parser refuses; all others it must accept, or nothing behind its first check is reached.
REFUSED = {("environment", 1)}


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_keeps_its_promises(name: str) -> None:
    seed = random.randrange(1 << 32) if EXPLORE else 1

    def attempt() -> str:
        limit_memory()
        return "\n".join(map(str, fuzz(name, INPUTS, seed)))

    found = in_child(attempt)
    assert not found, f"python -m support.fuzz {name} --seed {seed}: {found}"


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_accepts_its_seeds(name: str) -> None:
    files = sorted(file for file in os.listdir(os.path.join(CORPUS, name)) if file.startswith("seed-"))
    assert files
    for number, data in enumerate(seeds(name)[-len(files) :]):
        if (name, number) not in REFUSED:
            PARSERS[name].call(data)


def test_every_corpus_has_its_parser() -> None:
    assert sorted(os.listdir(CORPUS)) == sorted(PARSERS)


def fragile(data: bytes) -> int:
    """Breaks at an X that is not the last byte."""
    if data.count(b"!") == 9:
        raise KeyError("declared")
    return data[data.index(b"X") + 1] if b"X" in data else 0


def test_a_broken_promise_is_found_and_made_small() -> None:
    parser = Parser(fragile, (KeyError,))
    assert not broken(parser, b"aXb") and not broken(parser, b"!" * 9)
    long = b"some text" * 50 + b"X"
    assert broken(parser, long) == "IndexError in fragile"
    assert smaller(parser, long, broken(parser, long)) == b"X"

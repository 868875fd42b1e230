"""Mutates real inputs and feeds them to a parser, which must answer or raise what it declares, soon and small.

    python -m support.fuzz [--inputs N] [--seed N] [PARSER...]

Seeds are the files of tests/data/fuzz/PARSER, those that are no text in hexadecimal; an input that breaks a
promise is made smaller and kept there, as `found-*`. Exit 1 when there was one. A parser that ends its process is
reported with the signal.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import sys
import time
from typing import NamedTuple

from support import REPO
from support.fuzz_parsers import PARSERS, Parser

CORPUS = os.path.join(REPO, "tests/data/fuzz")
INPUT_MAX = 64 << 10  # bytes
SECONDS_MAX = 1.0  # of processor time for one input
MEMORY_MAX = 512 << 20  # bytes that all inputs together may add to the address space
_NUMBERS = (0, 1, 2, 7, 8, 255, 256, 4095, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_WORDS = (
    b"\0", b"\n", b"\r\n", b"=", b":", b",", b"..", b"/", b"-", b"0", b"-1", b"18446744073709551616", b"1e999",
    b"null", b"true", b"{}", b"[]", b"[" * 70, b'"', b"'", b"\\u0000", b"\xff\xfe", b"\xc3\x28", b"\xe2\x80\xa8",
    b"all", b"MIG-", b"%s", b"#", b"&a", b"*a", b"|\n", b"- ", b"? ", b"!!int ", b"\xc2\xb2", b"\xd9\xa3",
    b"GPU-00000000-0000-0000-0000-000000000000",
)  # fmt: skip


class Finding(NamedTuple):
    """An input that broke a promise, and which."""

    data: bytes
    what: str


def seeds(name: str) -> list[bytes]:
    """The corpus of a parser, in order."""
    directory = os.path.join(CORPUS, name)
    found = []
    for file in sorted(os.listdir(directory)):
        with open(os.path.join(directory, file), "rb") as content:
            data = content.read()
        found.append(bytes.fromhex(data.decode()) if file.endswith(".hex") else data)
    return found


def put(name: str, file: str, data: bytes) -> str:
    """Write a file of the corpus; its path."""
    text = data.isascii() and all(byte >= 32 or byte in b"\t\n" for byte in data)
    path = os.path.join(CORPUS, name, file if text else f"{file}.hex")
    with open(path, "w", encoding="ascii", newline="") as out:
        out.write(data.decode() if text else data.hex() + "\n")
    return path


def mutated(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    """`data` with one to four changes."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        at = chance.randrange(len(out) + 1)
        kind = chance.randrange(9)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << chance.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = chance.randrange(256)
        elif kind == 2:
            del out[at : at + chance.choice((1, 1, 2, 4, 8, 64, 1024))]
        elif kind == 3:
            out[at:at] = chance.choice(_WORDS)
        elif kind == 4:
            size = chance.choice((1, 2, 4, 8))
            number = chance.choice(_NUMBERS) % (1 << 8 * size)
            out[at : at + size] = number.to_bytes(size, "little")
        elif kind == 5:
            other = chance.choice(corpus)
            begin = chance.randrange(len(other) + 1)
            out[at : at + chance.randrange(64)] = other[begin : begin + chance.randrange(256)]
        elif kind == 6:
            piece = bytes(out[at : at + chance.choice((1, 4, 16, 64))])
            out[at:at] = piece * chance.choice((1, 1, 2, 16))
        elif kind == 7:
            del out[at:]
        else:
            digits = [place for place in range(len(out)) if 48 <= out[place] <= 57][:4096]
            if digits:
                place = chance.choice(digits)
                out[place : place + 1] = str(chance.choice(_NUMBERS)).encode()
    return bytes(out[:INPUT_MAX])


def broken(parser: Parser, data: bytes) -> str:
    """The promise that `data` breaks: the exception, or the time it took; "" for none."""
    began = time.process_time()
    try:
        parser.call(data)
    except parser.errors as error:
        text = str(error)
        if not text.isprintable():
            return "a message that is not one line of text"
    except Exception as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = traceback.tb_frame.f_code.co_name if traceback else "?"
        return f"{type(error).__name__} in {where}"
    taken = time.process_time() - began
    return f"more than {SECONDS_MAX} s" if taken > SECONDS_MAX else ""


def smaller(parser: Parser, data: bytes, what: str) -> bytes:
    """A part of `data` that breaks the same promise."""
    size = len(data) // 2
    tries = 2000
    while size:
        at = 0
        while at < len(data) and tries:
            tries -= 1
            shorter = data[:at] + data[at + size :]
            if broken(parser, shorter) == what:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def fuzz(name: str, inputs: int, seed: int) -> list[Finding]:
    """Feed `inputs` mutations to a parser; one finding for each broken promise."""
    parser, corpus = PARSERS[name], seeds(name)
    chance = random.Random(f"{name} {seed}")
    found: dict[str, Finding] = {}
    for data in corpus:
        what = broken(parser, data)
        if what:
            found.setdefault(what, Finding(data, what))
    pool = list(corpus)
    for _ in range(inputs):
        data = mutated(chance.choice(pool), corpus, chance)
        if chance.randrange(64) == 0:  # some go on from here
            pool.append(data)
            if len(pool) > len(corpus) + 64:
                del pool[len(corpus)]
        what = broken(parser, data)
        if what and what not in found:
            found[what] = Finding(smaller(parser, data, what), what)
    return list(found.values())


def keep(name: str, finding: Finding) -> str:
    """Put a finding into the corpus; its path."""
    digest = hashlib.blake2b(finding.data, digest_size=6).hexdigest()
    return put(name, f"found-{digest}", finding.data)


def limit_memory() -> None:
    """A parser that takes more than it should gets MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_MAX, now + MEMORY_MAX))


def isolated(name: str, inputs: int, seed: int) -> int:
    """Fuzz in a process of its own, and say what was found; how much that was."""
    sys.stdout.flush()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        limit_memory()
        count = 0
        for finding in fuzz(name, inputs, seed):
            print(f"{name}: {finding.what}: {keep(name, finding)}")
            count += 1
        sys.stdout.flush()
        os._exit(min(count, 100))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        print(f"{name}: its process was ended by signal {-status} (seed {seed})")
    print(f"{name}: {inputs} inputs, {abs(status)} findings, {time.monotonic() - began:.0f} s")
    return abs(status)


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description="Feeds mutated inputs to the parsers of foreign bytes.")
    parser.add_argument("parsers", nargs="*", default=sorted(PARSERS))
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all parsers")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    each = -(-options.inputs // len(options.parsers))
    wrong = sum(isolated(name, each, options.seed) for name in options.parsers)
    print(f"{each * len(options.parsers)} inputs, {wrong} findings, seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

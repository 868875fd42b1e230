"""The description: what Python writes, C reads; what is changed, C refuses or reads, and never falls over."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE, REPO, examples, run
from support.builds import kept
from support.simdriver import SANITIZE, WARN

from nvc.testing.sim.description import render
from nvc.testing.sim.models import MODELS
from nvc.testing.sim.spec import SimSpec, gpus_of

Reader = Callable[[bytes], str]

SPECS = (
    SimSpec(),
    SimSpec(gpus=0),
    SimSpec(gpus=2, mig=("7x1g.10gb", "")),
    SimSpec(gpus=32, model="t4", minors=tuple(reversed(range(32)))),
)


@pytest.fixture(scope="session")
def reader() -> Iterator[Reader]:
    """Reads a description with the sanitized C parser, in one process for all tests."""
    files = ("tests/native/simdriver_describe.c", "native/simdriver/common/description.c")

    def build(directory: str) -> str:
        program = os.path.join(directory, "describe")
        run("gcc", *WARN, "-g", *SANITIZE, "-o", program, *[os.path.join(REPO, file) for file in files])
        return program

    process = subprocess.Popen(
        [kept("simdriver_describe", build)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def read(text: bytes) -> str:
        stdin.write(struct.pack("<I", len(text)) + text)
        stdin.flush()
        answer = stdout.readline().decode().strip()
        assert answer, f"the reader ended with {process.wait()} at {text!r}"
        return answer

    yield read
    stdin.close()
    assert process.wait(timeout=PATIENCE) == 0
    stdout.close()


def text_of(spec: SimSpec) -> bytes:
    return render(spec, gpus_of(spec), 511, 510)


def summary(spec: SimSpec) -> str:
    words = ["ok", spec.driver_version, spec.cuda_version]
    for gpu in gpus_of(spec):
        words.append(f"{gpu.uuid}:{gpu.minor}:{gpu.bus_id[:7]}:{gpu.memory}:{len(gpu.mig)}")
    return " ".join(words)


@pytest.mark.parametrize("spec", SPECS)
def test_what_python_writes_is_read(spec: SimSpec, reader: Reader) -> None:
    assert reader(text_of(spec)) == summary(spec)


@given(
    gpus=st.integers(0, 32),
    model=st.sampled_from(sorted(MODELS)),
    memory=st.integers(1 << 31, 1 << 42),
    seed=st.text("abc", max_size=3),
    cuda=st.tuples(st.integers(0, 99), st.integers(0, 9)),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_description_is_read(
    gpus: int, model: str, memory: int, seed: str, cuda: tuple[int, int], reader: Reader
) -> None:
    version = f"{cuda[0]}.{cuda[1]}"
    spec = SimSpec(gpus=gpus, model=model, memory=memory, seed=seed, cuda_version=version)
    assert reader(text_of(spec)) == summary(spec)

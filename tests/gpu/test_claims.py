"""Two claims of Kubernetes on one GPU: PyTorch gets 40 GiB in each, and 30 and 70 per cent of the time.

The kubelet and the API server are the tests' own; nvc-kubelet-plugin, nvcd, the CDI hook and runc are not. PyTorch
is the host's: a container's root is the host's, under a layer that goes with it. Nobody else may use the GPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from support import GIB, STAGE, gpus, run
from support.bundle import Container
from support.claimed import ClaimNode, Memory, measure, node
from support.realslice import answers, plain_environment, program

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = 40
Measured: TypeAlias = Callable[[str, object], None]


@pytest.fixture
def claims() -> Iterator[ClaimNode]:
    directory = tempfile.mkdtemp(prefix="claims-", dir="/var/tmp")
    try:
        with node(STAGE, directory, gpus.ROOT) as made:
            yield made
    finally:
        shutil.rmtree(directory)


class PyTorch:
    """The host's python3, and claim_torch.py."""

    def __init__(self) -> None:
        with open(
            f"{HERE}/claim_torch.py", encoding="utf-8"
        ) as file:  # wherever it is: a container has a /tmp of its own
            self.program = (program("python3"), "-c", file.read())
        code = "import sys, torch; print(sys.prefix, sys.base_prefix, *torch.__path__)"
        said = run(self.program[0], "-c", code, env=plain_environment()).stdout
        self.places = tuple(said.split())
        self.work = (*self.program, "work")

    def memory(self, container: Container, size: int) -> Memory:
        done = container.call("exec", container.name, *self.program, "memory", str(size))
        return Memory(**answers(done.stdout))


def test_pytorch_in_two_claims(claims: ClaimNode, measured: Measured) -> None:
    alone, both = measure(claims, gpus.uuid(), PyTorch(), SIZE, (30, 70), 10.0)
    measured("PyTorch with the whole GPU by a claim: steps/s", f"{alone:.1f}")
    for had in both:
        measured(
            f"PyTorch, claim of {SIZE} GiB and cores {had.cores}: GiB that it sees, that it got; its share",
            f"{had.memory.total / GIB:.2f}, {had.memory.got / GIB:.1f}; {had.share:.2f} %",
        )
    for had in both:
        assert abs(had.memory.total - SIZE * GIB) <= 0.01 * SIZE * GIB and had.memory.refused
        assert (SIZE - 2) * GIB <= had.memory.got <= SIZE * GIB
        assert abs(had.share - had.cores) <= 2

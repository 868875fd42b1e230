"""Two claims on one simulated GPU that both keep busy: tests/gpu/test_claims.py has PyTorch and a real one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator

import pytest
from support import GIB
from support.bundle import Container
from support.claimed import ClaimNode, Memory, measure, node
from support.vgpu import ensure_shim
from support.vgpucap import work  # noqa: F401

from nvc.discovery import discover
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions

OUT_OF_MEMORY = 2


@pytest.fixture
def claims(stage: str, scratch: str, driver: str) -> Iterator[ClaimNode]:
    ensure_shim(stage, scratch)
    with node(stage, scratch, driver) as made:
        yield made


class Simulated:
    """vgpu_tool and vgpu_work with kernels of a millisecond."""

    def __init__(self, tool: str, work: str) -> None:  # noqa: F811
        self.tool = tool
        self.places = (os.path.dirname(tool), os.path.dirname(work))
        self.work = (work, "ns=1000000", "batch=0")

    def memory(self, container: Container, size: int) -> Memory:
        """In blocks of a GiB."""
        commands = [
            "init",
            "primary 0",
            "info",
            f"alloc a {size + 1}g",
            *(f"alloc b{n} 1g" for n in range(size)),
        ]
        lines = " ".join(f"'{command}'" for command in commands)
        said = container.exec(f"printf '%s\\n' {lines} | {shlex.quote(self.tool)}").stdout
        info, beyond, *blocks = [[int(word) for word in line.split()] for line in said.splitlines()][2:]
        return Memory(info[2], [code for code, *_ in blocks].count(0) * GIB, beyond[0] == OUT_OF_MEMORY)


@pytest.mark.driver(gpus=1, model="h200")
def test_memory_and_shares_of_two_claims(
    claims: ClaimNode,
    driver: str,
    tool: str,
    work: str,  # noqa: F811
    measured: Callable[[str, object], None],
) -> None:
    """In real time. Where others use the processors, too, shares are lower: nvcd must run for a tenant to go on."""
    (gpu,) = discover(LinuxKernel(), DriverOptions(root=driver)).gpus
    alone, both = measure(claims, gpu.uuid, Simulated(tool, work), 40, (30, 70), 3.0)
    measured("kernels/s alone; shares", f"{alone:.0f}; {', '.join(f'{had.share:.1f} %' for had in both)}")
    for had in both:
        assert had.memory.total == 40 * GIB and had.memory.refused and had.memory.got == 39 * GIB
        assert 0.6 * had.cores <= had.share <= had.cores + 4

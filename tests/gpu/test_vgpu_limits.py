"""A 10 GiB slice of a real GPU: what each way to memory gives, and what the tenant is shown."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import STAGE, gpus, need, run
from support.bundle import Bundle
from support.configure import Configure, as_hook

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = ("linear", "pitch", "async", "array", "vmm", "managed")
LIMIT = 10 * 1024  # MiB
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Takes memory until it is refused; built here."""
    path = str(tmp_path_factory.mktemp("program") / "vgpu_take")
    run(need("gcc"), "-O2", "-o", path, f"{HERE}/vgpu_take.c", "-ldl")
    return path


@pytest.fixture
def slice_of(runc_bundle: Callable[..., Bundle], program: str) -> Bundle:
    made = runc_bundle()
    with open(f"{made.rootfs}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    run("cp", program, f"{made.rootfs}/usr/bin/vgpu_take")
    words = (f"--device={gpus.uuid()}", "--compute", "--utility", "--vgpu-memory=10GiB")
    as_hook(made, Configure(os.path.join(STAGE, "bin/nvc-cli"), "/"), words)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_a_way_to_memory(slice_of: Bundle, way: str, measured: Callable[[str, object], None]) -> None:
    words = slice_of.run("runc", f"vgpu_take {way}").stdout.split()
    line = dict(zip(words[1::2], map(int, words[2::2])))
    measured(f"{way}: MiB got of 10,240, code of the refusal", f"{line['got']}, {line['refused']}")
    assert line["refused"] == OUT_OF_MEMORY
    assert LIMIT * 0.9 <= line["got"] <= LIMIT
    assert line["total"] == line["device"] == LIMIT
    assert line["free"] <= LIMIT


def test_the_tenant_is_shown_its_slice(slice_of: Bundle) -> None:
    query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    assert abs(int(slice_of.run("runc", query).stdout) - LIMIT) <= 2

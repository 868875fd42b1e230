"""PyTorch, CuPy, JAX, Triton and NVIDIA's own bindings in a slice of 10 GiB, as their users run them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support import STAGE, gpus, need, run
from support.realslice import answers, plain_environment, program

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
NVC = os.path.join(STAGE, "bin/nvc-cli")
LIMIT = 10 * 1024  # MiB
Measure = Callable[[str, object], None]


def sliced(*words: str, **variables: str) -> str:
    """What a program prints in a slice."""
    command = (NVC, "vgpu", "run", "--memory=10GiB", "--", *words)
    return run(*command, env=plain_environment(**variables), timeout=300).stdout


def said(name: str, **variables: str) -> dict[str, Any]:
    return answers(sliced(program("python3"), f"{HERE}/vgpu_programs.py", name, **variables))


def test_torch(measured: Measure) -> None:
    out = said("torch")
    measured("PyTorch: MiB got in blocks of 512", out["got"])
    measured(
        "PyTorch after a product, a convolution and a graph: MiB reserved by it, counted",
        [out["reserved"], out["used"]],
    )
    assert out["total"] == out["properties"] == LIMIT and out["free"] < LIMIT
    assert "out of memory" in out["refused"].lower()
    assert 8 * 1024 <= out["got"] <= LIMIT and out["again"] == 4
    assert out["finite"] and out["captured"] and out["fraction"] == "refused"
    assert abs(out["used"] - out["used_by_cuda"]) <= 2


def test_what_torch_takes_is_counted(measured: Measure) -> None:
    """What NVML says from outside of the process, beside the books."""
    code = (
        "import subprocess, torch, torch.nn.functional as f; a = torch.randn(4096, 4096, device='cuda');"
        "(a @ a).sum().item(); torch.nn.Conv2d(64, 64, 3).cuda()(torch.randn(8, 64, 128, 128, device='cuda'));"
        "torch.cuda.synchronize(); free, total = torch.cuda.mem_get_info();"
        "import json, os, sys; print(json.dumps({'counted': (total - free) >> 20}), flush=True); sys.stdin.read()"
    )
    words = [NVC, "vgpu", "run", "--memory=10GiB", "--", program("python3"), "-c", code]
    before = int(gpus.smi("memory.used"))
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=plain_environment(), text=True
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        counted = json.loads(process.stdout.readline())["counted"]
        outside = int(gpus.smi("memory.used")) - before
    finally:
        process.communicate(timeout=60)
    measured("PyTorch: MiB taken, counted (no daemon)", f"{outside}, {counted}")
    assert outside - counted <= 300  # its libraries' code, which only a daemon sees: docs/vgpu.md


def test_torch_with_segments_that_grow(measured: Measure) -> None:
    out = said("torch_segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    measured("PyTorch, expandable segments: MiB got in blocks of 500", out["got"])
    assert out["total"] == LIMIT and 8 * 1024 <= out["got"] <= LIMIT and out["after"] == 5 * 1024


def test_torch_in_many_processes() -> None:
    out = said("torch_processes")
    assert out["total"] == sum(range(4096)) and out["answers"] == [64] * 4 and out["codes"] == [0] * 4


def test_cupy(measured: Measure) -> None:
    out = said("cupy")
    measured("CuPy: MiB got by pool, in stream order, plain", [out["pool"], out["async"], out["plain"]])
    assert out["total"] == LIMIT
    assert all(8 * 1024 <= out[way] <= LIMIT for way in ("pool", "async", "plain")), out


def test_jax(measured: Measure) -> None:
    out = said("jax")
    measured("JAX: MiB that it may use", out["limit"])
    assert out["value"] == 4096 and 0 < out["limit"] <= LIMIT
    assert "RESOURCE_EXHAUSTED" in out["refused"] or "out of memory" in out["refused"].lower()


def test_triton() -> None:
    assert said("triton")["equal"]


def test_managed_memory() -> None:
    out = said("managed")
    assert out.pop("byte") == 7 and out.pop("beyond") == 2
    assert set(out.values()) == {0}, out


def test_nvidias_bindings(measured: Measure) -> None:
    out = said("nvml")
    measured("MiB total, used and free by NVML v1, v2 and CUDA", [out["v1"], out["v2"], out["cuda"]])
    for other in (out["v2"], out["cuda"]):
        assert all(abs(a - b) <= 2 for a, b in zip(out["v1"], other)), out
    assert out["v1"][0] == LIMIT and out["v1"][1] + out["v1"][2] <= LIMIT
    assert out["processes"] == [1, 1] and abs(out["own"] - out["v1"][1]) <= 2
    assert 0 <= out["gpu"] <= 100


def test_nvidia_smi_in_all_its_forms() -> None:
    smi = need("nvidia-smi")
    assert f"{LIMIT}MiB" in sliced(smi).replace(" ", "")
    lines = sliced(smi, "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits").splitlines()
    assert len(lines) == len(run(smi, "-L").stdout.splitlines())
    total, used = map(int, lines[0].split(","))
    assert abs(total - LIMIT) <= 2 and used <= 2
    long = sliced(smi, "-q", "-d", "MEMORY")
    assert f"{LIMIT} MiB" in long
    assert sliced(smi, "dmon", "-c", "1").startswith("#")
    assert sliced(smi, "pmon", "-c", "1").startswith("#")


def test_what_is_the_devices_own_is_unchanged() -> None:
    smi = need("nvidia-smi")
    for words in (
        ("-L",),
        ("--query-gpu=index,uuid,name,pci.bus_id,serial,driver_version,power.limit", "--format=csv"),
        ("topo", "-m"),
        ("nvlink", "-s"),
    ):
        assert sliced(smi, *words) == run(smi, *words, env=plain_environment()).stdout

"""Programs of the CUDA runtime in a slice: shared, static, and with default streams per thread."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import STAGE, run
from support.realslice import answers, plain_environment, program

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
NVC = os.path.join(STAGE, "bin/nvc-cli")
BUILDS = {
    "shared": ["-cudart", "shared"],
    "static": ["-cudart", "static"],
    "per thread": ["-cudart", "static", "--default-stream", "per-thread"],
}


@pytest.mark.parametrize("build", BUILDS)
def test_the_runtime(scratch: str, build: str, measured: Callable[[str, object], None]) -> None:
    nvcc = program("nvcc")
    path = os.path.join(scratch, "runtime")
    run(nvcc, *BUILDS[build], "-o", path, f"{HERE}/vgpu_runtime.cu",
        env=plain_environment(), timeout=300)  # fmt: skip
    root = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    places = [f"{root}/{name}" for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    places += [place for place in [os.environ.get("LD_LIBRARY_PATH")] if place]
    environment = plain_environment(LD_LIBRARY_PATH=":".join(places))
    done = run(NVC, "vgpu", "run", "--memory=10GiB", "--", path, env=environment, timeout=120)
    said = answers(done.stdout)
    measured(f"cudaMalloc of 64 MiB, {build} runtime: blocks got, code", f"{said['got']}, {said['refused']}")
    assert said["refused"] == 2 and said["cleared"] == 1 and said["small"] == 0
    assert 9 * 1024 < said["got"] * 64 <= 10 * 1024
    assert (said["async"], said["async_free"], said["after"]) == (0, 0, 0)
    assert said["total"] == said["properties"] == 10 * 1024
    assert 9 * 1024 < said["free"] < 10 * 1024
    assert done.stderr == ""

"""nvc-spin on a real driver: its kernel is compiled, and a step takes the time that it says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, STAGE, gpus, run

pytestmark = pytest.mark.gpu
SPIN = os.path.join(STAGE, "bin/nvc-spin")


@pytest.mark.parametrize("kernel", ["200us", "1ms", "50ms"])
def test_a_gpu_that_is_its_own(kernel: str, measured: Callable[[str, object], None]) -> None:
    env = {**CLEAN_ENV, "CUDA_VISIBLE_DEVICES": gpus.uuid()}
    done = run(SPIN, "--memory=1GiB", f"--kernel={kernel}", "--seconds=3", env=env)
    assert " 1.00 of " in done.stdout
    found = re.search(r"(\d+\.\d)% of the GPU's time$", done.stdout)
    assert found, done.stdout
    measured(f"nvc-spin alone, {kernel}, percent of the GPU's time", float(found[1]))
    assert 85 < float(found[1]) < 110


def test_memory_that_there_is_not() -> None:
    env = {**CLEAN_ENV, "CUDA_VISIBLE_DEVICES": gpus.uuid()}
    done = run(SPIN, "--memory=900GiB", env=env, check=False)
    assert done.returncode == 1 and "CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stderr

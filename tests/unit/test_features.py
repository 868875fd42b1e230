"""tests/features.md: each row of its tables has an answer, and names a test that exists."""

from __future__ import annotations

import glob
import os
import re

from support import REPO

with open(os.path.join(REPO, "tests/features.md"), encoding="utf-8") as page:
    TEXT = page.read()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| ---") and not line.endswith("| tried by |")
]


def test_each_row() -> None:
    for feature, answer, tried in ROWS:
        assert feature and answer, feature
        named = re.fullmatch(r"`([a-z]+/test_\w+\.py)::(test_\w+)`", tried)
        assert named is not None, tried
        with open(os.path.join(REPO, "tests", named[1]), encoding="utf-8") as file:
            assert re.search(rf"^def {named[2]}\(", file.read(), re.MULTILINE), tried


def test_no_feature_is_missing() -> None:
    """Every name by which HAMi and cGPU are told something."""
    names = """CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT CUDA_DEVICE_MEMORY_SHARED_CACHE CUDA_TASK_PRIORITY
        GPU_CORE_UTILIZATION_POLICY RECORD_KERNEL_INTERVAL ACTIVE_OOM_KILLER LIBCUDA_LOG_LEVEL CUDA_REDIRECT
        CUDA_OVERSUBSCRIBE CUDA_DISABLE_CONTROL overrideEnv shrreg-tool nvidia.com/gpumem nvidia.com/gpucores
        ALIYUN_COM_GPU_MEM_DEV ALIYUN_COM_GPU_MEM_CONTAINER ALIYUN_COM_GPU_VISIBLE_DEVICES CGPU_DISABLE
        ALIYUN_COM_GPU_SCHD_WEIGHT inst_ctl default_memsize max_inst free_weight meminfo memsize"""
    assert [name for name in names.split() if name not in TEXT] == []
    assert len(ROWS) > 70


def test_every_client_has_its_rows() -> None:
    """Each of its tests but the one of its version, which compares that with the page's."""
    tests = set()
    for path in glob.glob(os.path.join(REPO, "tests/engines/test_client_*.py")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        assert "as_the_page_says(" in text, path
        found = re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)
        tests |= {f"`engines/{os.path.basename(path)}::{name}`" for name in found if name != "test_version"}
    assert {row[2] for row in ROWS if "/test_client_" in row[2]} == tests

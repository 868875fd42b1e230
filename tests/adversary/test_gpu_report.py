"""The report of tests on a real GPU, here on a simulated one: a run that is cut short has its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, REPO
from support.adversary_table import cells_of

CUT = """
import os

def pytest_runtest_setup(item):
    if "wrong-frees" in item.name:
        os._exit(9)
"""


@pytest.mark.nightly  # it collects all tests for real GPUs, which only such a run needs
def test_a_run_that_is_cut_short_has_its_rows(
    stage: str, scratch: str, sim_root: Callable[..., str]
) -> None:
    """Its shard is the second and the fourth of the four that -k leaves; the fourth is where it is cut."""
    root, report = sim_root(gpus=1, seed=scratch), os.path.join(scratch, "report.md")
    with open(os.path.join(scratch, "cut.py"), "w", encoding="utf-8") as plugin:
        plugin.write(CUT)
    tests = os.path.join(REPO, "tests")
    variables = {
        **CLEAN_ENV,
        "NVC_STAGE": stage,
        "NVC_BENCH_ROOT": root,
        "NVC_REPORT": report,
        "NVC_ADVERSARY_SHARD": "1/2",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{scratch}:{tests}:{stage}/lib/nvc/python",
    }
    tried = "adversary_memory and (killed or wrong-frees or green-contexts or cuArrayCreate)"
    words = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", tests, "-p", "no:cacheprovider"]
    words += ["--import-mode=importlib", "-p", "cut", "-q", "-m", "gpu", "-k", tried, f"{tests}/gpu"]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 9, done.stdout
    with open(report, encoding="utf-8") as lines:
        assert set(cells_of(lines)) == {"killed"}

"""How the timekeeper finds the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from support import CLEAN_ENV, STAGE

PROGRAM = """
import sys
import nvc.daemon.main, nvc.daemon.keeper.driver
from nvc.request.config import Config
from nvc.base.errors import NvcError
from nvc.kernel import LinuxKernel
work = nvc.daemon.keeper.driver.opener(LinuxKernel(), Config().replace(root=sys.argv[1]), sys.argv[2] + "/bpf")
before = set(sys.modules)
for _ in range(2):
    try:
        work()
    except NvcError as error:
        print(error)
print(*sorted(name for name in set(sys.modules) - before if name.startswith("nvc")))
"""


def test_it_imports_nothing_once_it_is_forked(sim_root: Callable[..., str], scratch: str) -> None:
    """An installation's modules are in an archive, which helpers of nvcd have closed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, sim_root(), scratch], text=True, capture_output=True, check=True,
        env={**CLEAN_ENV, "PYTHONPATH": os.path.join(STAGE, "lib/nvc/python")},
    )  # fmt: skip
    lines = done.stdout.split("\n")
    assert lines[0] == lines[1] and "resource manager does not run" in lines[0]
    assert lines[2] == ""

"""Time is kept from outside on a real GPU: outside.py prints what came of each step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from support import run


@pytest.mark.gpu
def test_time_is_kept_from_outside(measured: Callable[[str, object], None]) -> None:
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outside.py")
    done = run(sys.executable, script, env=dict(os.environ), timeout=300, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            measured("time from outside", line.strip())
    assert done.returncode == 0, done.stdout + done.stderr

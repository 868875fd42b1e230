"""The bench of shares, run for a second on a simulated driver: it ends well and says what each tenant got."""

from __future__ import annotations

import os
import re

import pytest
from support import CLEAN_ENV, REPO, run

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("shim")]


def test_shares(stage: str, work: str) -> None:
    """Each scenario starts an nvcd, which ends with it; what was measured is not judged here."""
    path = os.path.join(REPO, "tests/bench/shares.sh")
    words = ("--seconds", "1", "--only", "fixed", "--only", "weight")
    done = run(path, f"{stage}/bin", work, *words, env=CLEAN_ENV, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    got = {line.split()[0] for line in done.stdout.splitlines() if re.search(r" got +[1-9]", line)}
    assert {"a", "b"} <= got and len(re.findall("^weight, ", done.stdout, re.MULTILINE)) == 3, done.stdout
    assert done.stderr.count("nvcd: version ") == 2, done.stderr

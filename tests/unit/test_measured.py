"""What is measured gets three tries; whatever else fails has one."""

from __future__ import annotations

import os
import sys

import pytest
from support import REPO, run

TESTS = """
import os
from support.measured import above, below, near, within

def count(name):
    with open(name, "a") as out:
        out.write("x")
    return os.path.getsize(name)

def test_spoilt_twice():
    above(count("spoilt"), 3)

def test_wrong_each_time():
    near(count("wrong"), 10, 2)

def test_not_measured():
    assert count("other") == 2

def test_not_a_number():
    count("nan")
    below(float("nan"), 1)
    within(1, 0, 2)
"""


def test_tries(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("tries"))
    with open(os.path.join(directory, "test_tries.py"), "w", encoding="ascii") as out:
        out.write(TESTS)
    words = ["-m", "pytest", "-q", "-c", os.path.join(REPO, "setup.cfg"), "--rootdir", REPO]
    words += ["-o", f"cache_dir={directory}/cache", "test_tries.py"]
    done = run(sys.executable, *words, check=False, cwd=directory)
    assert "3 failed, 1 passed, 6 rerun" in done.stdout, done.stdout + done.stderr
    for name, tries in (("spoilt", 3), ("wrong", 3), ("other", 1), ("nan", 3)):
        assert os.path.getsize(os.path.join(directory, name)) == tries, name

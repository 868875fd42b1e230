"""A test that hangs fails by its name, in whichever phase; the run goes on and ends."""

from __future__ import annotations

import os
import re
import signal
import sys

from support import CLEAN_ENV, REPO, run
from support.builds import alone

#: Two seconds: on a busy machine each phase of those that do not hang takes a part of one.
CONFTEST = """
from support import parallel
from support.bound import Bound

def pytest_addoption(parser):
    parallel.add_option(parser)

def pytest_configure(config):
    config.pluginmanager.register(Bound(2, 60))
    parallel.register(config)
"""
#: One file each for those that wait, so that they do at the same time.
TESTS = {
    "setup": "@pytest.fixture\ndef stuck(): signal.pause()\ndef test_setup(cleaned, stuck): pass",
    "call": "def test_call(): signal.pause()",
    "teardown": """
@pytest.fixture
def stuck():
    yield
    signal.pause()
def test_teardown(cleaned, stuck): pass
def test_last(): pass
""",
    "deaf": """
@pytest.mark.nightly
def test_long():
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
def test_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.pause()
def test_after(): pass
""",
}
HEAD = """
import signal
import pytest

@pytest.fixture
def cleaned(request):
    yield
    open(request.node.name, "w").close()

"""


def test_no_phase_hangs_a_run(scratch: str) -> None:
    files = {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\nmarkers = nightly\n"}
    files.update({f"test_{name}.py": HEAD + text for name, text in TESTS.items()})
    for name, text in files.items():
        with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
            file.write(text)
    env = {**CLEAN_ENV, "PYTHONPATH": os.path.join(REPO, "tests"), "COLUMNS": "200"}
    command = (sys.executable, "-m", "pytest", "--processes=4", "-rA", "-p", "no:cacheprovider", scratch)
    done = run(*command, check=False, env=env, cwd=scratch)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    ends = sorted(re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)(?: - (.*))?$", done.stdout, re.MULTILINE))
    assert ends == [
        ("ERROR", "test_setup", "Failed: the set-up took longer than 2 s"),
        ("ERROR", "test_teardown", "Failed: the tear-down took longer than 2 s"),
        ("FAILED", "test_call", "Failed: the call took longer than 2 s"),
        ("FAILED", "test_deaf", "its process ended meanwhile"),
        ("PASSED", "test_after", ""),
        ("PASSED", "test_last", ""),
        ("PASSED", "test_long", ""),
        ("PASSED", "test_teardown", ""),
    ], said
    assert {"test_setup", "test_teardown"} <= set(os.listdir(scratch))  # cleaned
    assert re.search(r"line \d+ in test_deaf", done.stderr), said


def test_what_is_built_counts_for_no_test() -> None:
    """Every process of tests waits for the first one that wants it."""
    with alone():
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0

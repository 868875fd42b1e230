"""Files of tests that run in several processes: what fails is told by its name, and all else runs."""

from __future__ import annotations

import os
import re
import sys

from support import CLEAN_ENV, REPO, run

CONFTEST = """
import os
import pytest
from support import parallel

def pytest_addoption(parser):
    parallel.add_option(parser)

def pytest_configure(config):
    parallel.register(config, ("test_first.py",), lambda name: False)

@pytest.fixture(scope="session")
def process():
    open(f"began-{os.getpid()}", "w").close()
    yield os.getpid()
    os.rename(f"began-{os.getpid()}", f"ended-{os.getpid()}")
"""


FILES = {
    "conftest.py": CONFTEST,
    "test_broken.py": "import nothing_of_this_name",
    "test_ends.py": """
import os
def test_ends(): os._exit(0)
def test_chosen(): pass
""",
    "test_first.py": """
import os
import pytest
def test_chosen(process): assert process == os.getpid()
def test_false(): assert False, "never"
@pytest.fixture
def bad():
    yield
    raise ValueError("late")
def test_torn(bad): print("shown")
""",
    "test_last.py": """
import os
def test_chosen(process): assert process == os.getpid()
""",
}


def outcome(scratch: str, *words: str) -> tuple[int, list[str], str]:
    """The exit code, what became of each test, and all that was said."""
    for name, text in FILES.items():
        with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
            file.write(text)
    env = {**CLEAN_ENV, "PYTHONPATH": os.path.join(REPO, "tests"), "COLUMNS": "200"}
    command = (sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *words, ".")
    done = run(*command, check=False, env=env, cwd=scratch)
    lines = re.findall(r"^(?:PASSED|FAILED|ERROR) \S+(?: - \w+: .*| - its .*)?", done.stdout, re.MULTILINE)
    return done.returncode, sorted(lines), done.stdout + done.stderr


def test_each_is_told_by_its_name(scratch: str) -> None:
    code, lines, said = outcome(scratch, "--processes=2")
    assert (code, lines) == (
        1,
        [
            "ERROR test_broken.py",
            "ERROR test_first.py::test_torn - ValueError: late",
            "FAILED test_ends.py::test_ends - its process ended meanwhile",
            "FAILED test_first.py::test_false - AssertionError: never",
            "PASSED test_ends.py::test_chosen",
            "PASSED test_first.py::test_chosen",
            "PASSED test_first.py::test_torn",
            "PASSED test_last.py::test_chosen",
        ],
    ), said
    assert "shown" in said and "No module named 'nothing_of_this_name'" in said, said
    left = [name[:5] for name in os.listdir(scratch) if name.startswith(("began-", "ended-"))]
    assert "ended" in left and left.count("began") <= 1, said  # that of the process that ended

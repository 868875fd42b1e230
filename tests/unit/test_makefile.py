"""The Makefile: paths with spaces stay whole, and who lacks rights is told before anything is built."""

from __future__ import annotations

import os
import re
import shlex
import shutil

import pytest
from support import REPO, run

NOBODY = 65534
#: Made of nothing but what they are given, or nothing at all.
APART = {"help", "setup", "clean", "uninstall"}
MAKE = ("make", "--no-print-directory")


@pytest.fixture
def copy(scratch: str) -> str:
    """The Makefile and what its rules are about, under a path with spaces."""
    target = os.path.join(scratch, "left one/left two")
    for name in ("packaging", "native", "tests/fuzz", "tests/native"):
        shutil.copytree(os.path.join(REPO, name), os.path.join(target, name))
    shutil.copy(os.path.join(REPO, "Makefile"), target)
    return target


def goals() -> list[str]:
    with open(os.path.join(REPO, "Makefile"), encoding="utf-8") as file:
        (names,) = re.findall(r"^\.PHONY: (.*)", file.read(), re.MULTILINE)
    return sorted(set(names.split()) - APART)


def test_help_fits_a_terminal() -> None:
    """Each goal that has a description, in lines of at most 80 columns."""
    lines = run(*MAKE, "-C", REPO, "help").stdout.splitlines()
    shown = {line.split()[0] for line in lines if line[0] != " "}
    assert {"build", "test", "bench", *APART} <= shown
    assert max(map(len, lines)) <= 80


def test_a_path_with_spaces_is_one_word(copy: str) -> None:
    """In every command of every goal, those of the Makefiles that it calls included."""
    prefix = os.path.join(os.path.dirname(copy), "left three")
    done = run(*MAKE, "-n", "-C", copy, *goals(), f"PREFIX={prefix}", f"DESTDIR={copy}/left four")
    text = done.stdout.replace("\\\n", " ")
    broken = re.compile(r"(^|/)left$|^(one|two|three|four)(/|$)")
    whole = 0
    for line in text.splitlines():
        words = shlex.split(line)
        assert not [word for word in words if broken.search(word)], line
        whole += sum(copy in word or prefix in word for word in words)
    assert whole >= 5, text


def test_who_lacks_rights_is_told_at_once(copy: str) -> None:
    for path, names, _ in os.walk(os.path.dirname(copy)):
        for name in names:
            os.chmod(os.path.join(path, name), 0o777)
    for goal in ("demo", "test", "faults", "install", "uninstall"):
        done = run(*MAKE, "-C", copy, goal, check=False, user=NOBODY, group=NOBODY, extra_groups=[])
        assert done.returncode == 2 and not done.stdout
        assert f"make {goal} " in done.stderr and "run it with sudo" in done.stderr
    assert not os.path.exists(os.path.join(copy, "build"))


def test_install_asks_for_rights_where_it_writes(copy: str, scratch: str) -> None:
    """Not for root's: anybody may install into a directory of their own."""
    own = os.path.join(scratch, "own")
    os.mkdir(own)
    os.chown(own, NOBODY, NOBODY)
    words = ("-C", copy, "-n", "uninstall", f"DESTDIR={own}", "PREFIX=/usr")
    assert "uninstall.py" in run(*MAKE, *words, user=NOBODY, group=NOBODY, extra_groups=[]).stdout


def test_root_tests_only_its_own_code(copy: str) -> None:
    os.chown(os.path.dirname(copy), NOBODY, NOBODY)
    done = run(*MAKE, "-C", copy, "test", check=False)
    assert done.returncode == 2 and f"others can change {os.path.dirname(copy)}: " in done.stderr
    run(*MAKE, "-n", "-C", copy, "demo")

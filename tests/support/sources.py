"""The files of the project, for tests that read it."""

from __future__ import annotations

import os

from . import REPO, run


def sources(*suffixes: str) -> list[str]:
    """Relative paths of the files that are or could be committed, of those endings."""
    listed = run("git", "-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
    names = [name for name in listed.split("\0") if name.endswith(suffixes or ("",)) and name]
    return sorted(name for name in names if os.path.isfile(os.path.join(REPO, name)))


def read(name: str) -> str:
    """The text of one of them; the few that are not text are read as Latin-1."""
    with open(os.path.join(REPO, name), "rb") as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")

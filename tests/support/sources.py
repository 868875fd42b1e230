"""The files of the project, for tests that read it."""

from __future__ import annotations

import ast
import functools
import os

from . import REPO, run


@functools.cache
def _listed() -> tuple[str, ...]:
    listed = run("git", "-C", REPO, "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
    names = filter(None, listed.split("\0"))
    return tuple(sorted(name for name in names if os.path.isfile(os.path.join(REPO, name))))


def sources(*suffixes: str) -> list[str]:
    """Relative paths of the files that are or could be committed, of those endings."""
    return [name for name in _listed() if name.endswith(suffixes or ("",))]


def read(name: str) -> str:
    """The text of one of them; the few that are not text are read as Latin-1."""
    with open(os.path.join(REPO, name), "rb") as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


@functools.cache
def tree(name: str) -> ast.Module:
    """What Python makes of one of them. Tests share it and do not change it."""
    return ast.parse(read(name))


def circles(parts: dict[str, set[str]]) -> str:
    """The parts that import one another, directly or not."""
    while True:
        kept = {part for part in parts if parts[part] & parts.keys()}
        kept &= {part for others in parts.values() for part in others}
        if kept == parts.keys():
            return " ".join(sorted(kept))
        parts = {part: others for part, others in parts.items() if part in kept}

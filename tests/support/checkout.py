"""A copy of this checkout without what was built in it."""

from __future__ import annotations

import shutil

from . import REPO

_MADE = shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.so", "*.egg-info")


def _ignored(directory: str, names: list[str]) -> set[str]:
    """`build` at the top alone: a package of nvc has that name, too."""
    return {*_MADE(directory, names), *({"build"} if directory == REPO else ())}


def copy_checkout(target: str) -> None:
    """Copy it to a directory that does not exist."""
    shutil.copytree(REPO, target, ignore=_ignored, symlinks=True)

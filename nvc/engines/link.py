"""A link under NVIDIA's name to nvc-hook. What is there and leads elsewhere is somebody else's and stays."""

from __future__ import annotations

import os

from nvc.engines import EngineError


def state(path: str, target: str) -> str:
    """`missing` or `ours`. Raises EngineError if something else is there."""
    try:
        text = os.readlink(path)
    except FileNotFoundError:
        return "missing"
    except OSError:  # not a link
        text = ""
    if text and (text == target or os.path.basename(text) == os.path.basename(target)):
        return "ours"
    raise EngineError(
        "make link", path, f"is there already{' and leads to ' + text if text else ''}",
        "choose another directory of dockerd's PATH, one that comes before it",
    )  # fmt: skip


def make(path: str, target: str) -> None:
    """Make the link. Raises EngineError."""
    if state(path, target) == "ours":
        return
    try:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.symlink(target, path)
    except OSError as error:
        raise EngineError.of("make link", path, error) from None


def remove(path: str, target: str) -> bool:
    """Remove the link if it is ours; whether it was. Raises EngineError."""
    if not os.path.islink(path) or os.path.basename(os.readlink(path)) != os.path.basename(target):
        return False
    try:
        os.unlink(path)
    except OSError as error:
        raise EngineError.of("remove link", path, error) from None
    return True

"""A link under NVIDIA's name to nvc-hook. What is there and leads elsewhere is somebody else's and stays."""

from __future__ import annotations

import os

from nvc.base.rundir import belongs_to_us, is_ours_alone
from nvc.frontends.engines import RUNTIME, EngineError, ask

MAX_LINKS = 40  # as the kernel follows


def state(path: str, target: str) -> str:
    """`missing` or `ours`. Raises EngineError if something else is there, or others can write in the directory."""
    directory = os.path.dirname(path)
    if changeable(directory):
        raise EngineError(
            "make link", directory, "others than root can write there, and root would run what they put there",
            "choose another directory of dockerd's PATH, or `chown root` and `chmod go-w` this one",
        )  # fmt: skip
    if not os.path.lexists(path):
        return "missing"
    if leads_to(path, target):
        return "ours"
    text = os.readlink(path) if os.path.islink(path) else ""
    raise EngineError(
        "make link", path, f"already exists{' and leads to ' + text if text else ''}",
        "choose another directory of dockerd's PATH, one that comes before it",
    )  # fmt: skip


def leads_to(path: str, target: str) -> bool:
    """Whether `path` is a link to a file with the name of `target`, directly or over other links (alternatives).

    Root runs that file: where others can change it, a link or a directory, it is not ours, whatever its name.
    """
    for _ in range(MAX_LINKS):
        if not os.path.islink(path) or changeable(os.path.dirname(path)) or not belongs_to_us(os.lstat(path)):
            return False
        path = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.basename(path) == os.path.basename(target):
            return not (changeable(os.path.dirname(path)) or changeable(path))
    return False


def changeable(path: str) -> bool:
    """Whether others than root and this user can change a file, or what is in a directory. One may be missing."""
    try:
        return not is_ours_alone(os.stat(path))
    except FileNotFoundError:
        return False


def removable(path: str, target: str) -> bool:
    """Whether `path` leads directly to a file with the name of `target`. A package's alternative does not."""
    return os.path.islink(path) and os.path.basename(os.readlink(path)) == os.path.basename(target)


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
    if not removable(path, target):
        return False
    try:
        os.unlink(path)
    except OSError as error:
        raise EngineError.of("remove link", path, error) from None
    return True


def refuse_foreign(where: str, name: str, program: object) -> None:
    """Raise EngineError if `program`, registered as `name`, is not ours: nothing of NVIDIA's is overwritten.

    A link under one of NVIDIA's names that leads to ours is.
    """
    text = program[0] if isinstance(program, list) and program else program
    if not isinstance(text, str) or not text:
        return
    if text.rsplit("/", 1)[-1] != RUNTIME and not leads_to(text if "/" in text else ask.on_path(text), RUNTIME):
        raise EngineError(
            "register runtime", where, f"{name} already exists: {text}",
            "choose another --runtime-name, or remove it with the tool that made it",
        )  # fmt: skip

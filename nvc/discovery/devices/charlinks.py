"""Links in /dev/char by which systemd and runc find device nodes of the driver: MAJOR:MINOR leads to a node."""

from __future__ import annotations

import os

from nvc.base.errors import InitializationError
from nvc.base.types import Iterable
from nvc.model.facts import DeviceNode


def links(root: str, nodes: Iterable[DeviceNode]) -> list[tuple[str, str]]:
    """The name and the target of the link to each node below the directory `root`."""
    return [(f"{node.major}:{node.minor}", root.rstrip("/") + node.path) for node in nodes]


def is_there(directory: str, name: str) -> bool:
    """Whether there is anything of that name."""
    return os.path.lexists(f"{directory}/{name}")


def problem(directory: str, name: str, target: str) -> str:
    """What is wrong with the link that is there; "" where there is none."""
    path = f"{directory}/{name}"
    if not is_there(directory, name) or os.path.realpath(path) == os.path.realpath(target):
        return ""
    return f"{path} is there, leads to {os.path.realpath(path)} and not to {target}; it stays"


def make(directory: str, name: str, target: str) -> None:
    """Make a link, and its directory. Raises InitializationError."""
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
        os.symlink(target, f"{directory}/{name}")
    except OSError as error:
        raise InitializationError.of("make link", f"{directory}/{name}", error) from None

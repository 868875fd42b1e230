"""What hooks have to know of each other: one container has hooks of several devices, and of the document."""

from __future__ import annotations

from nvc.base.errors import ContainerError
from nvc.base.types import Any
from nvc.frontends.cdi.hookspec import OPTION, STEP

_HOOKS_MAX = 4096


def slices_of(document: dict[str, Any]) -> list[str]:
    """The slices that hooks of the bundle are to make, as their arguments. Raises ContainerError."""
    hooks = document.get("hooks")
    entries = hooks.get("createContainer") if type(hooks) is dict else None
    if entries is None:
        return []
    if type(entries) is not list or len(entries) > _HOOKS_MAX:
        raise malformed("hooks.createContainer is not a list, or too long a one")
    found = []
    for entry in entries:
        words = entry.get("args") if type(entry) is dict else None
        if words is None:
            continue
        if type(words) is not list or not all(type(word) is str for word in words):
            raise malformed("hooks.createContainer has an entry whose args are not strings")
        at = False
        for word in words:
            if not word.startswith("-"):
                at = word == STEP
            elif at and word.startswith(f"--{OPTION}="):
                found.append(word.partition("=")[2])
    return found


def malformed(cause: str) -> ContainerError:
    """The error for a configuration that is not as the specification says."""
    return ContainerError("read bundle", "config.json", cause)

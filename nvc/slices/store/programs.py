"""Names of slices of programs without a container."""

from __future__ import annotations

import os

from nvc.base.errors import InputError
from nvc.base.files import closing
from nvc.discovery.containers.files import text
from nvc.kernel import Kernel
from nvc.model.slices.entry import read_entry, text_of, write_about
from nvc.slices.store import registry
from nvc.slices.store.status import statuses

NAME_MAX = 63
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_IN_NAME = _LETTERS | frozenset("_.-")


def check_name(name: str) -> None:
    """Check a name for a slice. Raises InputError; a number is refused, since it would mean a process."""
    sound = name[:1] in _LETTERS and name and _IN_NAME.issuperset(name) and not name.isdigit()
    if not sound or len(name) > NAME_MAX:
        cause = f"want up to {NAME_MAX} letters, digits, '_', '.' and '-', not a number"
        raise InputError("--name", name, cause, "begin with a letter or a digit")


def claim(kernel: Kernel, key: str, name: str, command: str) -> None:
    """Name the entry with this key `name`, or else after its command, with a number if that name is taken.

    Raises InputError if a living slice has the name, RegistryError, OSError.
    """
    with closing(registry.locked(kernel)):
        path = f"{registry.base_directory()}/{key}"
        others = [one for one in statuses(kernel, locked=True)[0] if one.alive and one.entry.key != key]
        taken = {alias for one in others for alias in one.aliases}
        if name in taken:
            cause = "another slice is called so"
            raise InputError("--name", name, cause, "choose another name; `nvc-cli vgpu ls` lists them")
        entry = read_entry(path)
        write_about(path, text_of(entry.replace(program=name or _free(command, taken))))


def _free(command: str, taken: set[str]) -> str:
    base = text(os.path.basename(command))[:NAME_MAX] or "program"
    number, found = 1, base
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    return found

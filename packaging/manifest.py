"""What `make install` put below PREFIX beside lib/nvc, which is all its own: a name a line, directories end in `/`.

The list is in lib/nvc/manifest. It has every file before it is there, and directories only if they were not there
before: whoever removes what is listed removes nothing of others, also after an installation that did not end.
"""

from __future__ import annotations

import contextlib
import os

NAME = "manifest"


def read(prefix: str) -> list[str]:
    """What is listed. Raises FileNotFoundError where nothing was installed."""
    with open(os.path.join(prefix, "lib/nvc", NAME), encoding="utf-8") as file:
        return file.read().splitlines()


def begin(prefix: str, names: list[str]) -> None:
    """List these files, before they are installed, beside those of an installation that they replace."""
    earlier = _earlier(prefix)
    missing = {directory for name in [*names, f"lib/nvc/{NAME}"] for directory in _above(name)}
    missing = {name for name in missing if not os.path.isdir(os.path.join(prefix, name))}
    os.makedirs(os.path.join(prefix, "lib/nvc"), exist_ok=True)
    _write(prefix, {*earlier, *names, *missing})


def finish(prefix: str, names: list[str]) -> None:
    """Remove the files of an earlier installation that this one does not have."""
    listed = set(read(prefix))
    directories = {name for name in listed if name.endswith("/")}
    remove(prefix, sorted(listed - directories - set(names)))
    _write(prefix, {*directories, *names})


def remove(prefix: str, names: list[str]) -> None:
    """Remove these files, then these directories if they are empty.

    A file of NVIDIA's that has taken the place of a link stays.
    """
    for name in names:
        link = not name.startswith("bin/nvidia-") or os.path.islink(os.path.join(prefix, name))
        if link and not name.endswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(prefix, name))
    for name in sorted(names, reverse=True):
        if name.endswith("/"):
            with contextlib.suppress(OSError):  # something of others is in it
                os.rmdir(os.path.normpath(os.path.join(prefix, name)))


def _earlier(prefix: str) -> list[str]:
    try:
        return read(prefix)
    except FileNotFoundError:
        return []


def _above(name: str) -> list[str]:
    """The directories that a file is in: `share/man/`, `share/` and the prefix itself, `./`."""
    parts = name.split("/")[:-1]
    return ["./", *("/".join(parts[:count]) + "/" for count in range(1, len(parts) + 1))]


def _write(prefix: str, names: set[str]) -> None:
    path = os.path.join(prefix, "lib/nvc", NAME)
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write("".join(f"{name}\n" for name in sorted(names)))
    os.rename(path + ".new", path)

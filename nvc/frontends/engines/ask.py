"""What an installed engine says of itself: its version, and the configuration that it really uses."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from typing import Any

from nvc.base.value import Value
from nvc.frontends.engines import EngineError
from nvc.frontends.engines.files import tomltext
from nvc.model.request import DriverOptions

#: Where they are, and where dockerd looks for other programs: the PATH of a systemd service.
PATH = DriverOptions().search_path
DIRECTORIES = tuple(PATH.split(":"))
SECONDS = 30
MAX_OUTPUT = 4 << 20  # bytes


class ContainerdState(Value):
    """What containerd says of itself. `effective` is its `config dump`, {} where there is no containerd."""

    version: tuple[int, ...] = ()
    effective: dict[str, Any] = {}


def on_path(name: str) -> str:
    """Where dockerd finds a program, "" where it does not. A link that leads nowhere is found, too."""
    places = [os.path.join(directory, name) for directory in DIRECTORIES]
    return next(filter(os.path.lexists, places), "")


def version(program: str) -> tuple[int, ...]:
    """The version that `PROGRAM --version` prints, () where it is not installed or prints none."""
    found = shutil.which(program, path=PATH)
    if found is None:
        return ()
    done = _run([found, "--version"])
    match = re.search(r"\bv?([0-9]{1,4}(?:\.[0-9]{1,4}){1,2})", done.stdout[:1024])
    return tuple(map(int, match[1].split("."))) if match else ()


def containerd(path: str, program: str = "") -> ContainerdState:
    """containerd's own view, of the configuration in `path` if that exists. Raises EngineError.

    `program` is the path of containerd; "": the one of this host, if there is one.
    """
    name = program or "containerd"
    if shutil.which(name, path=PATH) is None:
        return ContainerdState()
    return ContainerdState(version(name), effective(path, program=program))


def effective(path: str, text: str | None = None, drop_in: str = "", program: str = "") -> dict[str, Any]:
    """What containerd makes of the configuration file `path`, or of `text` in its place.

    `drop_in` is the content of one more file that `text` imports; `program` is as above. Raises EngineError.
    """
    program = shutil.which(program or "containerd", path=PATH) or ""
    if not program:
        return {}
    if text is None:
        if not os.path.exists(path):
            return _dump([program, "config", "default"], path)
        return _dump([program, "--config", path, "config", "dump"], path)
    # `imports` are relative to the file's directory.
    directory = os.path.dirname(path)
    where = directory if os.path.isdir(directory) else None
    with contextlib.ExitStack() as files:

        def written(content: str) -> str:
            new = tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix=".nvc-", suffix=".toml", dir=where)
            file = files.enter_context(new)
            file.write(content)
            file.flush()
            return file.name

        if drop_in:
            named = tomltext.load(text, path).get("imports") or []
            text = tomltext.assign(text, path, ("imports",), [*named, written(drop_in)])
        return _dump([program, "--config", written(text), "config", "dump"], path)


def _dump(command: list[str], path: str) -> dict[str, Any]:
    done = _run(command)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise EngineError("ask containerd", path, lines[-1])
    return dict(tomltext.load(done.stdout[:MAX_OUTPUT], "the output of `containerd config dump`"))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=SECONDS, env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError("ask engine", command[0], error, f"run it yourself: `{' '.join(command)}`") from None

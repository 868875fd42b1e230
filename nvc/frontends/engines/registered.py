"""What container engines are told to run: the runtimes and hook directories of their files, whoever wrote them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

from nvc.frontends.engines import EngineError, containerd, crio, docker, podman
from nvc.frontends.engines.change import document_of, value_at

_FILES_MAX = 64


@dataclass(frozen=True)
class Runtime:
    """One runtime that a file names."""

    file: str
    name: str
    programs: tuple[str, ...]  # the engine runs the first that is there


@dataclass(frozen=True)
class Registered:
    """What the files of an engine say."""

    runtimes: tuple[Runtime, ...]
    default: str  # name of the default runtime, "" where none is named
    file: str  # that names it
    hook_directories: tuple[str, ...]
    problems: tuple[EngineError, ...]  # files that cannot be read


@dataclass(frozen=True)
class _Keys:
    """Where a file has what is looked for."""

    tables: tuple[tuple[str, ...], ...]  # with `runtimes`, `hooks_dir` and the default's name
    default: str
    program: tuple[str, ...]  # below a runtime's own key


_KEYS = {
    "docker": _Keys(((),), "default-runtime", ("path",)),
    "containerd": _Keys(
        tuple(("plugins", plugin, "containerd") for plugin in containerd.PLUGINS.values()),
        "default_runtime_name",
        ("options", "BinaryName"),
    ),
    "crio": _Keys((("crio", "runtime"),), "default_runtime", ("runtime_path",)),
    "podman": _Keys((("engine",),), "runtime", ()),
}


def registered(engine: str) -> Registered:
    """What one of ENGINES is told. Never raises: what cannot be read is among the problems."""
    problems: list[EngineError] = []
    documents = _documents(engine, problems)
    default, file = "", documents[0][0]
    directories: list[str] = []
    runtimes = []
    keys = _KEYS[engine]
    for place in keys.tables:
        for path, document in documents:
            table = value_at(document, place)
            named = value_at(table, (keys.default,))
            if isinstance(named, str) and named:
                default, file = named, path
            directories += _texts(value_at(table, ("hooks_dir",)))
            entries = value_at(table, ("runtimes",))
            for name, entry in entries.items() if isinstance(entries, dict) else ():
                programs = _texts(value_at(entry, keys.program))
                if programs:
                    runtimes.append(Runtime(path, name, tuple(programs)))
    return Registered(tuple(runtimes), default, file, tuple(directories), tuple(problems))


def _documents(engine: str, problems: list[EngineError]) -> list[tuple[str, Any]]:
    """Each file that the engine reads, in its order, and what it says."""
    if engine == "docker":
        return [(docker.CONFIG, _document(docker.CONFIG, "json", problems))]
    if engine == "containerd":
        main, document = containerd.CONFIG, _document(containerd.CONFIG, "toml", problems)
        patterns = [f"{os.path.dirname(main)}/{text}" if text[0] != "/" else text
                    for text in _texts(value_at(document, ("imports",)))]  # fmt: skip
        others = [path for pattern in patterns for path in sorted(glob.glob(pattern))[:_FILES_MAX]]
        return [(main, document), *((path, _document(path, "toml", problems)) for path in others)]
    main, pattern = {
        "crio": (crio.MAIN, f"{crio.DROP_INS}/*"),
        "podman": (podman.MAIN, f"{os.path.dirname(podman.CONFIG)}/*.conf"),
    }[engine]
    paths = [main, *sorted(glob.glob(pattern))[:_FILES_MAX]]
    return [(path, _document(path, "toml", problems)) for path in paths]


def _document(path: str, form: str, problems: list[EngineError]) -> Any:
    try:
        return document_of(path, form)
    except EngineError as error:
        problems.append(error)
        return {}


def _texts(value: Any) -> list[str]:
    """The strings of a list, or one that stands alone."""
    found = value if isinstance(value, list) else [value]
    return [item for item in found if isinstance(item, str) and item]

"""The engines, and what they are told to run: runtimes and hook directories of their files, whoever wrote them."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import Any

from nvc.frontends.engines import Engine, EngineError, containerd, crio, docker, podman
from nvc.frontends.engines.files.change import document_of, value_at

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


#: Every engine that nvc can be registered with.
ENGINES = {one.name: one for one in (docker.ENGINE, containerd.ENGINE, crio.ENGINE, podman.ENGINE)}


def having(option: str) -> tuple[str, ...]:
    """The engines for which a field of Wanted is."""
    return tuple(name for name in reversed(ENGINES) if option in ENGINES[name].options)


def registered(name: str) -> Registered:
    """What one of ENGINES is told. Never raises: what cannot be read is among the problems."""
    engine = ENGINES[name]
    problems: list[EngineError] = []
    documents = _documents(engine, problems)
    default, file = "", documents[0][0]
    directories: list[str] = []
    runtimes = []
    for place in engine.tables:
        for path, document in documents:
            table = value_at(document, place)
            named = value_at(table, (engine.default,))
            if isinstance(named, str) and named:
                default, file = named, path
            directories += _texts(value_at(table, ("hooks_dir",)))
            entries = value_at(table, ("runtimes",))
            for runtime, entry in entries.items() if isinstance(entries, dict) else ():
                programs = _texts(value_at(entry, engine.program))
                if programs:
                    runtimes.append(Runtime(path, runtime, tuple(programs)))
    return Registered(tuple(runtimes), default, file, tuple(directories), tuple(problems))


def _documents(engine: Engine, problems: list[EngineError]) -> list[tuple[str, Any]]:
    """Each file that the engine reads, in its order, and what it says."""
    document = _document(engine.file, engine.form, problems)
    paths = [path for pattern in engine.others(document) for path in sorted(glob.glob(pattern))[:_FILES_MAX]]
    return [(engine.file, document), *((path, _document(path, engine.form, problems)) for path in paths)]


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

"""Registering nvc with container engines: which keys of which file, how they are set, and how that is undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvc.base.errors import NvcError
from nvc.base.value import Value

RUNTIME = "nvc-runtime"


class EngineError(
    NvcError, code="NVC-1901", stage="engine", doctor="engines", hint="correct it; it was left as it is"
):
    """A configuration file cannot be read, understood or written, or belongs to somebody else."""


class Wanted(Value):
    """What the caller asks for."""

    runtime_name: str
    runtime_path: str
    hook_path: str  # of nvc-hook
    default: bool = False
    cdi: bool = False
    config: str = ""  # in place of the engine's own file
    hook_dir: str = ""  # register the hook there, and no runtime
    hook_link: str = ""  # docker: a directory for a link under NVIDIA's name
    drop_in: str = ""  # containerd: in place of the usual one
    no_drop_in: bool = False  # containerd: into the file itself


class Key(Value):
    """One key of a document: set, or with `append` a value that its list must have."""

    path: tuple[str, ...]
    value: Any
    append: bool = False


class FileEdit(Value):
    """Keys to set in one file; with `content` the whole file, which is then nobody else's."""

    path: str
    form: str  # json or toml
    keys: tuple[Key, ...] = ()
    content: str = ""


class Registration(Value):
    """Everything to be done for one engine. `advice` is for the user, who restarts the engine."""

    edits: tuple[FileEdit, ...]
    advice: tuple[str, ...] = ()
    link: tuple[str, str] = ("", "")  # path of a link and what it leads to


class EngineFiles(Value):
    """Where an engine's registration may have left something; `--remove` looks at each."""

    paths: tuple[tuple[str, str], ...]  # path and form
    link: str = ""
    advice: tuple[str, ...] = ()  # for the user who removes them


class Engine(Value):
    """A container engine, as its file of this package describes it; ENGINES in registered.py has all."""

    name: str
    checked: str  # what the doctor looks at, with the engine's name for people
    file: str  # its configuration, and the form of that
    form: str
    others: Callable[[Any], tuple[str, ...]]  # by the content of that: patterns of the files that it reads next
    tables: tuple[tuple[str, ...], ...]  # of a file: those with `runtimes`, `hooks_dir` and the default's name
    default: str  # the key of that name
    program: tuple[str, ...]  # below a runtime's own key
    files: Callable[[Wanted], EngineFiles]
    #: Raises EngineError. The text is a program to ask in place of the engine of this host, or "".
    registration: Callable[[Wanted, str], Registration]
    options: tuple[str, ...] = ()  # fields of Wanted that not every engine has
    #: Raises EngineError if it would not use files with these contents, by path.
    check: Callable[[Wanted, dict[str, str], str], None] = lambda *_: None

"""Registering nvc with container engines: which keys of which file, how they are set, and how that is undone."""

from __future__ import annotations

from typing import Any

from nvc.base.errors import NvcError
from nvc.base.value import Value

ENGINES = ("docker", "containerd", "crio", "podman")
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


def refuse_foreign(where: str, name: str, program: object) -> None:
    """Raise EngineError if `program`, registered as `name`, is not ours: nothing of NVIDIA's is overwritten.

    A link under one of NVIDIA's names that leads to ours is.
    """
    from nvc.frontends.engines.docker import on_path
    from nvc.frontends.engines.link import leads_to

    text = program[0] if isinstance(program, list) and program else program
    if not isinstance(text, str) or not text:
        return
    if text.rsplit("/", 1)[-1] != RUNTIME and not leads_to(text if "/" in text else on_path(text), RUNTIME):
        raise EngineError(
            "register runtime", where, f"{name} already exists: {text}",
            "choose another --runtime-name, or remove it with the tool that made it",
        )  # fmt: skip

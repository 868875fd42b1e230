"""CRI-O: a drop-in of crio.conf for the runtime, or a file of hooks.d for the hook."""

from __future__ import annotations

import os
from typing import Any

from nvc.frontends.engines import Engine, FileEdit, Key, Registration, Wanted, hooksd, link
from nvc.frontends.engines.files.change import document_of, value_at

MAIN = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
CONFIG = f"{DROP_INS}/99-nvc.conf"
#: Of the default runtime's table, what a runtime that stands before it needs as well.
COPIED = (
    "runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations",
    "privileged_without_host_devices",
)  # fmt: skip
RELOAD = (
    "CRI-O rereads runtimes with: systemctl reload crio; after a change of hooks: systemctl restart crio"
)
#: A reload reads the directory of drop-ins only where it was there when CRI-O started.
RESTART = "restart CRI-O, whose reload does not see a new directory of drop-ins: systemctl restart crio"


def registration(wanted: Wanted) -> Registration:
    """The keys of crio.conf, and the hook's file. Raises EngineError."""
    path, name = wanted.config or CONFIG, wanted.runtime_name
    documents = _documents(path)
    advice = [RELOAD if os.path.isdir(os.path.dirname(path)) else RESTART]
    if wanted.cdi:
        advice.append("CRI-O has CDI always on: `nvc-cli cdi generate` writes what it reads")
    if wanted.hook_dir:
        keys = ("crio", "runtime", "hooks_dir")
        return Registration(hooksd.edits(wanted, path, keys, _last(documents, keys[-1])), tuple(advice))
    for file, document in documents:
        there = value_at(document, ("crio", "runtime", "runtimes", name, "runtime_path"))
        link.refuse_foreign(file, f"crio.runtime.runtimes.{name}", there)
    base = _last(documents, "default_runtime") or "runc"
    table: dict[str, Any] = {"runtime_path": wanted.runtime_path, "runtime_type": "oci"}
    for copied in COPIED if base != name else ():
        value = _last(documents, "runtimes", base, copied)
        if value:
            table[copied] = value
    made = Key(("crio", "runtime", "runtimes", name), table)
    if base == name:  # registered before, as the default: what was copied then stays
        made = Key((*made.path, "runtime_path"), wanted.runtime_path)
    default = (Key(("crio", "runtime", "default_runtime"), name),) if wanted.default else ()
    return Registration((FileEdit(path, "toml", (*default, made)),), tuple(advice))


def _documents(path: str) -> list[tuple[str, Any]]:
    """Every file that CRI-O would read, in its order; `path` alone when that is elsewhere."""
    if os.path.dirname(path) != DROP_INS and path != MAIN:
        return [(path, document_of(path, "toml"))]
    names = sorted(os.listdir(DROP_INS)) if os.path.isdir(DROP_INS) else []
    paths = [MAIN, *(f"{DROP_INS}/{name}" for name in names)]
    return [(file, document_of(file, "toml")) for file in paths if os.path.isfile(file)]


def _last(documents: list[tuple[str, Any]], *keys: str) -> Any:
    """The value of a key of [crio.runtime]: the last file that has it decides."""
    for _, document in reversed(documents):
        value = value_at(document, ("crio", "runtime", *keys))
        if value is not None:
            return value
    return None


ENGINE = Engine(
    "crio", "CRI-O: runtimes of crio.conf and its drop-ins, two toolkits",
    MAIN, "toml", lambda _: (f"{DROP_INS}/*",), (("crio", "runtime"),), "default_runtime", ("runtime_path",),
    lambda wanted: hooksd.files(wanted, CONFIG).replace(advice=(RELOAD,)),
    lambda wanted, _: registration(wanted), ("hook_dir",),
)  # fmt: skip

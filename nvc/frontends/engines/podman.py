"""Podman: a drop-in of containers.conf for the runtime, or a file of hooks.d for the hook."""

from __future__ import annotations

import os

from nvc.frontends.engines import Engine, FileEdit, Key, Registration, Wanted, hooksd, link
from nvc.frontends.engines.files.change import document_of, value_at

MAIN = "/etc/containers/containers.conf"
CONFIG = "/etc/containers/containers.conf.d/50-nvc.conf"


def registration(wanted: Wanted) -> Registration:
    """The keys of containers.conf, and the hook's file. Raises EngineError."""
    path = wanted.config or CONFIG
    advice = ["podman reads its files for each command: nothing is to be restarted"]
    if wanted.cdi:
        advice.append("podman has CDI always on: `nvc-cli cdi generate` writes what it reads")
    if wanted.hook_dir:
        place = ("engine", "hooks_dir")
        there = value_at(document_of(path, "toml"), place) or value_at(document_of(MAIN, "toml"), place)
        return Registration(hooksd.edits(wanted, path, place, there), tuple(advice))
    name = wanted.runtime_name
    keys = [Key(("engine", "runtimes", name), [wanted.runtime_path])]
    for file in (MAIN, path):
        there = value_at(document_of(file, "toml"), ("engine", "runtimes", name))
        link.refuse_foreign(file, f"engine.runtimes.{name}", there)
    if wanted.default:
        keys.insert(0, Key(("engine", "runtime"), name))
    return Registration((FileEdit(path, "toml", tuple(keys)),), tuple(advice))


ENGINE = Engine(
    "podman", "Podman: runtimes of containers.conf and its drop-ins, two toolkits",
    MAIN, "toml", lambda _: (f"{os.path.dirname(CONFIG)}/*.conf",), (("engine",),), "runtime", (),
    lambda wanted: hooksd.files(wanted, CONFIG), lambda wanted, _: registration(wanted), ("hook_dir",),
)  # fmt: skip

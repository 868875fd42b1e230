"""The file of hooks.d (oci-hooks(5)) by which Podman and CRI-O run nvc-hook for every container.

A container that asks for no GPU is left alone by the hook. No condition on variables exists, so `always` it is.
"""

from __future__ import annotations

import os
from typing import Any

from nvc.frontends.engines import EngineError, EngineFiles, FileEdit, Key, Wanted

NAME = "nvc.json"
#: Read without being named anywhere (containers-common).
BUILT_IN = ("/usr/share/containers/oci/hooks.d",)
DEFAULTS = (*BUILT_IN, "/etc/containers/oci/hooks.d")
TEXT = """{{
    "version": "1.0.0",
    "hook": {{
        "path": "{path}",
        "args": ["nvc-hook", "prestart"],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    }},
    "when": {{"always": true}},
    "stages": ["prestart"]
}}
"""


def path_of(directory: str) -> str:
    """Where the file is, in a directory of hooks."""
    return os.path.join(directory, NAME)


def files(wanted: Wanted, config: str) -> EngineFiles:
    """Where a registration is: the file of hooks.d, and the engine's configuration, by default `config`."""
    hooks = ((path_of(wanted.hook_dir), "json"),) if wanted.hook_dir else ()
    return EngineFiles((*hooks, (wanted.config or config, "toml")))


def edits(wanted: Wanted, path: str, keys: tuple[str, ...], there: Any) -> tuple[FileEdit, ...]:
    """The file for `wanted.hook_dir`; and `keys` of the engine's file `path`, unless `there`, its list, has that.

    Raises EngineError.
    """
    if wanted.default:
        raise EngineError(
            "--set-as-default", wanted.hook_dir, "a hook is not a runtime", "leave out one of the two options"
        )
    hook = FileEdit(path_of(wanted.hook_dir), "json", content=TEXT.format(path=wanted.hook_path))
    known = list(there) if isinstance(there, list) else list(BUILT_IN)
    if wanted.hook_dir in known:
        return (hook,)
    return hook, FileEdit(path, "toml", (Key(keys, [*known, wanted.hook_dir]),))

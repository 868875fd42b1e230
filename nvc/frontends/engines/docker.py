"""Docker: /etc/docker/daemon.json, and the name under which dockerd looks for the hook of `--gpus`."""

from __future__ import annotations

import os

from nvc.frontends.engines import (
    Engine,
    EngineError,
    EngineFiles,
    FileEdit,
    Key,
    Registration,
    Wanted,
    ask,
    link,
)
from nvc.frontends.engines.files.change import document_of, value_at

CONFIG = "/etc/docker/daemon.json"
#: dockerd finds this name on its PATH when it starts, or 20.10 to 28 have no `--gpus`.
HOOK_NAME = "nvidia-container-runtime-hook"
#: dockerd 29 gives `--gpus` by CDI where it finds this name and a specification, else by the hook.
CDI_NAME = "nvidia-cdi-hook"
#: What `--gpus` ends with where dockerd finds neither.
NO_VENDOR = "AMD CDI spec not found"
#: What makes that name.
LINK = "run `nvc-cli runtime configure --engine docker --hook-link DIR`"
RESTART = "restart docker: systemctl restart docker"


def files(wanted: Wanted) -> EngineFiles:
    """Where a registration is."""
    link = os.path.join(wanted.hook_link, HOOK_NAME) if wanted.hook_link else ""
    return EngineFiles(((wanted.config or CONFIG, "json"),), link, (RESTART,))


def registration(wanted: Wanted, version: tuple[int, ...]) -> Registration:
    """The keys of daemon.json; `version` is dockerd's, () where it is not known. Raises EngineError."""
    path = wanted.config or CONFIG
    name = wanted.runtime_name
    there = value_at(document_of(path, "json"), ("runtimes", name, "path"))
    link.refuse_foreign(path, f"runtimes.{name}", there)
    keys = [Key(("runtimes", name), {"path": wanted.runtime_path, "runtimeArgs": []})]
    advice = [RESTART]
    if wanted.default:
        keys.append(Key(("default-runtime",), name))
    if wanted.cdi:
        if version and version < (25,):
            cause = f"dockerd {'.'.join(map(str, version))} has no CDI, which needs 25.0"
            raise EngineError("enable CDI", path, cause, f"use `docker run --runtime {name}` or --gpus")
        keys.append(Key(("features", "cdi"), True))
    made = ("", "")
    if wanted.hook_link:
        made = os.path.join(wanted.hook_link, HOOK_NAME), wanted.hook_path
    else:
        advice += _advice_on_gpus(wanted, version)
    return Registration((FileEdit(path, "json", tuple(keys)),), tuple(advice), made)


def _advice_on_gpus(wanted: Wanted, version: tuple[int, ...]) -> list[str]:
    """What `docker run --gpus` still needs; nothing where the hook's name leads to nvc-hook, as in the packages."""
    found = ask.on_path(HOOK_NAME)
    if found and link.leads_to(found, wanted.hook_path):
        return []
    if found:
        text = f"uses {found}, which is not nvc's: {LINK}, earlier on dockerd's PATH"
    elif version >= (29,) and ask.on_path(CDI_NAME):
        text = "uses CDI, and needs its specifications: nvc-cli cdi refresh"
    else:
        text = f"needs {HOOK_NAME} on dockerd's PATH when it starts: {LINK}"
        text += f'; without it, Docker 29 says "{NO_VENDOR}"' if version >= (29,) else ""
    return [f"`docker run --gpus` {text}"]


ENGINE = Engine(
    "docker", "Docker: runtimes of daemon.json, the hook of --gpus, two toolkits",
    CONFIG, "json", lambda _: (), ((),), "default-runtime", ("path",),
    files, lambda wanted, _: registration(wanted, ask.version("dockerd")), ("hook_link",),
)  # fmt: skip

"""containerd: its CRI plugin's table of runtimes, in config.toml itself or in a drop-in.

Facts of its releases, found with 1.6, 2.1 and 2.3: a file without `version` is of version 1. A file that names one
runtime replaces the built-in list, so that `runc` is gone unless it is named too. Before 2.1 a drop-in replaces a
plugin's whole table, from 2.1 on tables are merged: so there the drop-in, here the file itself. From 2.2 on
`config dump` and `config default` show `imports` that the daemon does not follow: only those count that the file
itself names.
"""

from __future__ import annotations

import os
from typing import Any

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
from nvc.frontends.engines.files import place
from nvc.frontends.engines.files.change import document_of, read, text_of, value_at

CONFIG = "/etc/containerd/config.toml"
RESTART = "restart containerd: systemctl restart containerd"
CLASS = "in Kubernetes, a RuntimeClass names it as its handler: "
#: The CRI plugin's name in a file of each version.
PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
SHIM = "io.containerd.runc.v2"


def files(wanted: Wanted) -> EngineFiles:
    """Where a registration is."""
    path = wanted.config or CONFIG
    return EngineFiles(((wanted.drop_in or drop_in(path), "toml"), (path, "toml")), advice=(RESTART,))


def drop_in(path: str) -> str:
    """The drop-in beside a configuration file."""
    return os.path.join(os.path.dirname(path), "conf.d/99-nvc.toml")


def registration(wanted: Wanted, state: ask.ContainerdState) -> Registration:
    """The keys for containerd as it is in `state`. Raises EngineError."""
    path = wanted.config or CONFIG
    document = document_of(path, "toml")
    version = _version(document, state, path)
    merges = version >= 3 and state.version >= (2, 1)
    if wanted.drop_in and not merges:
        raise EngineError(
            "write drop-in", wanted.drop_in, "needs containerd 2.1 and version 3 of its configuration: "
            "in others, a drop-in replaces all that the file says of the plugin", f"have {path} changed instead",
        )  # fmt: skip
    merges = merges and not wanted.no_drop_in
    plugin = ("plugins", PLUGINS[min(version, 3)])
    into = wanted.drop_in or (drop_in(path) if merges else path)
    keys = _runtime_keys(wanted, document, state, plugin, path)
    if not document or merges:
        keys.insert(0, Key(("version",), version))
    edits = [FileEdit(into, "toml", tuple(keys))]
    if merges and not imports(document, path, into):
        pattern = os.path.join(os.path.dirname(into), "*.toml")
        first = [] if document else [Key(("version",), version)]
        edits.append(FileEdit(path, "toml", (*first, Key(("imports",), pattern, append=True))))
    advice = [RESTART, CLASS + wanted.runtime_name]
    disabled = value_at(document, ("disabled_plugins",))
    if isinstance(disabled, list) and {"cri", PLUGINS[2]} & set(map(str, disabled)):
        advice.append(
            f"{path} disables the CRI plugin, which reads this: take it out of disabled_plugins for Kubernetes"
        )
    return Registration(tuple(edits), tuple(advice))


def _version(document: Any, state: ask.ContainerdState, path: str) -> int:
    """The version of the configuration file, of a new one what this containerd writes."""
    stated = document.get("version") if document else state.effective.get("version", 2)
    version = 1 if stated is None else stated
    if type(version) is not int or not 1 <= version <= 4:
        raise EngineError("register runtime", path, f"version {version} is not one of 1 to 4")
    return version


def _runtime_keys(
    wanted: Wanted, document: Any, state: ask.ContainerdState, plugin: tuple[str, str], path: str
) -> list[Key]:
    """The new runtime's table copies the default runtime's but for the program."""
    name = wanted.runtime_name
    runtimes = (*plugin, "containerd", "runtimes")
    effective = ("plugins", PLUGINS[min(int(state.effective.get("version", 2)), 3)])
    for known in (value_at(document, runtimes), value_at(state.effective, (*effective, *runtimes[2:]))):
        link.refuse_foreign(path, f"runtime {name}", value_at(known, (name, "options", "BinaryName")))
    base = str(
        value_at(document, (*plugin, "containerd", "default_runtime_name"))
        or value_at(state.effective, (*effective, "containerd", "default_runtime_name"))
        or "runc"
    )
    own = value_at(document, (*runtimes, name))
    if base == name and isinstance(own, dict):
        table = dict(own)
    else:
        written = value_at(document, (*runtimes, base))
        table = _filled(written or value_at(state.effective, (*effective, *runtimes[2:], base)) or {})
    kept = {key: value for key, value in table.items() if key not in ("runtime_type", "options")}
    kind = str(table.get("runtime_type") or SHIM)
    options = {key: value for key, value in table.get("options", {}).items() if key != "BinaryName"}
    made = {"runtime_type": kind, **kept, "options": {**options, "BinaryName": wanted.runtime_path}}
    keys = []
    if wanted.default:
        keys.append(Key((*plugin, "containerd", "default_runtime_name"), name))
    if wanted.cdi:
        keys += _cdi(state, plugin, path)
    if base != name and value_at(document, (*runtimes, base)) is None:
        more = {"options": options} if options else {}
        keys.append(Key((*runtimes, base), {"runtime_type": kind, **kept, **more}))
    keys.append(Key((*runtimes, name), made))
    return keys


def _filled(table: dict[str, Any]) -> dict[str, Any]:
    """Without what `config dump` shows as empty: those are the defaults of this release, not of the next."""
    kept = {key: _filled(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value not in ("", 0, False, [], {})}


def _cdi(state: ask.ContainerdState, plugin: tuple[str, str], path: str) -> list[Key]:
    """`enable_cdi` where it has a meaning: 1.7 to 2.3; from 2.0 on it is the default."""
    if state.version and state.version < (1, 7):
        cause = f"containerd {'.'.join(map(str, state.version))} has no CDI, which needs 1.7"
        raise EngineError("enable CDI", path, cause, "use the runtime alone")
    return [] if state.version >= (2, 4) else [Key((*plugin, "enable_cdi"), True)]


def imports(document: Any, path: str, file: str) -> bool:
    """Whether a configuration, the content of `path`, has containerd read `file` too."""
    return any(_matches(file, pattern) for pattern in _imported(document, path))


def _imported(document: Any, path: str = CONFIG) -> tuple[str, ...]:
    """What it imports: patterns of files."""
    listed = value_at(document, ("imports",))
    named = [item for item in listed if isinstance(item, str) and item] if isinstance(listed, list) else ()
    return tuple(os.path.join(os.path.dirname(path), item) for item in named)


def _matches(path: str, pattern: str) -> bool:
    """Whether `path` matches the pattern by the rules of Go's filepath.Match: `*` stands for no slash."""
    import fnmatch

    parts, patterns = path.split("/"), os.path.normpath(pattern).split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _check(wanted: Wanted, texts: dict[str, str], program: str) -> None:
    """Raise EngineError if containerd, with the new files, would not use them: a drop-in may replace the table."""
    path = place.resolved(wanted.config or CONFIG)
    main = texts[path] if path in texts else text_of(read(path), path)
    drop_in = "".join(text for file, text in texts.items() if file != path)
    effective = ask.effective(path, main, drop_in, program)
    plugin = PLUGINS[min(int(effective.get("version", 2)), 3)]
    keys = ("plugins", plugin, "containerd", "runtimes", wanted.runtime_name, "options", "BinaryName")
    if plugin in value_at(effective, ("plugins",), {}) and value_at(effective, keys) != wanted.runtime_path:
        imports = ", ".join(map(str, effective.get("imports") or ()))
        raise EngineError(
            "register runtime", wanted.config or CONFIG, "a drop-in replaces the table of the CRI plugin",
            f"name the one of these that does with --config: {imports}",
        )  # fmt: skip


ENGINE = Engine(
    "containerd", "containerd: runtimes of config.toml and imports, two toolkits", CONFIG, "toml", _imported,
    tuple(("plugins", plugin, "containerd") for plugin in PLUGINS.values()),
    "default_runtime_name", ("options", "BinaryName"), files,
    lambda wanted, program: registration(wanted, ask.containerd(wanted.config or CONFIG, program)),
    ("drop_in",), _check,
)  # fmt: skip

"""Every key of config.toml with its value, and where that comes from. For people: hooks do not come here."""

from __future__ import annotations

from nvc.base.types import Any
from nvc.base.value import Value
from nvc.request.config import Config, ConfigError
from nvc.request.config.file import examine, written
from nvc.request.config.keys import KEYS

DEFAULT = "default"


class Setting(Value):
    """One key as it holds now."""

    table: str  # "" for the top level
    key: str
    value: Any
    line: int  # of the file; 0: not in it, `value` is the default
    effective: bool  # False: accepted, and nothing to do in nvc

    @property
    def name(self) -> str:
        """The name that `nvc-cli config set` takes: TABLE.KEY, or KEY at the top level."""
        return f"{self.table}.{self.key}" if self.table else self.key


def settings(data: bytes, path: str) -> tuple[tuple[Setting, ...], tuple[ConfigError, ...]]:
    """All known keys, in the order of the documentation, and what is wrong with those of NVIDIA's tables.

    A wrong value is as the file has it. Raises ConfigError for the first thing that no program of nvc accepts.
    """
    fields, _, errors = examine(data, path)
    for error in errors:
        if error.fields is None:
            raise error
    config = Config(**fields)
    lines = lines_of(data.decode())
    file = written(data, path) if errors else {}
    wrong = {error.key: file.get(error.key) for error in errors if error.key in file}
    found = tuple(
        Setting(
            table,
            key,
            _shown(wrong[table, key]) if (table, key) in wrong else _value(config, field, kind),
            lines.get((table, key), 0),
            bool(field),
        )
        for table, keys in KEYS.items()
        for key, (field, kind) in keys.items()
    )
    return found, errors


def _shown(value: Any) -> Any:
    """A wrong value, which may be of any type of TOML."""
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _value(config: Config, field: str, kind: str) -> Any:
    if kind == "user":
        return "" if config.uid < 0 else f"{config.uid}:{config.gid}"
    if kind == "environment":
        return [f"CUDA_MPS_PIPE_DIRECTORY={config.mps_directory}"]
    value = getattr(config, field) if field else ""
    if kind in ("names", "capabilities"):
        return ",".join(value) if field else ""
    return list(value) if isinstance(value, tuple) else value


def lines_of(text: str) -> dict[tuple[str, str], int]:
    """On which line each key of a sound file is written: (table, key) to a number from 1."""
    found: dict[tuple[str, str], int] = {}
    table = ""
    quotes = ""  # of a text over several lines that is not at its end
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if quotes:
            quotes = "" if quotes in bare else quotes
        elif bare.startswith("[") and "=" not in bare.partition("#")[0]:
            table = ".".join(_bare(part) for part in bare.partition("#")[0].strip().strip("[]").split("."))
        elif "=" in bare and not bare.startswith("#"):
            *outer, key = (_bare(part) for part in bare.partition("=")[0].split("."))
            found.setdefault((".".join(filter(None, (table, *outer))), key), number)
            value = bare.partition("=")[2].strip()
            quotes = next((q for q in ('"""', "'''") if value.startswith(q) and q not in value[3:]), "")
    return found


def _bare(part: str) -> str:
    return part.strip().strip("\"'")


def split(name: str) -> tuple[str, str]:
    """Table and key of a name such as `nvc.timeout`. Raises ConfigError, which has the nearest name."""
    table, _, key = name.rpartition(".")
    if key in KEYS.get(table, {}):
        return table, key
    import difflib

    names = [f"{table}.{key}" if table else key for table, keys in KEYS.items() for key in keys]
    if name in KEYS:
        raise ConfigError("unknown key", "", name, f"it is a table: its keys are {', '.join(KEYS[name])}")
    near = difflib.get_close_matches(name, names, 1)
    hint = f"the nearest is {near[0]}" if near else "`nvc-cli config show` lists all"
    raise ConfigError("unknown key", "", name, hint)

"""From the text of config.toml to a Config. Imported only when the file has changed since it was last parsed."""

from __future__ import annotations

from nvc.base.errors import InputError, one_line
from nvc.base.types import Any, Callable, Iterator
from nvc.model.facts import CAPABILITIES, GATED
from nvc.model.slices.isolation import OPERATORS
from nvc.request.config import Config, ConfigError
from nvc.request.config.keys import KEYS
from nvc.request.ids import user_and_group

MODES = ("auto", "legacy", "hook", "csv", "cdi", "jit-cdi")
COMPAT_MODES = ("ldconfig", "mount", "hook", "disabled")
MAX_TIMEOUT = 3600.0
VARIABLES = ("obey", "refuse", "ignore")  # what becomes of variables that ask for slices
VERDICTS = ("report", "deny", "stop")  # what nvcd does about a slice that takes too much
STRANGERS = ("leave", "slice", "stop")  # what nvcd does about processes in no slice on a GPU that slices share
OURS = "nvc"
DAEMON = "nvcd"
DEFAULTS = ("vgpu_memory", "vgpu_cores", "vgpu_weight", "vgpu_policy")  # of slices
MPS = "CUDA_MPS_PIPE_DIRECTORY"


class _Bad(ValueError):
    """A value that makes no sense; the message says what is wanted."""


def parse(data: bytes, path: str) -> Config:
    """The settings in the file `path` with this content. Raises ConfigError, naming table and key.

    Not for a wrong value in one of NVIDIA's tables, which many programs read: its field is refused when it is used.
    """
    fields, warnings, errors = examine(data, path)
    refused = []
    for error in errors:
        if error.fields is None:
            raise error
        refused += [(field, str(error.cause)) for field in error.fields]
        warnings += (refusal(error),)
    return Config(**fields, warnings=warnings, refused=tuple(refused))


def examine(data: bytes, path: str) -> tuple[dict[str, Any], tuple[str, ...], tuple[ConfigError, ...]]:
    """The fields that are set, warnings, and everything that is wrong. Raises ConfigError for what is not TOML."""
    fields: dict[str, Any] = {}
    warnings: list[str] = []
    errors: list[ConfigError] = []
    for table, key, value in _flatten(_document(data, path), ""):
        name = f"[{table}] {key}" if table else key
        known = KEYS.get(table, {}).get(key)
        inner = f"{table}.{key}" if table else key  # if it is a table of ours, all of it is lost
        if known is None and inner and any(f"{one}.".startswith(f"{inner}.") for one in KEYS):
            tables = [keys for one, keys in KEYS.items() if f"{one}.".startswith(f"{inner}.")]
            lost = tuple(field for keys in tables for one in keys.values() for field in fields_of(*one))
            errors.append(_refused(path, f"{name}: want a table, [{inner}]", (inner, ""), lost))
        elif known is None:
            if table in (OURS, DAEMON) or table.startswith(OURS + "."):
                errors.append(ConfigError("unknown key", path, name, _nearest(table, key)))
            else:
                warnings.append(f"{path}: unknown key {one_line(name)}")
        else:
            try:
                fields |= _checked(*known, value, warnings)
            except _Bad as bad:
                errors.append(_refused(path, f"{name}: {bad}", (table, key), fields_of(*known)))
    if any(field in fields for field in DEFAULTS):
        from nvc.request.config.vgpu import contradictions

        warnings += [f"{path}: [nvc] {text}" for text in contradictions(fields)]
    return fields, tuple(warnings), tuple(errors)


def refusal(error: ConfigError) -> str:
    """What is told about a wrong value that only some programs use."""
    return f"{error.path}: {error.cause}; what uses it does not start"


def written(data: bytes, path: str) -> dict[tuple[str, str], Any]:
    """What the file says, unchecked: (table, key) to value. Raises ConfigError for what is not TOML."""
    return {(table, key): value for table, key, value in _flatten(_document(data, path), "")}


def fields_of(field: str, kind: str) -> tuple[str, ...]:
    """The fields of Config that a key sets."""
    return ("uid", "gid") if kind == "user" else (field,) if field else ()


def _refused(path: str, cause: str, key: tuple[str, str], fields: tuple[str, ...]) -> ConfigError:
    """The error for a wrong value: in our own tables nothing of the file holds."""
    error = ConfigError("invalid value", path, cause)
    error.key = key
    if key[0].partition(".")[0] not in (OURS, DAEMON):
        error.fields = fields
    return error


def _document(data: bytes, path: str) -> dict[str, Any]:
    try:
        import tomllib  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ModuleNotFoundError:
            hint = "install tomli for Python 3.10"
            raise ConfigError("parse", path, "this Python has no parser for TOML", hint) from None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError("parse", path, f"not UTF-8 at byte {error.start}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # the text names line and column, but at the end
        last = len(data.splitlines())
        cause = str(error).replace("at end of document", f"at line {last}, where the file ends")
        raise ConfigError("parse", path, cause or "nested too deep") from None


def _flatten(table: dict[str, Any], name: str) -> Iterator[tuple[str, str, Any]]:
    """Every (table, key, value). A table where a value is wanted is a value, of the wrong type."""
    for key, value in table.items():
        inner = f"{name}.{key}" if name else key
        if isinstance(value, dict) and key not in KEYS.get(name, {}):
            yield from _flatten(value, inner)
        else:
            yield name, key, value


def _nearest(table: str, key: str) -> str:
    import difflib

    near = difflib.get_close_matches(key, KEYS[table], 1, 0.0) if table in KEYS else []
    return f"the nearest known key is {near[0]} in [{table}]" if near else ""


def _checked(field: str, kind: str, value: Any, warnings: list[str]) -> dict[str, Any]:
    if kind == "user":
        return _user(value)
    if kind == "environment":
        return _environment(value, warnings)
    checked = _KINDS[kind](value)
    return {field: checked} if field else {}


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Bad("want true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or "\0" in value:
        raise _Bad("want a text")
    return value


def _filled(value: Any) -> str:
    return _text(value) or Config().ldcache


def _path(value: Any) -> str:
    if not _text(value):  # as NVIDIA's defaults are written
        return "/"
    if not value.startswith("/"):
        raise _Bad("want an absolute path")
    return str(value)


def _log(value: Any) -> str:
    if _text(value) in ("", "/dev/null"):
        return ""
    return _path(value)


def _program(value: Any) -> str:
    """A name without a directory, as NVIDIA's defaults are written, is that of nvc's own program."""
    if not _text(value).startswith("/"):
        if "/" in value:
            raise _Bad("want an absolute path, or a name")
        return ""
    return str(value)


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(item) is str and item for item in value):
        raise _Bad("want a list of texts")
    return tuple(value)


def _paths(value: Any) -> tuple[str, ...]:
    if not all(path.startswith("/") and "\0" not in path for path in _texts(value)):
        raise _Bad("want a list of absolute paths")
    return tuple(value)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(name for item in _text(value).split(",") if (name := item.strip()))


def _gated(value: Any) -> tuple[str, ...]:
    if unknown := [kind for kind in _texts(value) if kind not in GATED]:
        raise _Bad(f"{one_line(unknown[0])} is none of {', '.join(GATED)}")
    return tuple(dict.fromkeys(value))


def _capabilities(value: Any) -> tuple[str, ...]:
    names = _names(value)
    if "all" in names:
        return tuple(sorted(CAPABILITIES))
    unknown = [name for name in names if name not in CAPABILITIES]
    if unknown:
        raise _Bad(f"{one_line(unknown[0])} is none of all, {', '.join(sorted(CAPABILITIES))}")
    return tuple(sorted(set(names)))


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= MAX_TIMEOUT:
        raise _Bad(f"want seconds, more than 0 and at most {MAX_TIMEOUT:.0f}")
    return float(value)


def _asked(kind: str) -> Callable[[Any], str]:
    """The check of a text that a parser of nvc/model/slices/time_settings.py reads, or ""."""

    def check(value: Any) -> str:
        if _text(value):
            from nvc.model.slices.time_settings import KINDS

            try:
                KINDS[kind]("", value)
            except InputError as error:
                raise _Bad(f"{one_line(value)}: {error.cause}; {error.hint}") from None
        return str(value)

    return check


def _bytes(value: Any) -> str:
    if (text := _asked("size")(value)).endswith("%"):
        raise _Bad(f"{one_line(value)}: want an amount, like 64GiB")
    return text


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _Bad(f"want a whole number from {low} to {high}")
        return value

    return check


def _cores(value: Any) -> int:
    from nvc.request.config.vgpu import percent

    try:
        return _whole(0, 100)(percent(value))
    except _Bad as bad:
        raise _Bad(f'{bad}, like 25 or "25%"') from None


def _vgpus(value: Any) -> tuple[tuple[Any, ...], ...]:
    from nvc.request.config.vgpu import devices_of

    try:
        return devices_of(value)
    except ValueError as error:
        raise _Bad(one_line(error)) from None


def is_address(value: str) -> bool:
    """Whether it is `address:port`."""
    place, _, port = value.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    return 0 < number < 65536 and 0 < len(place) < 64 and place.isascii()


def _endpoint(value: Any) -> str:
    if _text(value) and not (value.startswith("unix:/") or is_address(value)):
        raise _Bad("want unix:/path or address:port")
    return str(value)


def _address(value: Any) -> str:
    if _text(value) and (value.startswith("unix:") or not is_address(value)):
        raise _Bad("want address:port")
    return str(value)


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in allowed:
            raise _Bad(f"want one of {', '.join(allowed)}")
        return str(value)

    return check


def _compat_mode(value: Any) -> str:
    return _one_of(*COMPAT_MODES)(Config().cuda_compat_mode if value == "" else value)  # as NVIDIA's tools


def _user(value: Any) -> dict[str, Any]:
    if not _text(value):
        return {}
    try:
        uid, gid = user_and_group(value)
    except InputError as error:
        raise _Bad(f"{one_line(value)}: {error.cause}") from None
    return {"uid": uid, "gid": gid}


def _environment(value: Any, warnings: list[str]) -> dict[str, Any]:
    """Variables for NVIDIA's CLI. Nothing is executed here, so only the one that is a setting has a meaning."""
    found = {}
    for entry in _texts(value):
        name, _, text = entry.partition("=")
        if name != MPS:
            warnings.append(f"[nvidia-container-cli] environment: {one_line(name)} has no effect")
        elif not text.startswith("/"):
            raise _Bad(f"{MPS}: want an absolute path")
        else:
            found["mps_directory"] = text
    return found


_KINDS: dict[str, Callable[[Any], Any]] = {
    "bool": _bool,
    "text": _text,
    "filled": _filled,
    "path": _path,
    "program": _program,
    "log": _log,
    "texts": _texts,
    "paths": _paths,
    "names": _names,
    "kinds": _gated,
    "capabilities": _capabilities,
    "seconds": _seconds,
    "mode": _one_of(*MODES),
    "compat_mode": _compat_mode,
    "slices": _one_of(*VARIABLES),
    "isolation": _one_of(*OPERATORS),
    "size": _asked("size"),
    "bytes": _bytes,
    "cores": _cores,
    "weight": _whole(0, 1 << 16),
    "period": _asked("period"),
    "policy": _asked("policy"),
    "vgpus": _vgpus,
    "endpoint": _endpoint,
    "address": _address,
    "verdict": _one_of(*VERDICTS),
    "stranger": _one_of(*STRANGERS),
}

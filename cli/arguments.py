"""From option values to what the library is asked. What can be wrong with a call is found here."""

from __future__ import annotations

import posix

from nvc.base.errors import InputError
from nvc.model.facts import CAPABILITIES
from nvc.model.request import IMEX_CHANNELS, SLICE_FIELDS, DriverOptions, Request, SliceRequest, place
from nvc.request.ids import user_and_group
from nvc_cli.options import OMITTED
from nvc_cli.parse import Values

MAX_REQUIREMENTS = 32  # as nvidia-container-cli
MAX_TIMEOUT = 3600.0
SLICE_PREFIXES = ("vgpu_", "isolation")
COMPAT_MODES = ("ldconfig", "mount", "disabled")


def driver_options(
    values: Values, channels: tuple[int, ...] = (), own_ids: bool = False, configured: bool = True
) -> DriverOptions:
    """The global options. With `own_ids` (info and list without root) the helper runs as the caller.

    A driver root that is not named is the configuration's, as for hooks and nvcd; without `configured` it is /, for
    who only wants to know whether the options make sense. Raises InputError, ConfigError.
    """
    defaults = DriverOptions()
    root = _absolute(text(values, "root"), "root") if "root" in values else ""
    ldcache = _filled(text(values, "ldcache"), "ldcache") if "ldcache" in values else ""
    if configured and not root:
        from nvc.request.config import load  # NVIDIA's hook names the root, and need not wait for it

        config = load()
        root, ldcache = place(root, ldcache, (config.root, config.ldcache))
    else:
        root, ldcache = place(root, ldcache)
    uid, gid = defaults.uid, defaults.gid
    if own_ids and posix.geteuid() != 0:
        uid, gid = posix.geteuid(), posix.getegid()
    if "user" in values:
        uid, gid = user(text(values, "user"))
    mps = posix.environ.get(b"CUDA_MPS_PIPE_DIRECTORY", b"").decode("utf-8", "surrogateescape")
    return DriverOptions(
        root=root,
        ldcache=ldcache,
        uid=uid,
        gid=gid,
        load_kmods=flag(values, "load_kmods"),
        create_imex_channels=not flag(values, "no_create_imex_channels"),
        imex_channels=channels,
        inventory=not flag(values, "no_inventory"),
        timeout=_timeout(text(values, "timeout", str(defaults.timeout))),
        search_path=defaults.search_path,
        mps_directory=mps if mps.startswith("/") else defaults.mps_directory,
    )


def request(values: Values) -> Request:
    """What `configure` or `list` asks for one container."""
    requirements = tuple(texts(values, "require"))
    if len(requirements) > MAX_REQUIREMENTS:
        raise InputError("too many requirements", cause=f"{len(requirements)}, at most {MAX_REQUIREMENTS}")
    mode = choice(values, "cuda_compat_mode", COMPAT_MODES)
    return Request(
        devices=tuple(_items(values, "device")),
        capabilities=tuple(name for name in CAPABILITIES if flag(values, name)),
        requirements=requirements,
        mig_config=",".join(_items(values, "mig_config")),
        mig_monitor=",".join(_items(values, "mig_monitor")),
        imex_channels=imex_channels(values),
        cgroups=not flag(values, "no_cgroups"),
        devbind=not flag(values, "no_devbind"),
        persistenced=not flag(values, "no_persistenced"),
        fabricmanager=not flag(values, "no_fabricmanager"),
        gsp_firmware=not flag(values, "no_gsp_firmware"),
        cuda_compat_mode="disabled" if flag(values, "no_cntlibs") else mode,
        ldconfig=text(values, "ldconfig"),
        vgpu=slice_request(values) if any(name.startswith(SLICE_PREFIXES) for name in values) else None,
    )


def slice_request(values: Values, prefix: str = "vgpu-") -> SliceRequest | None:
    """What the options of a slice ask for, None where there are none."""
    from nvc.model.slices.time_settings import asked

    names = {row.name: row.option.replace("vgpu-", prefix, 1) for row in SLICE_FIELDS}
    places = {name: option.replace("-", "_") for name, option in names.items()}
    uncounted = flag(values, places.pop("uncounted"))
    given = {name: (f"--{names[name]}", text(values, at)) for name, at in places.items() if at in values}
    if "reserved" in given and "memory" not in given:
        raise InputError(f"--{names['reserved']}", cause=f"only with --{names['memory']}")
    if not given:
        if uncounted:
            raise InputError(
                f"--{names['uncounted']}", cause=f"only with --{names['memory']} or another part of a device"
            )
        return None
    return asked(given, SliceRequest(uncounted=uncounted, require_daemon=_requires_daemon()), many=True)


def _requires_daemon() -> bool:
    from nvc.request.config import load

    return load().require_nvcd


def imex_channels(values: Values) -> tuple[int, ...]:
    """The channels of every --imex-channel."""
    channels = []
    for item in _items(values, "imex_channel"):
        if not _decimal(item) or int(item) >= IMEX_CHANNELS:
            raise InputError("error parsing IMEX info", item, f"want a number below {IMEX_CHANNELS}")
        channels.append(int(item))
    return tuple(channels)


def pid(values: Values) -> int:
    """The container's init process; 0, also without the option, is the standalone mode."""
    given = text(values, "pid", "0")
    if not _decimal(given) or int(given) >= 2**31:
        raise InputError("parse pid failed", given, "want a process id")
    return int(given)


def rootfs(words: tuple[str, ...]) -> str:
    """The one argument of `configure`: an absolute path other than the host's root."""
    path = words[0]
    if not path.startswith("/") or "\0" in path or not set(path.split("/")) - {"", ".", ".."}:
        raise InputError("invalid rootfs directory", path, "want an absolute path other than /")
    return path


def user(spec: str) -> tuple[int, int]:
    """The ids of `UID[:GID]`, numbers or names; your own where it was omitted. Source: passwd and group."""
    if spec == OMITTED:
        return posix.geteuid(), posix.getegid()
    return user_and_group(spec)


def flag(values: Values, name: str) -> bool:
    """Whether the flag `name` was given."""
    return values.get(name) is True


def text(values: Values, name: str, default: str = "") -> str:
    """The value of the option `name`; the last one where it was repeated."""
    value = values.get(name, default)
    return value if isinstance(value, str) else default


def texts(values: Values, name: str) -> list[str]:
    """Every value of the repeated option `name`."""
    value = values.get(name)
    return value if isinstance(value, list) else []


def choice(values: Values, name: str, allowed: tuple[str, ...]) -> str:
    """The value of `name`, one of `allowed`; the first of them where it was not given."""
    value = text(values, name, allowed[0])
    if value not in allowed:
        wanted = f"want {', '.join(allowed[:-1])} or {allowed[-1]}"
        raise InputError(f"--{name.replace('_', '-')}", value, wanted)
    return value


def _items(values: Values, name: str) -> list[str]:
    """The comma-separated items of a repeated option, empty ones left out."""
    return [item for value in texts(values, name) for item in value.split(",") if item]


def _decimal(given: str) -> bool:
    return given.isascii() and given.isdigit() and len(given) <= 20


def _filled(path: str, name: str) -> str:
    if not path or "\0" in path:
        raise InputError(f"--{name}", path, "want a path")
    return path


def _absolute(path: str, name: str) -> str:
    _filled(path, name)
    if path.startswith("/"):
        return path
    import os.path

    return os.path.abspath(path)


def _timeout(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise InputError("--timeout", given, f"want seconds, more than 0 and at most {MAX_TIMEOUT:.0f}")
    return seconds

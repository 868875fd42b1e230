"""From a container's variables and mounts to what it is to be given. Pure: nothing of the host is looked at.

The rules, down to their oddities, are those of NVIDIA's hook: images are written against it. Every value may
come from an image, so each is bounded, and what is quoted in an error is cut.
"""

from __future__ import annotations

from nvc.base.errors import InputError, one_line
from nvc.base.types import Any, Callable
from nvc.base.value import Value
from nvc.model.facts import GATED
from nvc.model.request import IMEX_CHANNELS, Request, SliceRequest, clean_path
from nvc.request.config import Config
from nvc.request.oci import Container

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
REQUIRE = "NVIDIA_REQUIRE_"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"
DISABLE_REQUIRE = "NVIDIA_DISABLE_REQUIRE"
CUDA_VERSION = "CUDA_VERSION"
IMEX = "NVIDIA_IMEX_CHANNELS"
MIG_CONFIG = "NVIDIA_MIG_CONFIG_DEVICES"
MIG_MONITOR = "NVIDIA_MIG_MONITOR_DEVICES"
#: Bind mounts of the host's /dev/null below it are requests for devices. Images cannot make such mounts: a volume
#: of an image has a source of the engine's. Who may mount paths of the host can: docs/security.md says who that is.
VOLUMES = "/var/run/nvidia-container-devices"
#: What asks for a part of a GPU: nvc's own names, HAMi's, cGPU's, NVIDIA's. Some have a GPU's index at their end.
SLICES = (
    "NVC_VGPU_", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "ALIYUN_COM_GPU_MEM_CONTAINER",
    "ALIYUN_COM_GPU_SCHD_WEIGHT", "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST",
)  # fmt: skip
CGPU_DEVICES = "ALIYUN_COM_GPU_VISIBLE_DEVICES"

DEFAULT_CAPABILITIES = ("compute", "utility")
MAX_ITEMS = 4096
MAX_ITEM = 80  # the longest selector is `MIG-GPU-<uuid>/<gi>/<ci>`
MAX_REQUIREMENTS = 32
MAX_REQUIREMENT = 16384  # images name every driver branch they were tested with
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:._/-")
_HINT_CDI = "CDI devices are given by the engine or by nvc-runtime, not by this hook"


def request_from(container: Container, config: Config, notes: list[str] | None = None) -> Request | None:
    """What `container` asks for, None where it asks for nothing. `notes` takes remarks for the log.

    Raises InputError for a value that makes no sense, or that this container may not have.
    """
    notes = [] if notes is None else notes
    environment = container.environment
    if "void" in _items(environment.get(VISIBLE, "")):
        notes.append(f"{VISIBLE}=void: nothing to do, as for devices given through CDI")
        return None
    devices = _devices(container, config, notes)
    if devices is None and not _cgpu_devices(container, config):
        return None
    vgpu, devices = _slice(container, config, devices or ())
    mode = config.cuda_compat_mode
    return Request(
        devices=devices,
        cgroups=not config.no_cgroups,
        # `hook` leaves it to another hook, which NVIDIA's runtime adds.
        cuda_compat_mode="disabled" if mode == "hook" else mode,
        ldconfig=config.ldconfig,
        vgpu=vgpu,
        **{row.field: row.read(container, config, notes) for row in VARIABLES if row.read is not None},
    )


def is_legacy(environment: dict[str, str]) -> bool:
    """Whether an image is from the time before NVIDIA_REQUIRE_CUDA, when CUDA images asked for every GPU."""
    return bool(environment.get(CUDA_VERSION)) and not environment.get(REQUIRE_CUDA)


def _items(value: str) -> list[str]:
    """The items of a comma-separated list, each once, without blanks around them; empty ones are left out."""
    return list(dict.fromkeys(item for part in value.split(",") if (item := part.strip())))


def _devices(container: Container, config: Config, notes: list[str]) -> tuple[str, ...] | None:
    """The selectors; () for the driver alone, None for nothing at all."""
    items = [item for item in volumes(container, config) if not item.startswith("imex/")]
    if items:
        for item in items:
            if item.startswith("cdi/"):
                raise InputError("volume mount", _short(f"{VOLUMES}/{item}"), "a CDI device", _HINT_CDI)
        return _meaning("volume mount", items)
    environment = container.environment
    names = [name for name in config.swarm_resource if name in environment] or [VISIBLE]
    values = [environment[name] for name in names if name in environment]
    if not values and not is_legacy(environment):
        return None
    items = _items(",".join(values)) if values else ["all"]
    if items and not _may_use_environment(container, config):
        notes.append(f"{names[0]} is ignored: the container is not privileged")
        return None
    return _meaning(names[0], items)


def _may_use_environment(container: Container, config: Config) -> bool:
    return container.privileged or config.accept_environment_unprivileged


def volumes(container: Container, config: Config) -> list[str]:
    """What stands behind VOLUMES in each destination of a bind mount of /dev/null; nothing unless they count."""
    found: list[str] = []
    for mount in container.mounts if config.accept_volume_mounts else ():
        destination = clean_path(mount.destination)
        source = clean_path(mount.source) if mount.bind else ""
        if source == "/dev/null" and destination.startswith(VOLUMES + "/"):
            found.append(destination[len(VOLUMES) + 1 :])
    return found


def _meaning(name: str, items: list[str]) -> tuple[str, ...] | None:
    """The selectors of a list. Of the special words the first one decides, but `void` before all others."""
    if not items or "void" in items:
        return None
    for item in items:
        if item in ("all", "none"):
            return ("all",) if item == "all" else ()
    _check(name, items)
    return tuple(items)


def _check(name: str, items: list[str]) -> None:
    if len(items) > MAX_ITEMS:
        raise InputError(name, cause=f"{len(items)} items, at most {MAX_ITEMS}")
    for item in items:
        vendor, equals, _ = item.partition("=")
        if equals and "/" in vendor:
            raise InputError(name, _short(item), "a CDI device", _HINT_CDI)
        if item.startswith("-") or len(item) > MAX_ITEM or not _PLAIN.issuperset(item):
            raise InputError(name, _short(item), "not a device: want an index, a UUID or GPU:MIG")


def _short(text: str) -> str:
    """`text` for a message, cut: a value may have a megabyte."""
    return text if len(text) <= MAX_ITEM else text[: MAX_ITEM - 3] + "..."


def _capabilities(container: Container, config: Config, _: list[str]) -> tuple[str, ...]:
    environment = container.environment
    supported = config.supported_capabilities
    value = environment.get(CAPABILITIES)
    if value is None and is_legacy(environment):
        return supported
    wanted = _items(value or "")
    if not wanted:
        return tuple(name for name in DEFAULT_CAPABILITIES if name in supported)
    if "all" in wanted:
        return supported
    unknown = [name for name in wanted if name not in supported]
    if unknown:
        allowed = ",".join(supported)
        raise InputError(
            f"unsupported capabilities found in '{_short(','.join(wanted))}' (allowed '{allowed}')",
            hint=f"{_short(one_line(unknown[0]))} is not one of them: correct {CAPABILITIES}",
        )
    return tuple(sorted(wanted))


def _requirements(container: Container, config: Config, _: list[str]) -> tuple[str, ...]:
    disabled = config.disable_require or container.environment.get(DISABLE_REQUIRE) in _TRUE
    return () if disabled else requirements(container.environment)


def requirements(environment: dict[str, str]) -> tuple[str, ...]:
    """One expression for each variable, in the order in which they are set; each must hold. Raises InputError."""
    found = []
    for name, value in environment.items():
        if name.startswith(REQUIRE) and not name.startswith(REQUIRE + "JETPACK") and value:
            if len(value) > MAX_REQUIREMENT or not (value.isascii() and value.isprintable()):
                wanted = f"want at most {MAX_REQUIREMENT} characters of ASCII, such as cuda>=12.4"
                raise InputError(_short(name), _short(value), wanted)
            found.append(value)
    if is_legacy(environment):
        found.append(f"cuda>={_cuda_version(environment[CUDA_VERSION])}")
    if len(found) > MAX_REQUIREMENTS:
        raise InputError("too many requirements", cause=f"{len(found)}, at most {MAX_REQUIREMENTS}")
    return tuple(found)


def _cuda_version(value: str) -> str:
    """MAJOR.MINOR of an image's CUDA version."""
    parts = value.strip().removeprefix("v").split(".")[:2]
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        return ".".join(parts)
    raise InputError(CUDA_VERSION, _short(value), "not a version", "want MAJOR.MINOR")


def _mig(container: Container, name: str) -> str:
    """A right over MIG: "" or what the variable asks for. It reaches beyond the container's own devices."""
    items = _items(container.environment.get(name, ""))
    meaning = _meaning(name, items)
    if not meaning:
        return ""
    if not container.privileged:
        right = name.removeprefix("NVIDIA_")
        raise InputError(f"cannot set {right} in non privileged container", hint="add CAP_SYS_ADMIN")
    return ",".join(meaning)


def _imex_channels(container: Container, config: Config, notes: list[str]) -> tuple[int, ...]:
    if config.ignore_imex_channel_requests:
        return ()
    name = "volume mount"
    items = [item[5:] for item in volumes(container, config) if item.startswith("imex/")]
    if not items:
        name = IMEX
        items = _items(container.environment.get(IMEX, ""))
        if items and not _may_use_environment(container, config):
            notes.append(f"{IMEX} is ignored: the container is not privileged")
            return ()
    meaning = _meaning(name, items)
    if meaning is None or meaning == ("all",):
        return ()
    for item in meaning:
        if not (item.isascii() and item.isdigit() and len(item) <= 7) or int(item) >= IMEX_CHANNELS:
            raise InputError(name, _short(item), f"want a channel number below {IMEX_CHANNELS}")
    return tuple(int(item) for item in meaning)


def slice_request(container: Container, config: Config) -> SliceRequest | None:
    """The part of each device that a container gets whose devices somebody else gives it; None: all of each.

    Raises InputError.
    """
    wanted = _slice(container, config, ())[0]
    if wanted is not None and wanted.isolation:
        raise InputError(
            "vgpu-isolation" if config.vgpu_isolation else "NVC_VGPU_ISOLATION", wanted.isolation,
            "CDI assigns the devices, without isolation",
            "assign a CDI size with isolation, a MIG device, or devices by NVIDIA_VISIBLE_DEVICES",
        )  # fmt: skip
    return wanted


def _slice(
    container: Container, config: Config, devices: tuple[str, ...]
) -> tuple[SliceRequest | None, tuple[str, ...]]:
    """The part of each device that the container gets, None for all of it; and the devices, to which cGPU's own
    variable can add.

    A container that was promised a part must not get all of it, unless somebody else sees to that.
    """
    environment, program = container.environment, container.program
    asking = [name for name in environment
              if name.startswith(SLICES) and name != "NVC_VGPU_LOG" and environment[name]]  # fmt: skip
    default = _default_slice(config)
    obeyed = asking and config.vgpu_variables != "ignore"
    if not obeyed and (default is None or not _gives(default)):
        return None, devices
    if obeyed and config.vgpu_variables == "refuse":
        raise InputError(
            _short(asking[0]), _short(environment[asking[0]]),
            "the configuration lets containers ask for whole GPUs only",
            "remove it, or change vgpu-variables in [nvc]",
        )  # fmt: skip
    from nvc.model.slices.variables import isolated, library_path, slice_from

    wanted = slice_from(environment, program) if obeyed else None
    if wanted is not None:
        devices = _added(devices, _cgpu_devices(container, config))
    if default is not None and (wanted is not None or _gives(default)):
        wanted = _completed(wanted or SliceRequest(library_path=library_path(environment, program)), default)
    common = {"uncounted": config.vgpu_uncounted, "label": container.mount_label,
              "require_daemon": config.require_nvcd}  # fmt: skip
    return wanted and isolated(wanted.replace(**common), config.vgpu_isolation), devices


def _default_slice(config: Config) -> SliceRequest | None:
    """What the operator gives to who asks for nothing, and grants at most. None: whole devices."""
    memory, cores = config.vgpu_memory or config.vgpu_memory_max, config.vgpu_cores or config.vgpu_cores_max
    more = config.vgpu_weight or config.vgpu_weight_max or config.vgpu_policy or config.vgpu_period
    if not (memory or cores or more):
        return None
    from nvc.model.slices.time_settings import asked

    texts = {
        "memory": ("vgpu-memory" if config.vgpu_memory else "vgpu-memory-max", memory),
        "cores": ("vgpu-cores" if config.vgpu_cores else "vgpu-cores-max", str(cores or "")),
        "weight": ("vgpu-weight", str(config.vgpu_weight or "")),
        "policy": ("vgpu-policy", config.vgpu_policy),
    }
    return asked({field: given for field, given in texts.items() if given[1]}, bounds_of(config))


def bounds_of(config: Config) -> SliceRequest:
    """A request for nothing, with what the operator grants at most. Raises InputError."""
    from nvc.model.slices.sizes import parse_size
    from nvc.model.slices.time_settings import parse_period

    return SliceRequest(
        largest=parse_size("vgpu-memory-max", config.vgpu_memory_max) if config.vgpu_memory_max else None,
        most_cores=config.vgpu_cores_max,
        most_weight=config.vgpu_weight_max,
        usual_period=parse_period("vgpu-period", config.vgpu_period).value if config.vgpu_period else 0,
        uncounted=config.vgpu_uncounted,
        require_daemon=config.require_nvcd,
    )


def _gives(default: SliceRequest) -> bool:
    """Whether who asks for nothing gets a slice, and not only who asks has bounds."""
    policy = default.policy
    capped = any(share.value for share in default.cores)
    from nvc.model.slices.layout import POLICY_NATIVE

    return bool(default.memory or capped or default.weight or policy and policy.value != POLICY_NATIVE)


def _completed(wanted: SliceRequest, default: SliceRequest) -> SliceRequest:
    """`wanted` with the operator's bounds, and the operator's values for what it says nothing of.

    The operator's policy is for who says nothing of time: a cap or a weight asks for the policy that keeps it.
    """
    memory, cores = wanted.memory or wanted.memory_at, wanted.cores or wanted.cores_at
    silent = not (cores or wanted.weight or wanted.policy)
    return wanted.replace(
        memory=wanted.memory if memory else default.memory,
        cores=wanted.cores if cores else default.cores,
        weight=wanted.weight or default.weight,
        policy=default.policy if silent else wanted.policy,
        largest=default.largest, most_cores=default.most_cores, most_weight=default.most_weight,
        usual_period=default.usual_period,
    )  # fmt: skip


def _cgpu_devices(container: Container, config: Config) -> tuple[str, ...]:
    """The devices that cGPU's own variables name: of a container that may use variables, and where they count."""
    environment = container.environment
    counts = config.vgpu_variables == "obey" and _may_use_environment(container, config)
    if not (counts and environment.get(CGPU_DEVICES)):
        return ()
    from nvc.model.slices.variables import cgpu_devices

    return cgpu_devices(environment)


def _added(devices: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    _check(CGPU_DEVICES, list(more))
    return ("all",) if "all" in (*devices, *more) else tuple(dict.fromkeys((*devices, *more)))


class Variable(Value):
    """A variable by which containers ask for something, or that changes what they get."""

    name: str  # with `*` at its end: a prefix
    text: str  # what it means, for docs/hooks.md
    field: str = ""  # of Request; "": of several fields, or none
    read: Callable[[Container, Config, list[str]], Any] | None = None  # the value of that field
    cdi: bool = True  # CDI edits can give what it asks for
    need: bool = False  # says what the image needs, not what it gets: counts with annotations (NRI) too


#: The hook, nvc-runtime, nvc-nri, the doctor and docs/hooks.md (packaging/tables.py) follow this table. Rows are
#: read in this order; `request_from` itself reads those without `read`.
VARIABLES = (
    Variable(VISIBLE, "which GPUs: see the next table"),
    Variable(CAPABILITIES, "driver capabilities: `compute`, `utility`, `video`, `graphics`, `display`, `ngx`,"
             " `compat32`, or `all` supported ones. Unset or empty: `compute,utility`; for `nvc-runtime` with a CDI"
             " device, such as `nvidia.com/gpu=all`, all but `compat32`. Unset in a legacy image:"
             " all. Other values are errors", "capabilities", _capabilities, need=True),
    Variable(f"{REQUIRE}*", "requirements that the host must meet, such as `cuda>=12.4 brand=tesla,driver>=535`."
             " `NVIDIA_REQUIRE_JETPACK*` is ignored", "requirements", _requirements, need=True),
    Variable(CUDA_VERSION, "in a legacy image: the CUDA version that the host must support", need=True),
    Variable(DISABLE_REQUIRE, "`1`, `t`, `true`: ignore all requirements", need=True),
    Variable(MIG_CONFIG, "`all`: the right to configure MIG. An error in a container without CAP_SYS_ADMIN",
             "mig_config", lambda container, *_: _mig(container, MIG_CONFIG), cdi=False),
    Variable(MIG_MONITOR, "`all`: the right to monitor MIG. An error in a container without CAP_SYS_ADMIN",
             "mig_monitor", lambda container, *_: _mig(container, MIG_MONITOR), cdi=False),
    Variable(IMEX, "channel numbers; `all` alone means no channel", "imex_channels", _imex_channels),
    *(Variable(f"NVIDIA_{kind.upper()}", "`enabled`: see [cdi.md](cdi.md#devices-beside-gpus)") for kind in GATED),
    Variable("NVC_VGPU_*", "a slice; other systems' variables for that: see [vgpu.md](vgpu.md#variables)"),
)  # fmt: skip


def is_known(name: str) -> bool:
    """Whether a variable of this name is in the table or asks for a slice: native/launcher/cdi/variables.h too."""
    return name.startswith((*SLICES, CGPU_DEVICES)) or any(_names(row, name) for row in VARIABLES)


def is_need(name: str) -> bool:
    """Whether a variable of this name says what an image needs of the host or the driver."""
    return any(row.need and _names(row, name) for row in VARIABLES)


def _names(row: Variable, name: str) -> bool:
    return name == row.name or row.name[-1] == "*" and name.startswith(row.name[:-1])

"""What a container's variables say about slices: nvc's own names, HAMi's, cGPU's and NVIDIA's. Pure.

The variables are those of the bundle's configuration, read on the host. Of memory, caps and weights each, the
first system that says anything is believed: nvc, then HAMi, then cGPU, then NVIDIA. NVIDIA's toolkit obeys its own
variables whatever else is set, so they must not contradict a size of another system. Within one, a name with an
index wins over the name without. Indices count the container's devices in the order in which they were asked for.
A value that makes no sense is an error that names it, never "no limit".
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.model.request import DriverOptions, Size, SliceRequest, TimeSetting, fields_by
from nvc.model.slices.isolation import MIG
from nvc.model.slices.layout import DEVICES
from nvc.model.slices.sizes import parse_gibibytes, parse_mebibytes, parse_part, parse_size
from nvc.model.slices.time_settings import asked, parse_cores, parse_weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T", Size, TimeSetting)

#: nvc's own, by the field that they ask for.
VARIABLES = {row.name: row.variable for row in fields_by("variable")}
MEMORY, CORES = VARIABLES["memory"], VARIABLES["cores"]
HAMI_MEMORY = "CUDA_DEVICE_MEMORY_LIMIT"
HAMI_CORES = "CUDA_DEVICE_SM_LIMIT"
HAMI_POLICY = "GPU_CORE_UTILIZATION_POLICY"
CGPU_MEMORY = "ALIYUN_COM_GPU_MEM_CONTAINER"
CGPU_WHOLE = "ALIYUN_COM_GPU_MEM_DEV"
CGPU_WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
CGPU_DEVICES = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
CGPU_DISABLE = "CGPU_DISABLE"
NVIDIA_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
NVIDIA_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
OWN = "NVC_VGPU_"
_PER_DEVICE = tuple(row.variable for row in fields_by("variable") if row.each)
_SEARCHED = "LD_LIBRARY_PATH"
_SEARCHED_MAX, _SEARCHED_SIZE = 256, 65536  # directories; bytes
_ORIGIN, _ORIGINS_MAX, _NAME_MAX = "ORIGIN", 16, 4096  # the token; in one directory; bytes of a path
_TOO_MANY = f"more than {_SEARCHED_MAX} directories, or $ORIGIN more than {_ORIGINS_MAX} times in one"
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("", "0", "f", "F", "false", "FALSE", "False")
VALUE_MAX = 80


def slice_from(environment: dict[str, str], program: str = "") -> SliceRequest | None:
    """The slice that the variables of a container ask for, None where they ask for none; it starts with `program`.

    An empty value is as good as none. Raises InputError naming the variable.
    """
    # What is longer than any sound value is cut: it may have a megabyte, and be quoted in an error.
    lists = (_SEARCHED, "PATH", CGPU_DEVICES)
    environment = {name: text if name in lists else text[:VALUE_MAX] for name, text in environment.items()}
    _check_own_names(environment)
    cgpu = not _disabled(environment)
    memory, at, devices = _memory(environment, cgpu)
    cores, cores_at = _cores(environment)
    weight = _cgpu_weight(environment) if cgpu else None
    named = {
        name: (variable, text)
        for name, variable in VARIABLES.items()
        if variable not in _PER_DEVICE and (text := environment.get(variable, ""))
    }
    if not (memory or at or cores or cores_at or weight or named):
        return None
    wanted = SliceRequest(
        memory=memory, memory_at=at, cores=cores, cores_at=cores_at, weight=weight, devices=devices,
        reserved=_reserved(environment), library_path=library_path(environment, program),
    )  # fmt: skip
    return asked(named, wanted)


def isolated(wanted: SliceRequest, operators: str) -> SliceRequest:
    """`wanted` with the isolation that the operator chose ("": none), where it has a limit of memory.

    A container may be isolated by MIG instead, which keeps more apart. Raises InputError.
    """
    limited = wanted.memory or wanted.memory_at or wanted.largest
    if not operators or not limited or wanted.isolation == MIG:
        return wanted
    if wanted.isolation not in ("", operators):
        cause = f"the operator isolates slices by the {operators}"
        raise InputError(VARIABLES["isolation"], wanted.isolation, cause, "leave it out")
    return wanted.replace(isolation=operators)


def library_path(environment: dict[str, str], program: str = "") -> tuple[str, ...]:
    """Where the image's programs look for libraries first, as far as its configuration says.

    glibc parts the directories by semicolons too. `$LIB` and `$PLATFORM` stay: native/core/steps/search.c expands
    them. In place of `$ORIGIN`, the directory of whichever program runs, are those of PATH and that of `program`.
    Raises InputError for more directories than anybody has: none may be left out.
    """
    text = environment.get(_SEARCHED, "")
    found: dict[str, None] = {}
    if len(text.encode("utf-8", "surrogateescape")) <= _SEARCHED_SIZE:
        own = f"{program.rpartition('/')[0]}/" if program else ""
        others = (environment.get("PATH") or DriverOptions().search_path).split(":")
        places = (place for place in (own, *others) if place.startswith("/") and len(place) < _NAME_MAX)
        origins = list(dict.fromkeys(places))
        for item in dict.fromkeys(text.replace(";", ":").split(":")):
            tokens = item.count(_ORIGIN)
            if tokens and (tokens > _ORIGINS_MAX or len(origins) > _SEARCHED_MAX):
                break  # the image would say how much memory this takes
            for origin in origins if tokens else ("",):
                one = item.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
                if one.startswith("/") and not (tokens and len(one) >= _NAME_MAX):  # nobody can open that
                    found[one] = None
            if len(found) > _SEARCHED_MAX:
                break
        else:
            return tuple(found)
    raise InputError(_SEARCHED, text[:VALUE_MAX], _TOO_MANY, "name fewer")


def cgpu_devices(environment: dict[str, str]) -> tuple[str, ...]:
    """The selectors of cGPU's own variable: these devices are given in slices, those of NVIDIA's variable whole.

    () where it is not set, or where cGPU's variables do not count.
    """
    if _disabled(environment) or not environment.get(CGPU_MEMORY):
        return ()
    items = tuple(item for part in environment.get(CGPU_DEVICES, "").split(",") if (item := part.strip()))
    return ("all",) if "all" in items else items


def _check_own_names(environment: dict[str, str]) -> None:
    """A name of ours that is misspelt would be a limit that is not there."""
    for name, value in environment.items():
        if not value or not name.startswith(OWN):
            continue
        base, _, index = name.rpartition("_")
        indexed = base in _PER_DEVICE and _index(index) is not None
        if name not in VARIABLES.values() and not indexed and name != f"{OWN}LOG":
            raise InputError(
                name[:80], value, "no such variable", f"known are {', '.join(VARIABLES.values())}, NVC_VGPU_LOG"
            )


def _memory(
    environment: dict[str, str], cgpu: bool
) -> tuple[tuple[Size, ...], tuple[tuple[int, Size], ...], tuple[str, ...]]:
    """From the first system that says something: the size without an index, the sizes with one, and cGPU's devices.

    Raises InputError also where NVIDIA's variables say another size than that system.
    """
    found = _without_nvidia(environment, cgpu)
    limit = _nvidia_memory(environment)
    if limit is None:
        return found
    for size in (*found[0], *(size for _, size in found[1])):
        if size.part or size.bytes != limit.bytes:
            cause = f"{size.name} says {size.text}"
            raise InputError(limit.name, limit.text, cause, "set one of the two, or both to one size")
    return found if found[0] else ((limit,), found[1], found[2])


def _without_nvidia(
    environment: dict[str, str], cgpu: bool
) -> tuple[tuple[Size, ...], tuple[tuple[int, Size], ...], tuple[str, ...]]:
    for name in (MEMORY, HAMI_MEMORY):
        everywhere, at = _indexed(environment, name, parse_size)
        if everywhere or at:
            return everywhere, at, ()
    text = environment.get(CGPU_MEMORY, "") if cgpu else ""
    if not text:
        return (), (), ()
    whole = environment.get(CGPU_WHOLE, "")
    size = parse_part(CGPU_MEMORY, text, CGPU_WHOLE, whole) if whole else parse_gibibytes(CGPU_MEMORY, text)
    return (size,), (), cgpu_devices(environment)


def _nvidia_memory(environment: dict[str, str]) -> Size | None:
    """The limit by NVIDIA's variables, for every device: a request alone is one, too. Raises InputError."""
    limited, request = environment.get(NVIDIA_LIMIT, ""), _reserved(environment)
    limit = parse_mebibytes(NVIDIA_LIMIT, limited) if limited else None
    if request is not None and limit is not None and request.bytes > limit.bytes:
        cause = f"more than {NVIDIA_LIMIT}, which is {limited}"
        raise InputError(NVIDIA_REQUEST, request.text, cause, "request at most the limit")
    return limit or request


def _reserved(environment: dict[str, str]) -> Size | None:
    """What is reserved of every device; NVIDIA's 0 asks for nothing. Raises InputError."""
    requested = environment.get(NVIDIA_REQUEST, "")
    return parse_mebibytes(NVIDIA_REQUEST, requested) if requested not in ("", "0") else None


def _cores(environment: dict[str, str]) -> tuple[tuple[TimeSetting, ...], tuple[tuple[int, TimeSetting], ...]]:
    """The cap without an index, and the caps with one. HAMi's plugin says 0 for no cap: that counts as unset."""
    own = _indexed(environment, CORES, parse_cores)
    hami = _indexed(environment, HAMI_CORES, _hami_cores)
    if own[0] or own[1]:
        return own
    if _hami_disabled(environment) or not any(share.value for share in (*hami[0], *dict(hami[1]).values())):
        return (), ()
    return hami


def _hami_cores(name: str, text: str) -> TimeSetting:
    return TimeSetting(name, text, 0) if text == "0" else parse_cores(name, text)


def _hami_disabled(environment: dict[str, str]) -> bool:
    """Whether HAMi's variable says that its caps do not count. Raises InputError."""
    value = environment.get(HAMI_POLICY, "").lower()
    if value not in ("", "default", "force", "disable"):
        raise InputError(HAMI_POLICY, environment[HAMI_POLICY], "want default, force or disable")
    return value == "disable"


def _cgpu_weight(environment: dict[str, str]) -> TimeSetting | None:
    """cGPU's weight, over which nvc's wins. Its 1 is what everybody has, so it asks for nothing."""
    text = environment.get(CGPU_WEIGHT, "")
    found = parse_weight(CGPU_WEIGHT, text) if text else None
    return found if found is not None and found.value > 1 else None


def _indexed(
    environment: dict[str, str], name: str, parse: Callable[[str, str], T]
) -> tuple[tuple[T, ...], tuple[tuple[int, T], ...]]:
    """The value without an index, and those with one in ascending order."""
    everywhere = environment.get(name, "")
    at = []
    for variable, value in environment.items():
        if value and variable != name and variable.startswith(f"{name}_"):
            index = _index(variable[len(name) + 1 :])
            if index is None:
                raise InputError(variable[:80], value, f"want {name}_0 to {name}_{DEVICES - 1}")
            at.append((index, parse(variable, value)))
    at.sort(key=lambda item: item[0])
    return ((parse(name, everywhere),) if everywhere else ()), tuple(at)


def _index(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 2) or (len(text) == 2 and text[0] == "0"):
        return None
    return int(text) if int(text) < DEVICES else None


def _disabled(environment: dict[str, str]) -> bool:
    value = environment.get(CGPU_DISABLE, "")
    if value not in (*_TRUE, *_FALSE):
        raise InputError(CGPU_DISABLE, value[:VALUE_MAX], "want true or false")
    return value in _TRUE

"""What a container's variables say about slices: nvc's own names, HAMi's and cGPU's. Pure.

The variables are those of the bundle's configuration, read on the host. Of several systems the first that says
anything about memory is believed: nvc, then HAMi, then cGPU. Within one, a name with an index wins over the name
without. Indices count the container's devices in the order in which they were asked for. A value that makes no
sense is an error that names it, never "no limit".
"""

from __future__ import annotations

from nvc.errors import InputError
from nvc.request import Size, SliceRequest
from nvc.vgpu.layout import DEVICES, POLICIES
from nvc.vgpu.sizes import parse_gibibytes, parse_number, parse_part, parse_size

MEMORY = "NVC_VGPU_MEMORY"
CORES = "NVC_VGPU_CORES"
WEIGHT = "NVC_VGPU_WEIGHT"
POLICY = "NVC_VGPU_POLICY"
HAMI_MEMORY = "CUDA_DEVICE_MEMORY_LIMIT"
HAMI_CORES = "CUDA_DEVICE_SM_LIMIT"
CGPU_MEMORY = "ALIYUN_COM_GPU_MEM_CONTAINER"
CGPU_WHOLE = "ALIYUN_COM_GPU_MEM_DEV"
CGPU_WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"
CGPU_DEVICES = "ALIYUN_COM_GPU_VISIBLE_DEVICES"
CGPU_DISABLE = "CGPU_DISABLE"
OWN = "NVC_VGPU_"
_KNOWN = (MEMORY, CORES, WEIGHT, POLICY)
_INDEXED = (MEMORY, CORES)
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("", "0", "f", "F", "false", "FALSE", "False")
VALUE_MAX = 80
LATER = "sharing compute time comes with the daemon: this version limits memory only"


def slice_from(environment: dict[str, str], largest: Size | None = None) -> SliceRequest | None:
    """The slice that a container's variables ask for, None where they ask for none.

    `largest` is what the operator grants at most. An empty value is as good as none. Raises InputError naming the
    variable.
    """
    # What is longer than any sound value is cut: it may have a megabyte, and be quoted in an error.
    lists = ("LD_LIBRARY_PATH", CGPU_DEVICES)
    environment = {name: text if name in lists else text[:VALUE_MAX] for name, text in environment.items()}
    _check_own_names(environment)
    cgpu = not _disabled(environment)
    _check_shares(environment, cgpu)
    path = library_path(environment)
    for name in (MEMORY, HAMI_MEMORY):
        everywhere, at = _memory(environment, name)
        if everywhere or at:
            return SliceRequest(everywhere, at, library_path=path, largest=largest)
    text = environment.get(CGPU_MEMORY, "") if cgpu else ""
    if not text:
        return None
    whole = environment.get(CGPU_WHOLE, "")
    size = parse_part(CGPU_MEMORY, text, CGPU_WHOLE, whole) if whole else parse_gibibytes(CGPU_MEMORY, text)
    return SliceRequest((size,), (), cgpu_devices(environment), library_path=path, largest=largest)


def library_path(environment: dict[str, str]) -> tuple[str, ...]:
    """Where the image's programs look for libraries first, as far as its configuration says."""
    items = environment.get("LD_LIBRARY_PATH", "")[:65536].split(":")
    return tuple(item for item in items if item.startswith("/"))[:64]


def cgpu_devices(environment: dict[str, str]) -> tuple[str, ...]:
    """The selectors of cGPU's own variable: these devices are given in slices, those of NVIDIA's variable whole.

    () where it is not set, or where cGPU's variables do not count.
    """
    if _disabled(environment) or not environment.get(CGPU_MEMORY):
        return ()
    items = tuple(item for part in environment.get(CGPU_DEVICES, "").split(",") if (item := part.strip()))
    return ("all",) if "all" in items else items


def check_cores(name: str, text: str) -> None:
    """A cap on a device's time in percent: 100 is none. Raises InputError for others, which cannot be kept yet."""
    if parse_number(name, text, 1, 100) != 100:
        raise InputError(name, text, LATER, "leave it out")


def check_weight(name: str, text: str) -> None:
    """A weight among the containers of a device: 1 is what each has. Raises InputError for others."""
    if parse_number(name, text, 1, 1 << 16) != 1:
        raise InputError(name, text, LATER, "leave it out")


def check_policy(name: str, text: str) -> None:
    """How a device's time is shared, by name or cGPU's number: native is the driver's way. Raises InputError."""
    if text in POLICIES:
        policy = text
    elif len(text) == 1 and text in "012345":
        policy = POLICIES[int(text)]
    else:
        raise InputError(name, text, f"want {', '.join(POLICIES[:-1])} or {POLICIES[-1]}")
    if policy != "native":
        raise InputError(name, text, LATER, "leave it out, or write native")


def _check_own_names(environment: dict[str, str]) -> None:
    """A name of ours that is misspelt would be a limit that is not there."""
    for name, value in environment.items():
        if not value or not name.startswith(OWN):
            continue
        base, _, index = name.rpartition("_")
        indexed = base in _INDEXED and _index(index) is not None
        if name not in _KNOWN and not indexed and name != f"{OWN}LOG":
            raise InputError(
                name[:80], value, "no such variable", f"known are {', '.join(_KNOWN)}, NVC_VGPU_LOG"
            )


def _check_shares(environment: dict[str, str], cgpu: bool) -> None:
    for name, value in environment.items():
        if not value:
            continue
        if _is(name, CORES):
            check_cores(name, value)
        elif _is(name, HAMI_CORES) and value != "0":  # HAMi's plugin writes 0 for "no cap"
            check_cores(name, value)
        elif name == WEIGHT or cgpu and name == CGPU_WEIGHT:
            check_weight(name, value)
        elif name == POLICY:
            check_policy(name, value)


def _is(name: str, variable: str) -> bool:
    """Whether `name` is the variable, with or without an index."""
    rest = name[len(variable) :]
    return name.startswith(variable) and (not rest or rest[0] == "_" and _index(rest[1:]) is not None)


def _memory(environment: dict[str, str], name: str) -> tuple[tuple[Size, ...], tuple[tuple[int, Size], ...]]:
    """The size without an index, and those with one in ascending order."""
    everywhere = environment.get(name, "")
    at = []
    for variable, value in environment.items():
        if value and variable != name and variable.startswith(f"{name}_"):
            index = _index(variable[len(name) + 1 :])
            if index is None:
                raise InputError(variable[:80], value, f"want {name}_0 to {name}_{DEVICES - 1}")
            at.append((index, parse_size(variable, value)))
    return ((parse_size(name, everywhere),) if everywhere else ()), tuple(sorted(at))


def _index(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 2) or (len(text) == 2 and text[0] == "0"):
        return None
    return int(text) if int(text) < DEVICES else None


def _disabled(environment: dict[str, str]) -> bool:
    value = environment.get(CGPU_DISABLE, "")
    if value not in (*_TRUE, *_FALSE):
        raise InputError(CGPU_DISABLE, value[:VALUE_MAX], "want true or false")
    return value in _TRUE

"""What a simulated driver root shall contain, and the GPUs that follow from it."""

from __future__ import annotations

import hashlib
import re
import uuid

from nvc.base.errors import InputError
from nvc.base.value import Value
from nvc.testing.sim.models import MODELS, Model

MAX_GPUS = 32  # as many as the driver's mig-minors table knows

#: Buses of the GPUs of an eight-way board, then a rising sequence.
_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)


class SimSpec(Value):
    """What to simulate. Wrong values are an InputError when the root is made."""

    gpus: int = 1
    model: str = "h100"  # a key of nvc.testing.sim.models.MODELS
    memory: int = 0  # bytes per GPU; 0: the model's
    mig: tuple[str, ...] = ()  # per GPU, or one for all: "", "on", "7x1g.10gb", "3g.40gb,2x2g.20gb"
    minors: tuple[int, ...] = ()  # device minor of each GPU; none: its index
    driver_version: str = "580.159.04"
    cuda_version: str = "13.0"
    imex_channels: tuple[int, ...] = ()
    persistenced: bool = True  # its socket exists
    fabricmanager: bool = False
    mps: bool = False  # the control daemon's directory exists
    compat32: bool = True  # 32-bit libraries too, where the architecture has them
    libdir: str = ""  # of the libraries, inside the root; "": /usr/lib/<multiarch>
    cache: str = "new"  # loader cache: new, combined (old and new format in one file) or none
    second_copy: bool = False  # list the libraries a second time, from /usr/local/nvidia/lib64
    stale_entry: bool = False  # the cache names a library that is gone
    smi_wrapper: bool = False  # a shell script stands before nvidia-smi on the PATH
    device_nodes: bool = True  # needs root
    seed: str = ""  # UUIDs and serials follow from it


class SimMig(Value):
    """One MIG device with one compute instance."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    gpu_slices: int
    compute_slices: int
    multiprocessors: int
    memory: int


class SimGpu(Value):
    """One GPU of a simulated driver."""

    model: Model
    name: str
    uuid: str
    serial: str
    minor: int
    bus_id: str  # 0000:1b:00.0
    memory: int
    mig_enabled: bool
    mig: tuple[SimMig, ...]


def cap_minor(gpu: int, gpu_instance: int, compute_instance: int = -1) -> int:
    """Minor of /dev/nvidia-caps/nvidia-capN for an instance of the GPU with device minor `gpu`.

    As in the driver's mig-minors: config and monitor are 1 and 2, then come 15 GPU instances a GPU with
    8 compute instances each.
    """
    return 3 + 135 * gpu + 9 * gpu_instance + (1 + compute_instance)


def _uuid(spec: SimSpec, *parts: object) -> str:
    digest = hashlib.sha256(":".join(["nvc-sim", spec.seed, *map(str, parts)]).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


#: GPU instance ids by compute slices, as the driver numbers them: a 7g is 0, a 1g one of 7 to 13.
_INSTANCE_IDS = {7: (0,), 4: (1,), 3: (1, 2), 2: (3, 4, 5, 6), 1: (7, 8, 9, 10, 11, 12, 13)}


_HELP = "`nvc-cli sim create --help` has all that it takes"


def _refuse(what: str, value: object, cause: str, hint: str = _HELP) -> InputError:
    return InputError(f"simulate {what}", str(value), cause, hint)


def parse_mig(text: str, model: Model) -> tuple[str, ...]:
    """The profiles of a layout such as `3g.40gb,2x2g.20gb`; "on" is MIG mode without devices."""
    known = {profile.name: profile for profile in model.mig}
    hint = f"profiles: {', '.join(known)}" if known else f"{model.name} has no MIG"
    if not known:
        raise _refuse("MIG", text, "not supported by the model", hint)
    names: list[str] = []
    for part in text.split(",") if text != "on" else ():
        match = re.fullmatch(r"(?:([1-7])x)?(\d+g\.\d+gb)", part)
        if match is None or match[2] not in known:
            raise _refuse("MIG", part, "no such profile", hint)
        names += [match[2]] * int(match[1] or 1)
    compute = sum(known[name].compute_slices for name in names)
    memory = sum(known[name].memory_slices for name in names)
    if compute > 7 or memory > 8:
        cause = f"needs {compute} of 7 compute slices and {memory} of 8 memory slices"
        raise _refuse("MIG", text, cause, "ask for fewer")
    return tuple(names)


def _mig_devices(spec: SimSpec, index: int, text: str, model: Model, memory: int) -> tuple[SimMig, ...]:
    known = {profile.name: profile for profile in model.mig}
    taken: set[int] = set()
    devices = []
    for name in parse_mig(text, model):
        profile = known[name]
        free = [i for i in _INSTANCE_IDS[profile.compute_slices] if i not in taken]
        if not free:
            raise _refuse("MIG", text, f"no room for another {name}", "leave it out")
        taken.add(free[0])
        share = memory * profile.memory_slices // 8
        devices.append(SimMig(
            uuid="MIG-" + _uuid(spec, index, free[0]),
            profile=name,
            gpu_instance=free[0],
            compute_instance=0,
            gpu_slices=profile.compute_slices,
            compute_slices=profile.compute_slices,
            multiprocessors=profile.multiprocessors,
            memory=share - share % (64 << 20),
        ))  # fmt: skip
    return tuple(sorted(devices, key=lambda device: device.gpu_instance))


def _checked(spec: SimSpec) -> Model:
    if spec.model not in MODELS:
        raise _refuse("model", spec.model, "unknown", f"models: {', '.join(MODELS)}")
    if not 0 <= spec.gpus <= MAX_GPUS:
        raise _refuse("GPUs", spec.gpus, f"not between 0 and {MAX_GPUS}")
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,3}", spec.driver_version):
        raise _refuse("driver version", spec.driver_version, "not digits and dots", "for example 580.159.04")
    if not re.fullmatch(r"\d{1,2}\.\d", spec.cuda_version):
        raise _refuse("CUDA version", spec.cuda_version, "not MAJOR.MINOR", "for example 13.0")
    if spec.libdir and not re.fullmatch(r"(/[A-Za-z0-9_.-]*[A-Za-z0-9_-])+", spec.libdir):
        raise _refuse("library directory", spec.libdir, "not a plain absolute path")
    if spec.cache not in ("new", "combined", "none"):
        raise _refuse("loader cache", spec.cache, "not new, combined or none")
    if len(spec.mig) > 1 and len(spec.mig) != spec.gpus:
        cause = f"layouts for {spec.gpus} GPUs"
        raise _refuse("MIG", len(spec.mig), cause, "give one for all or one for each")
    if spec.minors and (len(spec.minors) != spec.gpus or len(set(spec.minors)) != spec.gpus):
        raise _refuse("minors", spec.minors, "not one different number for each GPU")
    if any(not 0 <= minor < MAX_GPUS for minor in spec.minors):
        raise _refuse("minors", spec.minors, f"not between 0 and {MAX_GPUS - 1}")
    if any(not 0 <= channel < 2048 for channel in spec.imex_channels):
        raise _refuse("IMEX channels", spec.imex_channels, "not between 0 and 2047")
    model = MODELS[spec.model]
    least, most = model.reserved_memory + (64 << 20), 1 << 42
    if spec.memory and not least <= spec.memory <= most:
        raise _refuse("memory", spec.memory, f"not between {least} and {most} bytes")
    return model


def gpus_of(spec: SimSpec) -> tuple[SimGpu, ...]:
    """The GPUs that `spec` asks for, in bus order. Raises InputError."""
    model = _checked(spec)
    memory = spec.memory or model.memory
    gpus = []
    for index in range(spec.gpus):
        layout = spec.mig[index if len(spec.mig) > 1 else 0] if spec.mig else ""
        identity = _uuid(spec, index)
        bus = _BUSES[index] if index < len(_BUSES) else 0xE0 + index - len(_BUSES)
        gpus.append(SimGpu(
            model=model,
            name=f"{model.name} (simulated)",
            uuid=f"GPU-{identity}",
            serial=str(1650000000000 + int(identity[:8], 16)),
            minor=spec.minors[index] if spec.minors else index,
            bus_id=f"0000:{bus:02x}:00.0",
            memory=memory,
            mig_enabled=bool(layout),
            mig=_mig_devices(spec, index, layout, model, memory) if layout else (),
        ))  # fmt: skip
    return tuple(gpus)

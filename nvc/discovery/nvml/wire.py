"""The probe's answer, bytes to facts. The bytes come from a process that ran the vendor's code: every count,
index and character is checked. questions.py writes them.
"""

from __future__ import annotations

import struct

from nvc.base.errors import DetectionError, InitializationError
from nvc.base.value import Value
from nvc.discovery.devices.proc import SIMULATED_NAME, is_version

FRAME = struct.Struct("<8sIIiIIi96s256s96s256s")
GPU = struct.Struct("<IiIIIIIIiiIIIi96s96s")
MIG = struct.Struct("<IiIII96s")
LIMIT = struct.Struct("<QQ96s")

MAGIC = b"NVCPROBE"
VERSION = 1
GPUS_MAX = 64
MIG_MAX = 16
GPU_SIZE = GPU.size + MIG_MAX * MIG.size

OK, CONFINE, LOAD, NVML, TOO_MANY = range(5)
HAS_MINOR, MIG_CAPABLE, MIG_ENABLED = 1, 2, 4

#: nvmlBrandType_t, as nvidia-container-cli prints it.
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN", "VApps", "VPC", "VCS", "VWS",
    "CloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX",
)  # fmt: skip

_HINTS = {
    4: "check the mode of /dev/nvidia* and the identity given with --user",
    9: "load the kernel module (modprobe nvidia), or use --load-kmods",
    15: "look for Xid errors in the kernel log; the GPU needs a reset",
    18: "the driver was upgraded while its kernel module stayed: reload the module or reboot",
}
_BROKEN = "`nvidia-smi` shows whether the driver works; if it does not, reboot or reinstall it"
_HEX = frozenset("0123456789abcdefABCDEF")


class ProbeMig(Value):
    """A MIG device as the probe reports it."""

    index: int
    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: int  # MiB; 0 where NVML does not tell


class ProbeGpu(Value):
    """A GPU as the probe reports it."""

    index: int
    uuid: str
    minor: int  # -1 where NVML does not tell
    address: tuple[int, int, int]  # PCI domain, bus, device
    name: str
    brand: str
    architecture: str  # "9.0"
    mig_capable: bool
    mig_enabled: bool
    mig: tuple[ProbeMig, ...]
    memory: int  # MiB; 0 where NVML does not tell
    fabric: tuple[int, int]  # its state, 0 where there is none or NVML does not tell, and that state's nvmlReturn_t


class ProbeReply(Value):
    """Everything that the probe reports of the driver."""

    driver_version: str  # digits and dots
    simulated: bool  # the name of every GPU says so; False without GPUs
    cuda_version: str
    library: str  # where NVML was found, inside the driver root; "" where it does not tell
    gpus: tuple[ProbeGpu, ...]
    warnings: tuple[str, ...]  # of GPUs and MIG devices that NVML could not describe


def parse_reply(data: bytes) -> ProbeReply:
    """The facts of a whole and sound answer.

    Raises InitializationError for what the probe reports (no NVML, no driver), DetectionError for a failed
    query and for an answer that contradicts itself.
    """
    if len(data) < FRAME.size:
        raise _malformed(f"truncated answer: {len(data)} of {FRAME.size} bytes")
    magic, version, status, code, count, size, cuda, step, text, driver, library = FRAME.unpack_from(data)
    if magic != MAGIC or version != VERSION or size != GPU_SIZE:
        raise _malformed("malformed answer: header")
    if status != OK:
        raise _failure(status, code, _text(step, "step"), _text(text, "text"))
    if count > GPUS_MAX:
        raise _malformed(f"malformed answer: {count} GPUs")
    if len(data) != FRAME.size + count * GPU_SIZE:
        raise _malformed(f"truncated answer: {len(data)} of {FRAME.size + count * GPU_SIZE} bytes")
    number = _text(driver, "driver version")
    if not is_version(number):
        raise _malformed("malformed answer: driver version")
    if not 0 <= cuda < 1000000:
        raise _malformed("malformed answer: CUDA version")
    warnings: list[str] = []
    gpus = []
    for index in range(count):
        gpu = _gpu(data, index, FRAME.size + index * GPU_SIZE, warnings)
        if gpu is not None:
            gpus.append(gpu)
    _check_unique(gpus)
    return ProbeReply(
        number,
        bool(gpus) and all(gpu.name.endswith(SIMULATED_NAME) for gpu in gpus),
        f"{cuda // 1000}.{cuda % 100 // 10}",
        _text(library, "library path"),
        tuple(gpus),
        tuple(warnings),
    )


def parse_limits(data: bytes, uuids: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Soft and hard limits, in bytes, that the probe has replaced on the devices with these UUIDs.

    Raises InitializationError, DetectionError, and LimitsRefused where NVML does not set them.
    """
    if len(data) < FRAME.size:
        raise _malformed(f"truncated answer: {len(data)} of {FRAME.size} bytes")
    magic, version, status, code, count, size, _, step, text, _, _ = FRAME.unpack_from(data)
    if magic != MAGIC or version != VERSION or size != LIMIT.size:
        raise _malformed("malformed answer: header")
    if status == NVML and _text(step, "step") != "nvmlInit":
        raise LimitsRefused(code, lower_tail(_text(text, "text")))
    if status != OK:
        raise _failure(status, code, _text(step, "step"), _text(text, "text"))
    if count != len(uuids) or len(data) != FRAME.size + count * LIMIT.size:
        raise _malformed(f"malformed answer: {count} limits")
    found = []
    for index, uuid in enumerate(uuids):
        soft, hard, named = LIMIT.unpack_from(data, FRAME.size + index * LIMIT.size)
        if _text(named, "GPU UUID") != uuid:
            raise _malformed("malformed answer: GPU UUID")
        found.append((soft, hard))
    return tuple(found)


class LimitsRefused(Exception):
    """NVML did not set limits of memory."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code  # nvmlReturn_t


def _malformed(cause: str) -> DetectionError:
    return DetectionError(
        "driver rpc error", "", cause, "libnvidia-ml.so.1 does not behave like NVML: reinstall the driver"
    )


def _failure(status: int, code: int, step: str, text: str) -> InitializationError | DetectionError:
    if status == CONFINE:
        import os

        error = OSError(code, os.strerror(code) if code else "failed")
        hint = "run as root, or allow user namespaces" if step == "chroot" else ""
        return InitializationError.of("confine driver probe", step, error, hint)
    if status == LOAD:
        hint = "install the driver, run ldconfig, or name the driver's root with --root"
        return InitializationError("load library failed", "", lower_tail(text), hint)
    if status == NVML:
        if step == "nvmlInit":
            return InitializationError("nvml error", "", lower_tail(text), _HINTS.get(code, _BROKEN))
        return DetectionError("nvml error", step, lower_tail(text), _HINTS.get(code, _BROKEN))
    if status == TOO_MANY:
        return DetectionError("driver error", "", f"too many devices: {code}, at most {GPUS_MAX}")
    return _malformed("malformed answer: status")


def lower_tail(text: str) -> str:
    """`text` with what follows its last colon in lower case, as callers know these messages."""
    head, colon, tail = text.rpartition(":")
    return head + colon + tail.lower()


def _text(field: bytes, what: str) -> str:
    """A fixed field as text: it must end within the field and be printable."""
    end = field.find(b"\0")
    text = field[:end].decode("utf-8", "replace") if end >= 0 else "\0"
    if not text.isprintable() or "\ufffd" in text:
        raise _malformed(f"malformed answer: {what}")
    return text


def _gpu(data: bytes, position: int, offset: int, warnings: list[str]) -> ProbeGpu | None:
    (
        index, status, flags, minor, domain, bus, device, brand, major, low, mig_count, memory,
        fabric_state, fabric_status, uuid, name,
    ) = GPU.unpack_from(data, offset)  # fmt: skip
    if index != position:
        raise _malformed("malformed answer: GPU index")
    if status != 0:
        cause = lower_tail(_text(name, "GPU error"))
        warnings.append(f"GPU {index} is left out: {_text(uuid, 'GPU call')}: {cause}")
        return None
    text = _text(uuid, "GPU UUID")
    if not is_uuid(text, "GPU-"):
        raise _malformed("malformed answer: GPU UUID")
    if flags & HAS_MINOR and minor >= 1 << 20:
        raise _malformed("malformed answer: GPU minor")
    if bus > 255 or device > 31:
        raise _malformed("malformed answer: PCI address")
    if not 0 <= major <= 999 or not 0 <= low <= 99:
        raise _malformed("malformed answer: compute capability")
    if mig_count > MIG_MAX:
        raise _malformed(f"malformed answer: {mig_count} MIG devices")
    mig = []
    for number in range(mig_count):
        found = _mig(data, index, offset + GPU.size + number * MIG.size, warnings)
        if found is not None:
            mig.append(found)
    return ProbeGpu(
        index, text, minor if flags & HAS_MINOR else -1, (domain, bus, device),
        _text(name, "GPU name") or "Unknown", BRANDS[brand] if brand < len(BRANDS) else BRANDS[0],
        f"{major}.{low}", bool(flags & MIG_CAPABLE), bool(flags & MIG_ENABLED), tuple(mig), memory,
        (fabric_state, fabric_status),
    )  # fmt: skip


def _mig(data: bytes, gpu: int, offset: int, warnings: list[str]) -> ProbeMig | None:
    index, status, gpu_instance, compute_instance, memory, uuid = MIG.unpack_from(data, offset)
    if status != 0:
        warnings.append(
            f"MIG device {gpu}:{index} is left out: {_text(uuid, 'MIG call')}: nvml error {status}"
        )
        return None
    text = _text(uuid, "MIG UUID")
    if not _is_mig_uuid(text):
        raise _malformed("malformed answer: MIG UUID")
    if index >= 1024 or gpu_instance >= 1024 or compute_instance >= 1024:
        raise _malformed("malformed answer: MIG instance")
    return ProbeMig(index, text, gpu_instance, compute_instance, memory)


def is_uuid(text: str, prefix: str) -> bool:
    """Whether `text` is `prefix` and a UUID of 8-4-4-4-12 hexadecimal digits."""
    groups = text[len(prefix) :].split("-")
    return (
        text.startswith(prefix)
        and [len(group) for group in groups] == [8, 4, 4, 4, 12]
        and _HEX.issuperset("".join(groups))
    )


def _is_mig_uuid(text: str) -> bool:
    """MIG-<uuid>, or MIG-GPU-<uuid>/<gi>/<ci> of drivers before 470."""
    base, *instances = text.split("/")
    if not instances:
        return is_uuid(base, "MIG-")
    numbers = all(part.isascii() and part.isdigit() and len(part) <= 4 for part in instances)
    return is_uuid(base, "MIG-GPU-") and len(instances) == 2 and numbers


def _check_unique(gpus: list[ProbeGpu]) -> None:
    uuids = [gpu.uuid for gpu in gpus] + [mig.uuid for gpu in gpus for mig in gpu.mig]
    minors = [gpu.minor for gpu in gpus if gpu.minor >= 0]
    addresses = [gpu.address for gpu in gpus]
    for what, values in (("UUID", uuids), ("minor", minors), ("PCI address", addresses)):
        if len(set(values)) != len(values):
            raise _malformed(f"malformed answer: one {what} twice")
    for gpu in gpus:
        for values in ([mig.index for mig in gpu.mig], [mig.uuid for mig in gpu.mig]):
            if len(set(values)) != len(values):
                raise _malformed("malformed answer: one MIG index twice")
        if len({(mig.gpu_instance, mig.compute_instance) for mig in gpu.mig}) != len(gpu.mig):
            raise _malformed("malformed answer: one MIG instance twice")

"""The probe's answer, JSON to facts. It comes from a process that ran the vendor's code: every count, index and
character is checked. questions.py writes it: a status, a code, what failed, why, and what else there is to tell.
"""

from __future__ import annotations

from nvc.base import fastjson
from nvc.base.errors import DetectionError, InitializationError
from nvc.base.fastjson import WORD, checked, row
from nvc.base.types import Any
from nvc.base.value import Value
from nvc.discovery.devices.proc import SIMULATED_NAME, is_version

GPUS_MAX = 64
MIG_MAX = 16

OK, CONFINE, LOAD, NVML, TOO_MANY = range(5)
ANSWER_MAX = 1 << 20  # bytes

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


def _gpu(
    index: int, uuid: str, minor: int, address: tuple[int, int, int], name: str, brand: int,
    capability: tuple[int, int], *rest: Any,
) -> ProbeGpu:  # fmt: skip
    brand_name = BRANDS[brand] if brand < len(BRANDS) else BRANDS[0]
    return ProbeGpu(index, uuid, minor, address, name or "Unknown", brand_name, "{}.{}".format(*capability), *rest)


_PART = range(1024)
_GPU = (
    _gpu, range(GPUS_MAX), str, range(-1, 1 << 20), (row, WORD, range(256), range(32)), str, WORD,
    (row, range(1000), range(100)), bool, bool, [(ProbeMig, _PART, str, _PART, _PART, WORD)], WORD,
    (row, WORD, WORD),
)  # fmt: skip
#: The driver's version, CUDA's, the library, the GPUs, and those and the MIG devices that NVML could not describe.
_REPLY = (
    row, str, range(1000000), str, [_GPU], [(row, range(GPUS_MAX), str, str)],
    [(row, range(GPUS_MAX), WORD, str, range(-(1 << 31), 1 << 31))],
)  # fmt: skip


def _answer(data: bytes, shape: Any) -> tuple[int, int, str, str, Any]:
    """Status, code, step, text, and of a sound answer what is told. Raises DetectionError."""
    try:
        head = (row, range(TOO_MANY + 1), range(-(1 << 31), 1 << 31), str, str, object)
        status, code, step, text, told = checked(fastjson.parse(data, ANSWER_MAX), head)
        return status, code, _printable(step), _printable(text), checked(told, shape) if status == OK else ()
    except ValueError as error:
        raise _malformed(f"malformed answer: {error}") from None


def parse_reply(data: bytes) -> ProbeReply:
    """The facts of a whole and sound answer.

    Raises InitializationError for what the probe reports (no NVML, no driver), DetectionError for a failed
    query and for an answer that contradicts itself.
    """
    status, code, step, text, told = _answer(data, _REPLY)
    if status != OK:
        raise _failure(status, code, step, text)
    number, cuda, library, gpus, lost, lost_mig = told
    if not is_version(number):
        raise _malformed("malformed answer: driver version")
    indices = [*(gpu.index for gpu in gpus), *(index for index, _, _ in lost)]
    if sorted(indices) != list(range(len(indices))):
        raise _malformed("malformed answer: GPU index")
    for gpu in gpus:
        _printable(gpu.name)
        if not is_uuid(gpu.uuid, "GPU-"):
            raise _malformed("malformed answer: GPU UUID")
        if len(gpu.mig) > MIG_MAX:
            raise _malformed(f"malformed answer: {len(gpu.mig)} MIG devices")
        if not all(_is_mig_uuid(mig.uuid) for mig in gpu.mig):
            raise _malformed("malformed answer: MIG UUID")
    _check_unique(gpus)
    return ProbeReply(
        number,
        bool(gpus) and all(gpu.name.endswith(SIMULATED_NAME) for gpu in gpus),
        f"{cuda // 1000}.{cuda % 100 // 10}",
        _printable(library),
        gpus,
        (
            *(f"GPU {at} is left out: {_printable(call)}: {lower_tail(_printable(why))}" for at, call, why in lost),
            *(
                f"MIG device {gpu}:{index} is left out: {_printable(call)}: nvml error {error}"
                for gpu, index, call, error in lost_mig
            ),
        ),
    )


def parse_limits(data: bytes, uuids: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Soft and hard limits, in bytes, that the probe has replaced on the devices with these UUIDs.

    Raises InitializationError, DetectionError, and LimitsRefused where NVML does not set them.
    """
    status, code, step, text, told = _answer(data, [(row, str, range(1 << 64), range(1 << 64))])
    if status == NVML and step != "nvmlInit":
        raise LimitsRefused(code, lower_tail(text))
    if status != OK:
        raise _failure(status, code, step, text)
    if tuple(uuid for uuid, _, _ in told) != uuids:
        raise _malformed("malformed answer: GPU UUID")
    return tuple((soft, hard) for _, soft, hard in told)


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
    return DetectionError("driver error", "", f"too many devices: {code}, at most {GPUS_MAX}")


def lower_tail(text: str) -> str:
    """`text` with what follows its last colon in lower case, as callers know these messages."""
    head, colon, tail = text.rpartition(":")
    return head + colon + tail.lower()


def _printable(text: str) -> str:
    """The text, which must be one line that shows as it is. Raises DetectionError."""
    if not text.isprintable() or "\ufffd" in text or len(text) > 255:
        raise _malformed("malformed answer: text")
    return text


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


def _check_unique(gpus: tuple[ProbeGpu, ...]) -> None:
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

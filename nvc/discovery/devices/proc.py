"""What the kernel's side of the driver says: /proc/driver/nvidia, /proc/devices and /sys/module."""

from __future__ import annotations

from nvc.base.errors import DetectionError
from nvc.base.value import Value
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import ProcFile

PROC = "/proc/driver/nvidia"
GPUS = PROC + "/gpus"
RELOAD = "reload the driver's kernel modules, or reboot"
#: The end of the names of a simulated driver's GPUs. Its versions look like a real driver's: tools parse them.
SIMULATED_NAME = " (simulated)"

_HEX = frozenset("0123456789abcdefABCDEF")


class ProcGpu(Value):
    """A GPU that the kernel driver has claimed."""

    directory: str  # /proc/driver/nvidia/gpus/<bus id as the kernel writes it>
    address: tuple[int, int, int]  # PCI domain, bus, device
    minor: int  # -1 where the file does not tell
    uuid: str  # "" where the file does not tell
    excluded: bool  # by the driver's configuration; NVML does not see it


def is_version(text: str) -> bool:
    """Whether `text` is a driver version: two to four numbers joined by dots, at most 24 characters."""
    parts = text.split(".")
    return (
        len(text) <= 24 and 2 <= len(parts) <= 4 and all(part.isascii() and part.isdigit() for part in parts)
    )


def kernel_version(system: HostRoot) -> str:
    """Version of the loaded kernel module; "" where it is not told.

    Source: /sys/module/nvidia/version, else the NVRM line of /proc/driver/nvidia/version.
    """
    content = system.read_optional("/sys/module/nvidia/version", 256)
    text = (content or b"").decode("ascii", "replace").strip()
    if is_version(text):
        return text
    for line in (system.read_optional(PROC + "/version", 4096) or b"").split(b"\n"):
        if line.startswith(b"NVRM version:"):
            for word in line.decode("ascii", "replace").split()[2:]:
                if is_version(word):
                    return word
    return ""


def char_majors(content: bytes) -> dict[str, int]:
    """Majors by name from the "Character devices:" section of /proc/devices; the first of a name wins."""
    majors: dict[str, int] = {}
    for line in content.split(b"\n"):
        fields = line.split()
        if line.startswith(b"Block devices:"):
            break
        if len(fields) == 2 and fields[0].isdigit() and len(fields[0]) <= 7:
            majors.setdefault(fields[1].decode("ascii", "replace"), int(fields[0]))
    return majors


def proc_files(system: HostRoot) -> tuple[ProcFile, ...]:
    """params, version and registry of /proc/driver/nvidia, those that exist."""
    found = []
    for name in ("params", "version", "registry"):
        content = system.read_optional(f"{PROC}/{name}", 65536)
        if content is not None:
            found.append(ProcFile(name, content))
    return tuple(found)


def parse_address(text: str) -> tuple[int, int, int] | None:
    """`text` as a PCI address domain:bus:device.function with hexadecimal numbers, or None."""
    head, dot, function = text.partition(".")
    parts = head.split(":")
    if not dot or len(function) != 1 or len(parts) != 3 or not all(parts):
        return None
    if len(parts[0]) > 8 or len(parts[1]) > 2 or len(parts[2]) > 2 or not _HEX.issuperset("".join(parts)):
        return None
    domain, bus, device = (int(part, 16) for part in parts)
    return (domain, bus, device) if device < 32 else None


def fields_of(content: bytes) -> dict[str, str]:
    """`Name: value` lines as the driver writes them, names without their padding."""
    fields = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    return fields


def proc_gpus(system: HostRoot) -> tuple[ProcGpu, ...] | None:
    """The GPUs below /proc/driver/nvidia/gpus by address; None where there is no such directory.

    Raises DetectionError when two of them claim one minor.
    """
    if not system.exists(GPUS):
        return None
    found = []
    minors: dict[int, str] = {}
    for name, _ in system.entries(GPUS, limit=256):
        address = parse_address(name)
        if address is None:
            continue
        fields = fields_of(system.read_optional(f"{GPUS}/{name}/information", 16384) or b"")
        text = fields.get("Device Minor", "")
        minor = int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else -1
        if minor >= 0 and minor in minors:
            cause = f"{minors[minor]} has minor {minor} too"
            raise DetectionError("read GPU information", f"{GPUS}/{name}", cause, RELOAD)
        minors[minor] = name
        excluded = fields.get("GPU Excluded", fields.get("GPU Blacklisted", "No")) == "Yes"
        found.append(ProcGpu(f"{GPUS}/{name}", address, minor, fields.get("GPU UUID", ""), excluded))
    found.sort(key=lambda gpu: gpu.address)
    return tuple(found)

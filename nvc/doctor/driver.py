"""The driver: its kernel modules, whether it answers, its services, what the kernel log says of it."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat

from nvc.discovery.firmware import find_firmwares, firmware_directories
from nvc.discovery.proc import PROC, kernel_version
from nvc.discovery.wsl import wsl_node
from nvc.doctor import AS_ROOT, Blocked, Check, failed, ok, unknown, warning
from nvc.doctor.context import read_text
from nvc.errors import InitializationError, NvcError, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

_TEGRA = "/etc/nv_tegra_release"
_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
#: Seconds that NVML may take: the peers' limit is 10, and a container start waits for it.
SLOW = 3.0
_KMSG = "/dev/kmsg"
_KMSG_LIMIT = 16 << 20
_XID = re.compile(r"NVRM: Xid \(([^)]{1,64})\): ([0-9]{1,4}),?(.{0,160})")
#: Xid errors after which the GPU does no work until it is reset, from NVIDIA's catalogue of Xid errors.
_FATAL = {46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 154}
_SERVICES = (
    ("nvidia-persistenced", "/run/nvidia-persistenced/socket"),
    ("nvidia-fabricmanager", "/run/nvidia-fabricmanager/socket"),
)


def root(context: Context) -> Iterator[Finding]:
    """Whether the driver root is there."""
    try:
        context.host  # noqa: B018
    except Blocked:
        yield failed(
            f"the driver root {context.root} cannot be opened",
            f"the configuration is {context.config.path or 'the default one'}",
            advice="set `root` in [nvidia-container-cli] to where the driver is, or name it with --root",
        )
        return
    kind = ", a simulated driver" if context.host.simulated else ""
    yield ok(f"the driver root is {context.root}{kind}")


def module(context: Context) -> Iterator[Finding]:
    """Whether the kernel module is loaded."""
    system = context.host.system
    version = kernel_version(system)
    if version:
        yield ok(f"kernel module {version} is loaded", *_first_line(context))
        return
    if wsl_node(context.host.devices) is not None:
        yield ok("WSL: the driver is Windows', reached through /dev/dxg")
        return
    cards = _cards()
    if not cards:
        yield failed(
            "no NVIDIA driver is loaded, and no NVIDIA GPU is on the PCI bus",
            f"no {PROC}/version, no /sys/module/nvidia",
            commands=("nvc-cli sim create /srv/sim", "nvc-cli --root /srv/sim doctor"),
            advice="install a GPU and its driver, or try nvc on a simulated one",
        )
        return
    holders = {holder for _, holder in cards if holder}
    shown = [f"{address}: {holder or 'no kernel driver'}" for address, holder in cards]
    if "nouveau" in holders:
        yield failed(
            "the kernel driver nouveau holds the GPUs",
            *shown,
            commands=(
                "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/nouveau.conf",
            ),
            advice="then rebuild the initramfs (update-initramfs -u, or dracut --force) and reboot",
        )
        return
    if holders & {"vfio-pci"} and "nvidia" not in holders:
        yield failed(
            "the GPUs are assigned to virtual machines (vfio-pci)",
            *shown,
            advice="use nvc in that machine, or bind the GPUs to the kernel driver nvidia",
        )
        return
    yield failed(
        f"the kernel module nvidia is not loaded, although {len(cards)} NVIDIA GPUs are on the PCI bus",
        *shown,
        commands=("modprobe nvidia",),
        advice="if that fails: is it built for this kernel (dkms status), is it signed (mokutil --sb-state)?",
    )


def platform(context: Context) -> Iterator[Finding]:
    """Whether the GPU is one of its own, and not part of a Tegra system."""
    release = read_text(_TEGRA, 4096)
    if release and not context.host.simulated:
        yield warning(
            "this is a Jetson: containers get its integrated GPU by lists (CSV) that nvc does not read",
            f"{_TEGRA}: {release.splitlines()[0][:80]}",
            advice="use NVIDIA's toolkit in mode csv for the integrated GPU; GPUs on PCI Express work with nvc",
        )
    else:
        yield ok("Tegra: not detected")


def modules(context: Context) -> Iterator[Finding]:
    """Whether CUDA's own module is there too."""
    version = context.module
    if "nvidia-uvm" not in context.majors:
        yield failed(
            "the kernel module nvidia-uvm is not loaded: CUDA cannot start",
            f"no nvidia-uvm in {context.host.system.path.rstrip('/')}/proc/devices",
            commands=("modprobe nvidia-uvm", "nvidia-modprobe -u -c 0"),
        )
    for name in ("nvidia_uvm", "nvidia_modeset"):
        content = context.host.system.read_optional(f"/sys/module/{name}/version", 256)
        other = (content or b"").decode("ascii", "replace").strip()
        if other and other != version:
            yield failed(
                f"{name} is of driver {other}, nvidia of {version}",
                commands=(f"modprobe -r {name}", f"modprobe {name}"),
            )


def nvml(context: Context) -> Iterator[Finding]:
    """Whether the driver answers, and in time."""
    facts, error, seconds = context.asked
    if facts is None:
        assert error is not None
        yield _unanswered(context, error)
        return
    if seconds > SLOW:
        yield warning(
            f"the driver took {seconds:.1f} s to answer: container starts wait as long",
            commands=("systemctl enable --now nvidia-persistenced",),
            advice="without the persistence daemon, the driver restarts for each program",
        )
    label = f"driver {facts.driver_label}, CUDA {facts.cuda_version}"
    if not facts.gpus:
        yield failed(f"{label} has no GPU", advice="check lspci, and the kernel log: dmesg | grep NVRM")
    else:
        yield ok(f"{label} answers for {len(facts.gpus)} GPUs in {seconds * 1000:.0f} ms")
    for text in facts.warnings:
        yield warning(text)


def _unanswered(context: Context, error: NvcError) -> Finding:
    text = f"the driver cannot be asked: {error.step}: {': '.join(str(x) for x in (error.path, error.cause) if x)}"
    if isinstance(error, PermissionDenied):
        return unknown(text, advice=error.hint)
    if os.geteuid() != 0 and isinstance(error, InitializationError) and "start the driver" in error.step:
        return unknown(text, advice=AS_ROOT)
    commands: tuple[str, ...] = ()
    if "timed out" in text:
        commands = ("systemctl enable --now nvidia-persistenced", "dmesg | grep NVRM")
    return failed(text, f"driver root {context.root}", commands=commands, advice=error.hint)


def gpus(context: Context) -> Iterator[Finding]:
    """Whether every GPU of the kernel module is also NVML's."""
    facts = context.facts
    known = {gpu.proc_dir for gpu in facts.gpus}
    for gpu in context.gpus:
        name = gpu.directory.rpartition("/")[2]
        if gpu.excluded:
            yield ok(f"GPU {name} is excluded by the driver's configuration")
        elif gpu.directory not in known:
            yield failed(
                f"GPU {name} is the kernel module's, but NVML does not show it",
                f"{gpu.directory} is there",
                commands=("dmesg | grep -e NVRM -e Xid",),
                advice="it fell off the bus or did not start: reset it, or reboot",
            )


def firmware(context: Context) -> Iterator[Finding]:
    """Whether the GPU's own firmware is there for the loaded version."""
    version = context.module
    places = firmware_directories(context.host.system, version)
    found, _ = find_firmwares(context.host.driver, places)
    text = (context.host.system.read_optional(f"{PROC}/version", 4096) or b"").decode("utf-8", "replace")
    if not found and "Open Kernel Module" in text:
        yield failed(
            f"there is no GSP firmware of version {version}, which the open kernel modules need",
            *(f"no gsp*.bin in {context.path(place)}" for place in places),
            advice=f"install the firmware package of driver {version} (nvidia-kernel-common, firmware-nvidia-gsp)",
        )


def services(context: Context) -> Iterator[Finding]:
    """Whether sockets of the driver's services have a service."""
    if context.host.simulated:
        yield ok("a simulated driver has sockets without services")
        return
    for service, path in _SERVICES:
        problem = _socket_problem(context.path(path))
        if problem:
            yield warning(
                f"{context.path(path)} is stale: no service listens there",
                problem,
                commands=(f"rm {context.path(path)}", f"systemctl restart {service}"),
            )
        elif (
            service == "nvidia-fabricmanager"
            and not os.path.exists(context.path(path))
            and _has_nvswitch(context)
        ):
            yield failed(
                "this machine has NVSwitches, but its fabric manager does not run: CUDA fails with error 802",
                f"no {context.path(path)}",
                commands=("systemctl enable --now nvidia-fabricmanager",),
            )


def _has_nvswitch(context: Context) -> bool:
    return bool(context.host.system.entries("/proc/driver/nvidia-nvswitch/devices"))


def _socket_problem(path: str) -> str:
    """Why nobody can be talking to a socket; "" where somebody is, or it cannot be told."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return "it is not a socket"
    except OSError:
        return ""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return "connection refused"
        except OSError:
            return ""
    return ""


def xid(context: Context) -> Iterator[Finding]:
    """Errors of GPUs in the kernel log."""
    try:
        lines = kernel_log()
    except OSError as error:
        if error.errno == errno.ENOENT:
            yield unknown("the kernel log is not available")
        else:
            yield unknown(f"the kernel log cannot be read: {(error.strerror or '').lower()}", advice=AS_ROOT)
        return
    found = xids(lines)
    if not found:
        return
    facts, _, _ = context.asked
    answering = (
        {gpu.bus_id.partition(":")[2].partition(".")[0] for gpu in facts.gpus}
        if facts is not None
        else set()
    )
    for (place, number), told in found.items():
        commands = (f"nvidia-smi --gpu-reset -i {place.removeprefix('PCI:')}",)
        advice = "reset the GPU while nothing uses it, or reboot; NVIDIA's Xid catalogue says what it means"
        last = told[-1].partition(f"): {number}")[2].strip(" ,")
        text = f"GPU {place} reported Xid {number}, {len(told)} times: {last[:80]}"
        if number in _FATAL and place.rpartition("PCI:")[2].partition(":")[2] not in answering:
            yield failed(text, *told[-3:], commands=commands, advice=advice)
        elif number in _FATAL:
            yield warning(
                f"{text}; it answers again", *told[-3:], advice=f"if programs still fail: {advice}"
            )
        else:
            yield warning(text, *told[-3:], advice="usually a bug of the program that the line names")


def xids(lines: list[str]) -> dict[tuple[str, int], list[str]]:
    """Lines of the kernel log by the GPU and the number of the Xid error that they report."""
    found: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        match = _XID.search(line)
        if match:
            found.setdefault((match[1], int(match[2])), []).append(line)
    return found


def kernel_log() -> list[str]:
    """The lines of the kernel log that are the NVIDIA driver's. Raises OSError."""
    fd = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = []
    size = 0
    rest = b""
    try:
        while size < _KMSG_LIMIT:
            try:
                part = os.read(fd, 1 << 16)  # a record of the log, or part of a file
            except BrokenPipeError:
                continue  # records were overwritten meanwhile
            except BlockingIOError:
                break
            if not part:
                break
            size += len(part)
            *whole, rest = (rest + part).split(b"\n")
            found += [line for line in whole if b"NVRM" in line]
    finally:
        os.close(fd)
    lines = []
    for line in found:
        head, _, text = line.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        seconds = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else 0.0
        lines.append(f"[{seconds:.3f}] {''.join(c if c.isprintable() else '?' for c in text or head)}")
    return lines


def _cards() -> list[tuple[str, str]]:
    """PCI addresses of NVIDIA GPUs, each with its kernel driver, "" where it has none."""
    cards = []
    try:
        names = sorted(os.listdir(_PCI))
    except OSError:
        return []
    for name in names[:4096]:
        if read_text(f"{_PCI}/{name}/vendor", 64) != _NVIDIA:
            continue
        if not read_text(f"{_PCI}/{name}/class", 64).startswith(("0x0300", "0x0302")):
            continue
        try:
            holder = os.path.basename(os.readlink(f"{_PCI}/{name}/driver"))
        except OSError:
            holder = ""
        cards.append((name, holder))
    return cards


def _first_line(context: Context) -> tuple[str, ...]:
    content = context.host.system.read_optional(f"{PROC}/version", 4096) or b""
    line = content.split(b"\n")[0].decode("utf-8", "replace").strip()
    return (line,) if line else ()


LOADED = (
    Check("driver.root", "the driver root of the configuration, or of --root", root),
    Check("driver.module", "the kernel module nvidia, or another driver of the GPUs", module),
    Check("driver.platform", "the platform: PC or Tegra", platform),
    Check("driver.modules", "nvidia-uvm and nvidia-modeset, of the same version", modules),
)
ANSWERS = (
    Check("driver.nvml", "whether the driver answers, and how fast", nvml),
    Check("driver.gpus", "whether NVML lists every GPU of the kernel module", gpus),
    Check("driver.firmware", "GSP firmware of the loaded version", firmware),
    Check("driver.services", "sockets of nvidia-persistenced and nvidia-fabricmanager", services),
    Check("driver.xid", "Xid errors in the kernel log", xid),
)

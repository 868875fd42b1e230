"""The driver: its kernel modules, whether it answers, its services, what the kernel log says of it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

from nvc.base.errors import InitializationError, PermissionDenied, counted
from nvc.discovery.containers.files import names_in
from nvc.discovery.devices.proc import PROC, kernel_version
from nvc.discovery.devices.sockets import SOCKETS
from nvc.discovery.driver.firmware import find_firmwares, firmware_directories
from nvc.discovery.driver.wsl import wsl_node
from nvc.doctor import AS_ROOT, FAILED, OK, UNKNOWN, WARNING, Blocked, Check, Fact, Row
from nvc.doctor.context import Context, read_text
from nvc.kubernetes.health.health import OF_PROGRAMS, UNTIL_RESET

_PCI = "/sys/bus/pci/devices"
_NVIDIA, _GRAPHICS = "0x10de", ("0x0300", "0x0302")
#: Seconds that NVML may take: the peers' limit is 10, and a container start waits for it.
SLOW = 3.0
_KMSG = "/dev/kmsg"
_KMSG_LIMIT = 16 << 20
_XID = re.compile(r"NVRM: Xid \(([^)]{1,64})\): ([0-9]{1,4}),?(.{0,160})")


def _root(context: Context) -> Iterator[Fact]:
    fact = Fact(root=context.root, config=context.config.path or "the default one")
    try:
        fact.kind = ", a simulated driver" if context.host.simulated else ""
    except Blocked:
        fact.closed = True
    yield fact


def _module(context: Context) -> Iterator[Fact]:
    system = context.host.system
    cards = _cards()
    yield Fact(
        version=kernel_version(system),
        wsl=wsl_node(context.host.devices),
        count=len(cards),
        drivers=set(cards.values()),
        seen=[f"{address}: {holder or 'no kernel driver'}" for address, holder in cards.items()],
    )


def _cards() -> dict[str, str]:
    """PCI addresses of NVIDIA GPUs, each with its kernel driver, "" where it has none."""
    cards = {}
    for name in names_in(_PCI):
        vendor, kind = (read_text(f"{_PCI}/{name}/{file}") for file in ("vendor", "class"))
        if vendor == _NVIDIA and kind.startswith(_GRAPHICS):
            driver = f"{_PCI}/{name}/driver"
            cards[name] = os.path.basename(os.readlink(driver)) if os.path.islink(driver) else ""
    return cards


def _modules(context: Context) -> Iterator[Fact]:
    version = context.module
    yield Fact(uvm="nvidia-uvm" in context.majors, root=context.host.system.path.rstrip("/"))
    for name in ("nvidia_uvm", "nvidia_modeset"):
        content = context.host.system.read_optional(f"/sys/module/{name}/version", 256) or b""
        other = content.decode("ascii", "replace").strip()
        yield Fact(uvm=True, name=name, version=version, other=other if other != version else "")


def _nvml(context: Context) -> Iterator[Fact]:
    facts, error, seconds = context.asked
    if facts is not None:
        yield Fact(slow=seconds > SLOW, seconds=seconds)
        yield Fact(driver=facts.driver_label, cuda=facts.cuda_version, count=len(facts.gpus),
                   gpus=counted(len(facts.gpus), "GPU"), ms=seconds * 1000)  # fmt: skip
        ldconfig = "ldconfig" if context.root == "/" else f"ldconfig -r {context.root}"
        for text in facts.warnings:
            yield Fact(warning=text, run=[ldconfig] if "loader cache" in text else [])
    elif error is not None:
        text = f"{error.step}: {': '.join(str(part) for part in (error.path, error.cause) if part)}"
        rights = os.geteuid() and isinstance(error, InitializationError) and "start the driver" in error.step
        yield Fact(
            text=text,
            root=context.root,
            rights=rights or isinstance(error, PermissionDenied),
            hint=AS_ROOT if rights else error.hint,
            run=["systemctl enable --now nvidia-persistenced", "dmesg | grep NVRM"] if "timed out" in text else [],
        )


def _gpus(context: Context) -> Iterator[Fact]:
    known = {gpu.proc_dir for gpu in context.facts.gpus}
    for gpu in context.gpus:
        yield Fact(name=os.path.basename(gpu.directory), directory=gpu.directory, excluded=gpu.excluded,
                   shown=gpu.directory in known)  # fmt: skip


def _firmware(context: Context) -> Iterator[Fact]:
    version, system = context.module, context.host.system
    places = firmware_directories(system, version)
    is_open = b"Open Kernel Module" in (system.read_optional(f"{PROC}/version", 4096) or b"")
    if is_open and not find_firmwares(context.host.driver, places)[0]:
        yield Fact(version=version, seen=[f"no gsp*.bin in {context.path(place)}" for place in places])


def _services(context: Context) -> Iterator[Fact]:
    """A simulated driver has sockets without services."""
    switches = context.host.system.entries("/proc/driver/nvidia-nvswitch/devices")
    for service, name in SOCKETS if not context.host.simulated else ():
        path = context.path(f"/run/{name}")
        needed = service == "fabricmanager" and switches and not os.path.lexists(path)
        yield Fact(path=path, unit=f"nvidia-{service}", needed=needed, stale=_is_stale(path))


def _is_stale(path: str) -> bool:
    """Whether a socket is there, and nobody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _xid(context: Context) -> Iterator[Fact]:
    try:
        found = xids(kernel_log())
    except OSError as error:
        yield Fact(unread=(error.strerror or "").lower())
        return
    facts = context.asked[0] if found else None
    answering = {gpu.bus_id.partition(":")[2].partition(".")[0] for gpu in facts.gpus} if facts else set()
    for (place, number), told in found.items():
        yield Fact(
            place=place,
            gpu=place.removeprefix("PCI:"),
            number=number,
            times=len(told),
            last=told[-1].partition(f"): {number}")[2].strip(" ,")[:80],
            program=number in OF_PROGRAMS,
            fatal=number in UNTIL_RESET,
            answers=place.rpartition("PCI:")[2].partition(":")[2] in answering,
            seen=told[-3:],
        )


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
    data = b""
    try:
        while len(data) < _KMSG_LIMIT:
            try:
                part = os.read(fd, 1 << 16)  # a record of the log, or part of a file
            except BrokenPipeError:
                continue  # records were overwritten meanwhile
            if not part:
                break
            data += part
    except BlockingIOError:
        pass  # that was the last one
    finally:
        os.close(fd)
    return [_line(line) for line in data.split(b"\n") if b"NVRM" in line]


def _line(record: bytes) -> str:
    head, _, text = record.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    seconds = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0
    return f"[{seconds:.3f}] {''.join(c if c.isprintable() else '?' for c in text or head)}"


_MEANING = "NVIDIA's Xid catalogue says what it means"
_RESET = f"reset the GPU while nothing uses it, or reboot; {_MEANING}"
LOADED = (
    Check("driver.root", "the driver root of the configuration, or of --root", _root, (
        Row(FAILED, "the driver root {root} cannot be opened", "closed", seen=("the configuration is {config}",),
            advice="set `root` in [nvidia-container-cli] to where the driver is, or name it with --root"),
        Row(OK, "the driver root is {root}{kind}"),
    )),
    Check("driver.module", "the kernel module nvidia, or another driver of the GPUs", _module, (
        Row(OK, "kernel module {version} is loaded", "version"),
        Row(OK, "WSL: the driver is Windows', reached through /dev/dxg", "wsl"),
        Row(FAILED, "no NVIDIA driver is loaded, and no NVIDIA GPU is on the PCI bus", lambda it: not it.count,
            run=("nvc-cli sim create /srv/sim", "nvc-cli --root /srv/sim doctor"),
            advice="install a GPU and its driver, or try nvc on a simulated one"),
        Row(FAILED, "the kernel driver nouveau holds the GPUs", lambda it: "nouveau" in it.drivers,
            run=("printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/nouveau.conf",),
            advice="then rebuild the initramfs (update-initramfs -u, or dracut --force) and reboot"),
        Row(FAILED, "the GPUs are assigned to virtual machines (vfio-pci)",
            lambda it: "vfio-pci" in it.drivers and "nvidia" not in it.drivers,
            advice="use nvc in that machine, or bind the GPUs to the kernel driver nvidia"),
        Row(FAILED, "the kernel module nvidia is not loaded, although {count} NVIDIA GPUs are on the PCI bus",
            run=("modprobe nvidia",),
            advice="if that fails: is it built for this kernel (dkms status), is it signed (mokutil --sb-state)?"),
    )),
    Check("driver.modules", "nvidia-uvm and nvidia-modeset, of the same version", _modules, (
        Row(FAILED, "the kernel module nvidia-uvm is not loaded: CUDA cannot start", lambda it: not it.uvm,
            seen=("no nvidia-uvm in {root}/proc/devices",), run=("modprobe nvidia-uvm", "nvidia-modprobe -u -c 0")),
        Row(FAILED, "{name} is of driver {other}, nvidia of {version}", "other", run=("modprobe -r {name}",
            "modprobe {name}")),
    )),
)  # fmt: skip
ANSWERS = (
    Check("driver.nvml", "whether the driver answers, and how fast", _nvml, (
        Row(UNKNOWN, "the driver cannot be asked: {text}", lambda it: it.text and it.rights, advice="{hint}"),
        Row(FAILED, "the driver cannot be asked: {text}", "text", seen=("driver root {root}",), advice="{hint}"),
        Row(WARNING, "the driver took {seconds:.1f} s to answer: container starts wait as long", "slow",
            run=("systemctl enable --now nvidia-persistenced",),
            advice="without the persistence daemon, the driver restarts for each program"),
        Row(WARNING, "{warning}", "warning"),
        Row(OK, "driver {driver}, CUDA {cuda} answers for {gpus} in {ms:.0f} ms", "count"),
        Row(FAILED, "driver {driver}, CUDA {cuda} has no GPU", "driver",
            advice="check lspci, and the kernel log: dmesg | grep NVRM"),
    )),
    Check("driver.gpus", "whether NVML lists every GPU of the kernel module", _gpus, (
        Row(OK, "GPU {name} is excluded by the driver's configuration", "excluded"),
        Row(FAILED, "GPU {name} is the kernel module's, but NVML does not show it", lambda it: not it.shown,
            seen=("{directory} is there",), run=("dmesg | grep -e NVRM -e Xid",),
            advice="it fell off the bus or did not start: reset it, or reboot"),
    )),
    Check("driver.firmware", "GSP firmware of the loaded version", _firmware, (
        Row(FAILED, "there is no GSP firmware of version {version}, which the open kernel modules need",
            advice="install the firmware package of driver {version} (nvidia-kernel-common, firmware-nvidia-gsp)"),
    )),
    Check("driver.services", "sockets of nvidia-persistenced and nvidia-fabricmanager", _services, (
        Row(WARNING, "{path} is stale: no service listens there", "stale", run=("rm {path}",
            "systemctl restart {unit}")),
        Row(FAILED, "this machine has NVSwitches, but its fabric manager does not run: CUDA fails with error 802",
            "needed", seen=("no {path}",), run=("systemctl enable --now nvidia-fabricmanager",)),
    )),
    Check("driver.xid", "Xid errors in the kernel log", _xid, (
        Row(UNKNOWN, "the kernel log cannot be read: {unread}", "unread", advice=AS_ROOT),
        Row(WARNING, "GPU {place} reported Xid {number}, {times} times: {last}", "program",
            advice="usually a bug of the program that the line names"),
        Row(WARNING, "GPU {place} reported Xid {number}, {times} times: {last}", lambda it: not it.fatal,
            advice=_MEANING),
        Row(WARNING, "GPU {place} reported Xid {number}, {times} times: {last}; it answers again", "answers",
            advice=f"if programs still fail: {_RESET}"),
        Row(FAILED, "GPU {place} reported Xid {number}, {times} times: {last}",
            run=("nvidia-smi --gpu-reset -i {gpu}",), advice=_RESET),
    )),
)  # fmt: skip

"""The driver: its kernel modules, whether it answers, its services, what the kernel log says of it."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator

from nvc.base.errors import counted
from nvc.base.files import closing
from nvc.discovery.containers.files import names_in
from nvc.discovery.devices.proc import PROC, kernel_version
from nvc.discovery.driver.firmware import find_firmwares, firmware_directories
from nvc.discovery.driver.libraries import read_cache
from nvc.discovery.driver.wsl import wsl_node
from nvc.discovery.nvml.asking import ask, start
from nvc.doctor import AS_ROOT, FAILED, OK, UNKNOWN, WARNING, Blocked, Check, Fact, Row
from nvc.doctor.context import Context, read_text
from nvc.kubernetes.health.health import OF_PROGRAMS, UNTIL_RESET

_PCI = "/sys/bus/pci/devices"
_NVIDIA, _GRAPHICS = "0x10de", ("0x0300", "0x0302")
#: Seconds that NVML may take: the peers' limit is 10, and a container start waits for it.
SLOW = 3.0
_KMSG = "/dev/kmsg"
_KMSG_LIMIT = 16 << 20
#: NVML_GPU_FABRIC_STATE_* of GPUs that CUDA waits for, and of those whose status tells.
_JOINING, _JOINED = {1: "not started", 2: "in progress"}, 3
_XID = re.compile(r"NVRM: Xid \(([^)]{1,64})\): ([0-9]{1,4}),?(.{0,160})")


def _root(context: Context) -> Iterator[Fact]:
    fact = Fact(root=context.root, config=context.config.path or "/etc/nvc/config.toml")
    try:
        fact.kind = ", a simulated driver" if context.host.simulated else ""
    except Blocked:
        fact.closed = True
    yield fact


def _module(context: Context) -> Iterator[Fact]:
    cards = _cards()
    yield Fact(
        version=kernel_version(context.host.system),
        wsl=wsl_node(context.host.devices),
        count=len(cards),
        drivers=set(cards.values()),
        seen=[f"{address}: {driver or 'no kernel driver'}" for address, driver in cards.items()],
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
    content = context.host.system.read_optional("/sys/module/nvidia_uvm/version", 256) or b""
    version, uvm = context.module, content.decode("ascii", "replace").strip()
    yield Fact(missing="nvidia-uvm" not in context.majors, version=version, uvm=uvm if uvm != version else "")


def _nvml(context: Context) -> Iterator[Fact]:
    facts, error, seconds = context.asked
    if error is not None:
        text = f"{error.step}: {': '.join(str(part) for part in (error.path, error.cause) if part)}"
        late = ["systemctl enable --now nvidia-persistenced", "dmesg | grep NVRM"] if "timed out" in text else []
        root = os.geteuid() == 0
        yield Fact(text=text, user=not root, seen=[f"driver root {context.root}"], run=late,
                   advice=error.hint if root else AS_ROOT)  # fmt: skip
    if facts is None:
        return
    yield Fact(slow=seconds > SLOW, seconds=seconds)
    yield Fact(facts=facts, gpus=counted(len(facts.gpus), "GPU") if facts.gpus else "", ms=seconds * 1000)
    ldconfig = "ldconfig" if context.root == "/" else f"ldconfig -r {context.root}"
    for text in facts.warnings:
        yield Fact(warning=text, run=[ldconfig] if "loader cache" in text else [])


def _gpus(context: Context) -> Iterator[Fact]:
    known = {gpu.proc_dir for gpu in context.facts.gpus}
    for gpu in context.gpus:
        if gpu.directory not in known and not gpu.excluded:
            yield Fact(name=os.path.basename(gpu.directory))


def _firmware(context: Context) -> Iterator[Fact]:
    version, system = context.module, context.host.system
    places = firmware_directories(system, version)
    is_open = b"Open Kernel Module" in (system.read_optional(f"{PROC}/version", 4096) or b"")
    if is_open and not find_firmwares(context.host.driver, places)[0]:
        yield Fact(version=version, seen=[f"no gsp*.bin in {context.path(place)}" for place in places])


def _services(context: Context) -> Iterator[Fact]:
    """NVSwitches need their fabric manager, which listens at a socket."""
    if context.host.system.entries("/proc/driver/nvidia-nvswitch/devices"):
        path = context.path("/run/nvidia-fabricmanager/socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
            if asking.connect_ex(path) in (errno.ENOENT, errno.ECONNREFUSED):
                yield Fact(path=path)


def _fabric(context: Context) -> Iterator[Fact]:
    """Its manager may run elsewhere: a virtual machine can have GPUs of NVSwitches without one of these."""
    if not context.facts.gpus or any(_services(context)):
        return
    cache, _ = read_cache(context.host.driver, context.options.ldcache)
    with start(context.host, context.options, os.uname().machine, cache) as probe:
        reply = ask(probe, "")
    found: dict[tuple[int, int], list[str]] = {}
    for gpu in reply.gpus:
        found.setdefault(gpu.fabric, []).append(str(gpu.index))
    for (state, code), gpus in found.items():
        if state and (state, code) != (_JOINED, 0):
            word = _JOINING.get(state, "")
            yield Fact(gpus=", ".join(gpus), state=state, code=code, word=word, joined=state == _JOINED)


def _xid(context: Context) -> Iterator[Fact]:
    found = xids(kernel_log())
    facts = context.asked[0] if found else None
    answering = {gpu.bus_id.partition(":")[2].partition(".")[0] for gpu in facts.gpus} if facts else set()
    for (place, number), told in found.items():
        last = told[-1].partition(f"): {number}")[2].strip(" ,")[:80]
        yield Fact(
            report=f"GPU {place} reported Xid {number}, {len(told)} times: {last}",
            gpu=place.removeprefix("PCI:"),
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
    data = bytearray()
    with closing(os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
        while len(data) < _KMSG_LIMIT:
            try:
                part = os.read(fd, 1 << 16)  # a record of the log, or part of a file
            except BrokenPipeError:
                continue  # records were overwritten in between
            except BlockingIOError:
                break  # that was the last one
            if not part:
                break
            data += part
    return [_line(line) for line in bytes(data).split(b"\n") if b"NVRM" in line]


def _line(record: bytes) -> str:
    head, _, text = record.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    seconds = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdecimal() else 0.0
    return f"[{seconds:.3f}] {''.join(c if c.isprintable() else '?' for c in text or head)}"


_MEANING = "NVIDIA's Xid catalogue says what it means"
_RESET = f"reset the GPU while nothing uses it, or reboot; {_MEANING}"
_FABRIC = (
    "on the machine that has the NVSwitches, such as the host of this virtual one, see that nvidia-fabricmanager "
    "runs, and what /var/log/fabricmanager.log says; or leave NVLink unused: NVreg_NvLinkDisable=1 for the module"
)
LOADED = (
    Check("driver.root", "the driver root of the configuration, or of --root", _root, (
        Row(FAILED, "the driver root {root} cannot be opened", "closed",
            advice="set `root` in [nvidia-container-cli] of {config} to where the driver is, or use --root"),
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
    Check("driver.modules", "nvidia-uvm, of the same version", _modules, (
        Row(FAILED, "the kernel module nvidia-uvm is not loaded: CUDA cannot start", "missing",
            run=("modprobe nvidia-uvm", "nvidia-modprobe -u -c 0")),
        Row(FAILED, "nvidia_uvm is of driver {uvm}, nvidia of {version}", "uvm",
            run=("modprobe -r nvidia_uvm", "modprobe nvidia_uvm")),
    )),
)  # fmt: skip
ANSWERS = (
    Check("driver.nvml", "whether the driver answers, and how fast", _nvml, (
        Row(UNKNOWN, "the driver cannot be asked: {text}", "user"),
        Row(FAILED, "the driver cannot be asked: {text}", "text"),
        Row(WARNING, "the driver took {seconds:.1f} s to answer: container starts wait as long", "slow",
            run=("systemctl enable --now nvidia-persistenced",),
            advice="without the persistence daemon, the driver restarts for each program"),
        Row(WARNING, "{warning}", "warning"),
        Row(OK, "driver {facts.driver_label}, CUDA {facts.cuda_version} answers for {gpus} in {ms:.0f} ms", "gpus"),
        Row(FAILED, "driver {facts.driver_label}, CUDA {facts.cuda_version} has no GPU", "facts",
            advice="check lspci, and the kernel log: dmesg | grep NVRM"),
    )),
    Check("driver.gpus", "whether NVML lists every GPU of the kernel module", _gpus, (
        Row(FAILED, "GPU {name} is the kernel module's, but NVML does not show it",
            run=("dmesg | grep -e NVRM -e Xid",),
            advice="it fell off the bus or did not start: reset it, or reboot"),
    )),
    Check("driver.firmware", "GSP firmware of the loaded version", _firmware, (
        Row(FAILED, "there is no GSP firmware of version {version}, which the open kernel modules need",
            advice="install the firmware package of driver {version} (nvidia-kernel-common, firmware-nvidia-gsp)"),
    )),
    Check("driver.services", "whether the fabric manager of NVSwitches runs", _services, (
        Row(FAILED, "this machine has NVSwitches, but its fabric manager does not run: CUDA fails with error 802",
            seen=("nobody listens at {path}",), run=("systemctl enable --now nvidia-fabricmanager",)),
    )),
    Check("driver.fabric", "whether the GPUs have joined the fabric of their NVSwitches, as NVML tells", _fabric, (
        Row(FAILED, "GPU {gpus}: joining the fabric of NVSwitches is {word} (state {state}): until then CUDA "
            "fails with error 802", "word"),
        Row(FAILED, "GPU {gpus}: joining the fabric of NVSwitches failed with NVML's error {code}: CUDA fails "
            "with error 802", "joined"),
        Row(UNKNOWN, "GPU {gpus}: NVML tells state {state} of the fabric of NVSwitches: nvc does not know it"),
    ), advice=_FABRIC),
    Check("driver.xid", "Xid errors in the kernel log", _xid, (
        Row(WARNING, "{report}", "program", advice="usually a bug of the program that the line names"),
        Row(WARNING, "{report}", lambda it: not it.fatal, advice=_MEANING),
        Row(WARNING, "{report}; it answers again", "answers", advice=f"if programs still fail: {_RESET}"),
        Row(FAILED, "{report}", run=("nvidia-smi --gpu-reset -i {gpu}",), advice=_RESET),
    )),
)  # fmt: skip

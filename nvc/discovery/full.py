"""Discovery the long way: asks NVML through the probe, and finds the driver's files meanwhile."""

from __future__ import annotations

import os

from nvc.discovery.binaries import find_binaries, search_directories
from nvc.discovery.firmware import find_firmwares, firmware_directories
from nvc.discovery.libraries import COMPAT, DIRECTORIES, find_libraries, read_cache
from nvc.discovery.mig import MigCapabilities
from nvc.discovery.nodes import control_nodes, dri_nodes, find_node, nvidia_major
from nvc.discovery.proc import char_majors, kernel_version, proc_files, proc_gpus
from nvc.discovery.sockets import find_ipcs
from nvc.discovery.wire import parse_reply
from nvc.errors import DetectionError, InitializationError
from nvc.kernel.probe import IDS_CHANGE, IDS_TRY, start_probe
from nvc.model import DeviceNode, Gpu, HostFacts, MigDevice
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.host import Host
    from nvc.discovery.hostroot import HostRoot
    from nvc.discovery.proc import ProcGpu
    from nvc.discovery.wire import ProbeGpu, ProbeReply
    from nvc.kernel.probe import Probe
    from nvc.model import Binary, Firmware, Library
    from nvc.request import DriverOptions

NVML = "libnvidia-ml.so.1"
DEFAULT_CACHE = "/etc/ld.so.cache"


class Files(Value):
    """The driver's files, and the directories whose change may change them."""

    libraries: tuple[Library, ...]
    libraries32: tuple[Library, ...]
    binaries: tuple[Binary, ...]
    firmwares: tuple[Firmware, ...]
    directories: tuple[str, ...]
    warnings: tuple[str, ...]


def find_facts(host: Host, options: DriverOptions) -> tuple[HostFacts, tuple[str, ...]]:
    """The facts, and the directories in the driver root on which they rest.

    Raises InitializationError when NVML cannot be started, DetectionError when an answer is wrong.
    """
    arch = os.uname().machine
    if arch not in COMPAT:
        raise InitializationError("detect architecture", "", arch, "x86_64 and aarch64 are supported")
    entries = cache_warnings = None
    if options.ldcache != DEFAULT_CACHE:  # the probe's loader does not know it
        entries, cache_warnings = read_cache(host.driver, options.ldcache)
    probe = start(host, options, arch, entries or [])
    try:
        if entries is None or cache_warnings is None:
            entries, cache_warnings = read_cache(host.driver, options.ldcache)
        version = kernel_version(host.system)
        files = find_files(host, options, arch, version, entries) if version else None
        reply = ask(probe, version)
    finally:
        probe.close()
    _check_version(host, version, reply)
    if files is None or not files.libraries:
        hints = (os.path.dirname(reply.library),) if reply.library.startswith("/") else ()
        files = find_files(host, options, arch, reply.driver_version, entries, hints)
    if not files.libraries:
        raise DetectionError(
            "find driver libraries", options.ldcache, f"no library of driver {reply.driver_version}",
            "run ldconfig in the driver root, or reinstall the driver",
        )  # fmt: skip
    return _assemble(host, options, reply, files, cache_warnings), files.directories


def start(host: Host, options: DriverOptions, arch: str, entries: list[tuple[int, str, str]]) -> Probe:
    """Starts the probe in the driver root, with the names by which it may find NVML."""
    places = [
        path for _, name, path in entries if name == NVML and path.startswith("/") and path.isprintable()
    ]
    places.append(NVML)
    places += [f"{directory}/{NVML}" for directory in DIRECTORIES[arch]]
    here = os.stat("/")
    root = os.fstat(host.driver.fd)
    own = (here.st_dev, here.st_ino) == (root.st_dev, root.st_ino)
    if options.uid < 0 or options.gid < 0:
        uid, gid, ids = _overflow_id("uid"), _overflow_id("gid"), IDS_TRY
    else:
        uid, gid, ids = options.uid, options.gid, IDS_CHANGE
    return start_probe(-1 if own else host.driver.fd, ids, uid, gid, tuple(places), options.timeout)


def _overflow_id(kind: str) -> int:
    """The kernel's id for "nobody we know" (proc(5), /proc/sys/kernel/overflowuid)."""
    try:
        with open(f"/proc/sys/kernel/overflow{kind}", "rb") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return 65534


def ask(probe: Probe, version: str) -> ProbeReply:
    """The probe's parsed answer. If NVML cannot be loaded, the hint tells about the module."""
    try:
        return parse_reply(probe.result())
    except InitializationError as error:
        if error.step == "load library failed" and version:
            error.hint = (
                f"kernel module {version} is loaded, its libraries are not in the driver root: "
                "install them there, or name the right root with --root"
            )
        raise


def _check_version(host: Host, version: str, reply: ProbeReply) -> None:
    if version and reply.driver_version != version:
        raise DetectionError(
            "driver version", "", f"NVML says {reply.driver_version}, the kernel module {version}",
            "the driver was upgraded while its kernel module stayed: reload the module or reboot",
        )  # fmt: skip
    if host.simulated != reply.simulated:
        what = ("simulated", "real") if host.simulated else ("real", "simulated")
        raise DetectionError(
            "driver version", host.driver.path, f"a {what[0]} driver root with a {what[1]} NVML",
            "make the simulated driver root again",
        )  # fmt: skip


def find_files(
    host: Host,
    options: DriverOptions,
    arch: str,
    version: str,
    entries: list[tuple[int, str, str]],
    hints: tuple[str, ...] = (),
) -> Files:
    """Libraries, binaries and firmware of the driver `version`."""
    native = find_libraries(host.driver, entries, arch, version, hints)
    compat = find_libraries(host.driver, entries, COMPAT[arch], version)
    binaries, binary_warnings = find_binaries(host.driver, options.search_path, arch, native.directory)
    places = firmware_directories(host.system, version)
    firmwares, firmware_warnings = find_firmwares(host.driver, places)
    rested_on = [native.directory, compat.directory, *places, *search_directories(options.search_path)]
    if not native.directory or not entries:
        rested_on += DIRECTORIES[arch] + DIRECTORIES[COMPAT[arch]]
    return Files(
        native.libraries,
        compat.libraries,
        binaries,
        firmwares,
        tuple(dict.fromkeys(path for path in rested_on if path)),
        native.warnings + compat.warnings + binary_warnings + firmware_warnings,
    )


def _assemble(
    host: Host, options: DriverOptions, reply: ProbeReply, files: Files, cache_warnings: tuple[str, ...]
) -> HostFacts:
    system = host.system
    majors = char_majors(system.read_optional("/proc/devices") or b"")
    capabilities = MigCapabilities(system, majors)
    gpus, gpu_warnings = _gpus(host, reply, majors, capabilities)
    control, uvm, modeset = control_nodes(host.devices, majors)
    ipcs, ipc_warnings = find_ipcs(host.driver, options.mps_directory)
    return HostFacts(
        driver_root=options.root,
        driver_version=reply.driver_version,
        cuda_version=reply.cuda_version,
        simulated=host.simulated,
        gpus=gpus,
        libraries=files.libraries,
        libraries32=files.libraries32,
        binaries=files.binaries,
        firmwares=files.firmwares,
        ipcs=ipcs,
        control=control,
        uvm=uvm,
        modeset=modeset,
        mig_config=capabilities.of_global("config"),
        mig_monitor=capabilities.of_global("monitor"),
        imex_major=majors.get("nvidia-caps-imex-channels", -1),
        proc_files=proc_files(system),
        warnings=cache_warnings + files.warnings + reply.warnings + gpu_warnings + ipc_warnings,
        system_root=system.path,
        device_root=host.devices.path,
    )


def _gpus(
    host: Host, reply: ProbeReply, majors: dict[str, int], capabilities: MigCapabilities
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """NVML's GPUs held against the kernel driver's."""
    known = proc_gpus(host.system)
    by_address = {gpu.address: gpu for gpu in known or ()}
    warnings: list[str] = []
    found = []
    for gpu in reply.gpus:
        entry = by_address.pop(gpu.address, None)
        if entry is None and known is not None:
            raise DetectionError(
                "compare GPUs", _bus_id(gpu.address), "NVML lists it, /proc/driver/nvidia/gpus does not"
            )
        minor = _minor(gpu, entry)
        node = _gpu_node(host.devices, nvidia_major(majors), minor, warnings)
        found.append(_gpu(host, gpu, entry, minor, node, capabilities, warnings))
    for entry in by_address.values():
        if not entry.excluded:
            warnings.append(
                f"GPU {entry.directory.rpartition('/')[2]} is claimed by the driver but not in NVML"
            )
    return tuple(found), tuple(warnings)


def _bus_id(address: tuple[int, int, int]) -> str:
    domain, bus, device = address
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def _minor(gpu: ProbeGpu, entry: ProcGpu | None) -> int:
    told = entry.minor if entry is not None else -1
    if gpu.minor >= 0 and told >= 0 and gpu.minor != told:
        raise DetectionError(
            "compare GPUs",
            _bus_id(gpu.address),
            f"minor {gpu.minor} in NVML, {told} in /proc/driver/nvidia/gpus",
        )
    minor = told if told >= 0 else gpu.minor
    if minor < 0:
        raise DetectionError(
            "compare GPUs", _bus_id(gpu.address), "neither NVML nor the kernel tells its minor"
        )
    return minor


def _gpu_node(devices: HostRoot, major: int, minor: int, warnings: list[str]) -> DeviceNode:
    path = f"/dev/nvidia{minor}"
    node = find_node(devices, path, major, minor)
    if node is None:
        warnings.append(
            f"device node {path} is missing: run nvidia-modprobe -c {minor}, or use --load-kmods"
        )
        node = DeviceNode(path, major, minor)
    return node


def _gpu(
    host: Host,
    gpu: ProbeGpu,
    entry: ProcGpu | None,
    minor: int,
    node: DeviceNode,
    capabilities: MigCapabilities,
    warnings: list[str],
) -> Gpu:
    mig = []
    for device in gpu.mig:
        places = capabilities.access(minor, device.gpu_instance, device.compute_instance)
        if not host.system.exists(places[1]):
            warnings.append(f"MIG device {gpu.index}:{device.index} is left out: {places[1]} is missing")
            continue
        mig.append(
            MigDevice(device.index, device.uuid, device.gpu_instance, device.compute_instance, *places)
        )
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=minor,
        bus_id=_bus_id(gpu.address),
        name=gpu.name,
        brand=gpu.brand,
        architecture=gpu.architecture,
        node=node,
        proc_dir=entry.directory if entry is not None else "",
        mig_capable=gpu.mig_capable,
        mig_enabled=gpu.mig_enabled,
        mig=tuple(mig),
        capability_nodes=capabilities.of_gpu(minor) if gpu.mig_capable else (),
        dri_nodes=dri_nodes(host.system, host.devices, gpu.address),
    )

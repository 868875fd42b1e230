"""Discovery the long way: asks NVML through the probe, and finds the driver's files meanwhile."""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.types import Any, Callable
from nvc.base.value import Value
from nvc.discovery.devices.gpus import find_gpus
from nvc.discovery.devices.mig import MigCapabilities
from nvc.discovery.devices.nodes import control_nodes, majors_of_nodes
from nvc.discovery.devices.proc import ProcGpu, char_majors, kernel_version, proc_files, proc_gpus
from nvc.discovery.devices.sockets import find_ipcs
from nvc.discovery.driver.binaries import find_binaries, search_directories
from nvc.discovery.driver.firmware import find_firmwares, firmware_directories
from nvc.discovery.driver.libraries import find_libraries, read_cache
from nvc.discovery.driver.manifests import find_manifests
from nvc.discovery.driver.modules import find_modules
from nvc.discovery.driver.places import COMPAT, DIRECTORIES
from nvc.discovery.driver.wsl import wsl_files, wsl_gpus, wsl_node
from nvc.discovery.host import Host
from nvc.discovery.nvml.asking import ask, check_version, start
from nvc.discovery.nvml.wire import ProbeReply
from nvc.discovery.outer import outer_slice
from nvc.kernel.probe import Probe
from nvc.model.facts import ControlNode, HostFacts
from nvc.model.request import DriverOptions

#: The fields of HostFacts that the kernel's side of the driver decides.
_KERNELS = ("controls", "mig_config", "mig_monitor", "imex_major", "gpus")


class Part(Value):
    """Some fields of HostFacts, and the directories whose change may change them."""

    fields: dict[str, Any]
    warnings: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


class Shown(Value):
    """What the kernel's side of the driver shows by itself."""

    majors: dict[str, int]
    capabilities: MigCapabilities
    gpus: tuple[ProcGpu, ...] | None
    controls: tuple[ControlNode, ...]


def find_facts(
    host: Host,
    options: DriverOptions,
    probe: Probe | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[HostFacts, tuple[str, ...] | None]:
    """The facts, and the directories in the driver root on which they rest.

    None for those where NVML or the kernel left something out, or a file could not be read: the next to ask may be
    told of all, so that nobody should keep this answer.

    `probe` is the running one, if it could be started without a look at the loader cache; `meanwhile` is
    called while NVML starts. Raises InitializationError when NVML cannot be started, DetectionError when an
    answer is wrong.
    """
    arch = os.uname().machine
    cache = None
    if probe is None:
        cache = read_cache(host.driver, options.ldcache)
        probe = start(host, options, arch, cache[0])
    with probe:
        entries, cache_warnings = cache or read_cache(host.driver, options.ldcache)
        version = kernel_version(host.system)
        wsl = None if version else wsl_node(host.devices)
        files = _files(host, options, arch, version, entries) if version else None
        # Now, while NVML starts: the table of MIG minors has thousands of lines, and the driver answers for a
        # GPU under locks that a probe at its end holds again.
        shown = _shown(host)
        if meanwhile is not None:
            meanwhile()
        reply = ask(probe, version)
        check_version(host, version, reply)
        if wsl is not None:
            shown_by = ((ControlNode(wsl),), None, None, -1, wsl_gpus(wsl, reply))
            files, kernel = Part(*wsl_files(host.driver, arch)), Part(dict(zip(_KERNELS, shown_by)))
        else:
            if files is None or not files.fields["libraries"]:
                hints = (os.path.dirname(reply.library),) if reply.library.startswith("/") else ()
                files = _files(host, options, arch, reply.driver_version, entries, hints)
            kernel = _kernel(host, reply, shown)
    if not files.fields["libraries"]:
        raise DetectionError(
            "find driver libraries", options.ldcache, f"no library of driver {reply.driver_version}",
            "run ldconfig in the driver root, or reinstall the driver",
        )  # fmt: skip
    ipcs, ipc_warnings = find_ipcs(host.driver, options.mps_directory)
    facts = HostFacts(
        **files.fields,
        **kernel.fields,
        driver_root=options.root,
        driver_version=reply.driver_version,
        cuda_version=reply.cuda_version,
        simulated=host.simulated,
        ipcs=ipcs,
        proc_files=proc_files(host.system),
        warnings=cache_warnings + files.warnings + reply.warnings + kernel.warnings + ipc_warnings,
        system_root=host.system.path,
        device_root=host.devices.path,
    )
    settled = not (reply.warnings or kernel.warnings or host.driver.unread)
    return facts, files.directories if settled else None


def _files(
    host: Host,
    options: DriverOptions,
    arch: str,
    version: str,
    entries: list[tuple[int, str, str]],
    hints: tuple[str, ...] = (),
) -> Part:
    if options.library_directories:
        entries, hints = [], options.library_directories
    native = find_libraries(host.driver, entries, arch, version, hints)
    compat = find_libraries(host.driver, entries, COMPAT[arch], version, options.library_directories)
    binaries, binary_warnings = find_binaries(host.driver, options.search_path, arch, native.directory)
    places = firmware_directories(host.system, version)
    firmwares, firmware_warnings = find_firmwares(host.driver, places)
    beside = tuple(dict.fromkeys(os.path.dirname(library.path) for library in native.libraries))
    modules, module_warnings = find_modules(host.driver, arch, version, beside)
    files = [library.path for library in native.libraries] + [module.target for module in modules]
    known = frozenset(os.path.basename(path).partition(".so")[0] for path in files)
    manifests, theirs, manifest_warnings = find_manifests(host.driver, known, native.directory)
    rested_on = [native.directory, compat.directory, *places, *search_directories(options.search_path), *theirs]
    rested_on += [*beside, *(os.path.dirname(path) for one in modules for path in (one.path, one.target))]
    if not native.directory or not entries:
        rested_on += [*hints, *DIRECTORIES[arch], *DIRECTORIES[COMPAT[arch]]]
    fields = {
        "libraries": native.libraries,
        "libraries32": compat.libraries,
        "binaries": binaries,
        "firmwares": firmwares,
        "outer": outer_slice(host.driver, native.shims),
        "manifests": manifests,
        "modules": modules,
    }
    warnings = native.warnings + compat.warnings + binary_warnings + firmware_warnings
    warnings += module_warnings + manifest_warnings
    return Part(fields, warnings, tuple(dict.fromkeys(path for path in rested_on if path)))


def _shown(host: Host) -> Shown:
    majors = char_majors(host.system.read_optional("/proc/devices") or b"")
    if host.simulated and "nvidia-uvm" not in majors:
        majors |= majors_of_nodes(host.devices)
    capabilities = MigCapabilities(host.system, majors)
    return Shown(majors, capabilities, proc_gpus(host.system), control_nodes(host.devices, majors))


def _kernel(host: Host, reply: ProbeReply, shown: Shown) -> Part:
    majors, capabilities = shown.majors, shown.capabilities
    gpus, warnings = find_gpus(host, reply, majors, capabilities, shown.gpus)
    rights = capabilities.of_global("config"), capabilities.of_global("monitor")
    imex_major = majors.get("nvidia-caps-imex-channels", -1)
    return Part(dict(zip(_KERNELS, (shown.controls, *rights, imex_major, gpus))), warnings)

"""Asking NVML: where the probe runs and as whom, and what its answer must agree with."""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError, InitializationError
from nvc.base.files import closing
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK
from nvc.discovery.driver.places import COMPAT, DIRECTORIES
from nvc.discovery.host import Host
from nvc.discovery.nvml.questions import described
from nvc.discovery.nvml.wire import ProbeReply, parse_reply
from nvc.kernel.probe import IDS_CHANGE, IDS_TRY, Probe, start_probe
from nvc.model.request import DriverOptions

NVML = "libnvidia-ml.so.1"
DEFAULT_CACHE = "/etc/ld.so.cache"


def start_first(host: Host, options: DriverOptions) -> Probe | None:
    """The probe, started before anything else is looked at; None when a loader cache must be read for it.

    The probe's own loader reads the default cache of the root it runs in, but no other. Raises
    InitializationError on a machine that no driver is made for.
    """
    arch = os.uname().machine
    if arch not in COMPAT:
        raise InitializationError("detect architecture", "", arch, "x86_64 and aarch64 are supported")
    if options.ldcache != DEFAULT_CACHE or host.devices is not host.driver:
        return None
    return start(host, options, arch, [])


def start(host: Host, options: DriverOptions, arch: str, entries: list[tuple[int, str, str]]) -> Probe:
    """Starts the probe, with the names by which it may find NVML; `entries` are a loader cache's that the
    loader itself would not read.

    It enters the driver root, unless that is a bare tree of files: NVML needs the device nodes.
    """
    ours = (path for flags, name, path in entries if name == NVML and flags & ARCH_MASK == ARCH_FLAGS[arch])
    places = [path for path in ours if path.startswith("/") and path.isprintable()]
    known = [f"{directory}/{NVML}" for directory in DIRECTORIES[arch]]
    places[:0] = [f"{directory}/{NVML}" for directory in options.library_directories]
    root = -1
    if _is_own_root(host):
        places += [NVML, *known]
    elif host.devices is host.driver:
        places += [NVML, *known]
        root = host.driver.fd
    else:
        places = [path for place in (*places, *known) for path in _outside(host, place)]
    if options.uid < 0 or options.gid < 0:
        uid, gid, ids = _overflow_id("uid"), _overflow_id("gid"), IDS_TRY
    else:
        uid, gid, ids = options.uid, options.gid, IDS_CHANGE
    return start_probe(root, ids, uid, gid, described(tuple(places)), options.timeout)


def _is_own_root(host: Host) -> bool:
    here = os.stat("/")
    root = os.fstat(host.driver.fd)
    return (here.st_dev, here.st_ino) == (root.st_dev, root.st_ino)


def _outside(host: Host, path: str) -> list[str]:
    """The path from our own root of a file of the driver root, or nothing where there is none."""
    try:
        fd = host.driver.open(path)
    except OSError:
        return []
    with closing(fd):
        return [os.readlink(f"/proc/self/fd/{fd}")]


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


def check_version(host: Host, version: str, reply: ProbeReply) -> None:
    """Raises DetectionError when NVML is not of the loaded kernel module's version or kind."""
    if version and reply.driver_version != version:
        raise DetectionError(
            "driver version", "", f"NVML says {reply.driver_version}, the kernel module {version}",
            "the driver was upgraded while its kernel module stayed: reload the module or reboot",
        )  # fmt: skip
    if reply.gpus and host.simulated != reply.simulated:
        what = ("simulated", "real") if host.simulated else ("real", "simulated")
        cause = f"a {what[0]} driver root with a {what[1]} NVML"
        raise DetectionError("driver version", host.driver.path, cause, "make the simulated driver root again")

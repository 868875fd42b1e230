"""The driver's libraries: where they are, and of which version."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from nvc.discovery.devices.proc import is_version, kernel_version
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK
from nvc.discovery.driver.libraries import read_cache
from nvc.discovery.driver.places import DIRECTORIES
from nvc.discovery.driver.wsl import wsl_node
from nvc.doctor import FAILED, Check, Fact, Row
from nvc.doctor.context import Context

NAMES = {"libnvidia-ml": "nvidia-smi and nvc itself", "libcuda": "CUDA programs"}
#: Where a driver may be that is not in the root that was looked at.
ELSEWHERE = ("/run/nvidia/driver", "/run/host", "/host", "/")
_MACHINE = os.uname().machine
_SEARCHED = DIRECTORIES.get(_MACHINE, ())


def _versions(context: Context) -> dict[str, set[str]]:
    """The versions that there are of each of NAMES."""
    root, found = context.host.driver, {name: set[str]() for name in NAMES}
    entries, _ = read_cache(root, context.options.ldcache)
    listed = [os.path.dirname(path) for flags, _, path in entries if flags & ARCH_MASK == ARCH_FLAGS.get(_MACHINE)]
    for directory in dict.fromkeys((*_SEARCHED, *listed)):
        for file, _ in root.entries(directory):
            name, _, version = file.partition(".so.")
            if name in NAMES and is_version(version) and root.exists(f"{directory}/{file}"):
                found[name].add(version)
    return found


def _libraries(context: Context) -> Iterator[Fact]:
    if wsl_node(context.host.devices) is not None:
        return
    found, loaded = _versions(context), kernel_version(context.host.system)
    there = set().union(*found.values())
    if not there:
        others = [place for place in ELSEWHERE if place != context.root and _has_driver(place)]
        yield Fact(
            root=context.root,
            seen=[f"a driver is in {place}" for place in others],
            run=[f"nvc-cli --root {place} info" for place in others[:1]],
            advice="set `root` in [nvidia-container-cli] to it" if others else "install the driver's libraries",
        )
    for name, versions in found.items() if there else ():
        if not versions or loaded in there - versions:
            yield Fact(name=name, users=NAMES[name], seen=[f"{name}.so.{version}" for version in sorted(versions)])


def _has_driver(root: str) -> bool:
    places = [f"{glob.escape(root.rstrip('/') + directory)}/libnvidia-ml.so.*" for directory in _SEARCHED]
    return any(map(glob.glob, places))


def _version(context: Context) -> Iterator[Fact]:
    there = set().union(*_versions(context).values())
    if there and context.module not in there:
        yield Fact(loaded=context.module, there=", ".join(sorted(there)))


CHECKS = (
    Check("driver.libraries", "libcuda and libnvidia-ml", _libraries, (
        Row(FAILED, "there is no driver library in {root}", "root", seen=(f"looked in {', '.join(_SEARCHED)}",)),
        Row(FAILED, "{name}.so is missing, which {users} need",
            advice="install the driver's libraries completely (libcuda1, nvidia-driver-cuda-libs)"),
    )),
    Check("driver.version", "whether libraries and kernel module have one version", _version, (
        Row(FAILED, "the libraries are of driver {there}, the kernel module of {loaded}",
            run=("modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia", "modprobe nvidia"),
            advice="the old module of an upgraded driver is loaded: first stop what uses the GPU, or reboot"),
    )),
)  # fmt: skip

"""The driver's libraries: where they are, of which version, and whether the loader cache knows them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvc.base.errors import NvcError
from nvc.discovery.devices.proc import is_version, kernel_version
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK
from nvc.discovery.driver.libraries import read_cache
from nvc.discovery.driver.places import DIRECTORIES
from nvc.discovery.driver.wsl import wsl_node
from nvc.discovery.hostroot import HostRoot
from nvc.doctor import FAILED, OK, Check, Fact, Row, first
from nvc.doctor.context import Context

NAMES = {"libnvidia-ml.so": "nvidia-smi and nvc itself", "libcuda.so": "CUDA programs"}
#: Where a driver may be that is not in the root that was looked at.
ELSEWHERE = ("/run/nvidia/driver", "/run/host", "/host", "/")
_MACHINE = os.uname().machine
_SEARCHED = DIRECTORIES.get(_MACHINE, ())
_SHOWN = 6


def _found(context: Context) -> dict[str, str]:
    """Paths of libcuda and libnvidia-ml with a version in their names, links resolved, with that version."""
    files: dict[str, str] = {}
    listed = [os.path.dirname(path) for name, path in _listed(context)[0] if name.startswith(tuple(NAMES))]
    for directory in dict.fromkeys((*_SEARCHED, *listed)):
        for name, _ in context.host.driver.entries(directory):
            version = name.partition(".so.")[2]
            if _soname(name) in NAMES and is_version(version):
                real = _real(context.host.driver, f"{directory}/{name}")
                if real:
                    files[real] = version
    return files


def _soname(path: str) -> str:
    """The name of a library without its version: `libcuda.so`."""
    return path.rpartition("/")[2].partition(".so")[0] + ".so"


def _real(root: HostRoot, path: str) -> str:
    """What a path in a root leads to, without links; "" where it leads nowhere."""
    try:
        fd = root.open(path)
    except OSError:
        return ""
    try:
        return root.real_path(fd)
    except (OSError, NvcError):
        return ""
    finally:
        os.close(fd)


def _listed(context: Context) -> tuple[list[tuple[str, str]], str]:
    """Names and paths of the driver's libraries in the loader cache, for this machine; or why there are none."""
    entries, problems = read_cache(context.host.driver, context.options.ldcache)
    own = [(name, path) for flags, name, path in entries if flags & ARCH_MASK == ARCH_FLAGS.get(_MACHINE)]
    return own, "".join(problems)


def _libraries(context: Context) -> Iterator[Fact]:
    if wsl_node(context.host.devices) is not None:
        return
    files = _found(context)
    loaded = kernel_version(context.host.system)
    names = {_soname(path) for path, version in files.items() if version == loaded} or set(map(_soname, files))
    if not names:
        others = [place for place in ELSEWHERE if place != context.root and _has_driver(place)]
        yield Fact(
            root=context.root,
            names=" and ".join(NAMES),
            searched=", ".join(map(context.path, _SEARCHED)),
            advice="set `root` in [nvidia-container-cli] to it" if others else "install the driver's libraries",
            seen=[f"a driver is in {place}" for place in others],
            run=[f"nvc-cli --root {place} info" for place in others[:1]],
        )
    for name in NAMES if names else ():
        yield Fact(name=name, missing=name not in names, who=NAMES[name], seen=first(files, _SHOWN))


def _has_driver(root: str) -> bool:
    for directory in _SEARCHED:
        try:
            if any(name.startswith("libnvidia-ml.so.") for name in os.listdir(root.rstrip("/") + directory)):
                return True
        except OSError:
            continue
    return False


def _version(context: Context) -> Iterator[Fact]:
    loaded, files = context.module, _found(context)
    others = {path: version for path, version in sorted(files.items()) if version != loaded}
    if files and len(others) == len(files):
        yield Fact(loaded=loaded, all=", ".join(sorted(set(others.values()))), seen=first(others, _SHOWN))


CHECKS = (
    Check("driver.libraries", "libcuda and libnvidia-ml", _libraries, (
        Row(FAILED, "there is no driver library in {root}", "root",
            seen=("looked for {names} with a version in {searched} and by the loader cache",), advice="{advice}"),
        Row(FAILED, "{name} is missing, which {who} need", "missing",
            advice="install the driver's libraries completely (libcuda1, nvidia-driver-cuda-libs)"),
        Row(OK, "libcuda and libnvidia-ml are there"),
    )),
    Check("driver.version", "whether libraries and kernel module have one version", _version, (
        Row(FAILED, "the libraries are of driver {all}, the kernel module of {loaded}", "all",
            run=("modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia", "modprobe nvidia"),
            advice="the old module of an upgraded driver is loaded: first stop what uses the GPU, or reboot"),
    )),
)  # fmt: skip

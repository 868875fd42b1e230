"""The driver's libraries: where they are, of which version, and whether the loader cache knows them."""

from __future__ import annotations

import os
import stat

from nvc.discovery.ldcache import ARCH_FLAGS, ARCH_MASK, CACHE_LIMIT, parse_cache
from nvc.discovery.places import DIRECTORIES
from nvc.discovery.proc import is_version
from nvc.discovery.wsl import wsl_node
from nvc.doctor import Check, aside, failed, first, ok, warning
from nvc.doctor.context import link_of
from nvc.errors import DetectionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

NAMES = ("libnvidia-ml.so", "libcuda.so")
#: Where a driver may be that is not in the root that was looked at.
ELSEWHERE = ("/run/nvidia/driver", "/run/host", "/host", "/")
_SHOWN = 6


def _searched(context: Context) -> tuple[str, ...]:
    arch = os.uname().machine
    return DIRECTORIES.get(arch, ())


def found_in(context: Context) -> dict[str, str]:
    """Paths of libcuda and libnvidia-ml with a version in their names, links resolved, with that version."""
    files: dict[str, str] = {}
    directories = list(_searched(context))
    directories += [os.path.dirname(path) for _, name, path in _entries(context)[0] if name.startswith(NAMES)]
    for directory in dict.fromkeys(directories):
        for name, _ in context.host.driver.entries(directory):
            base, dot, version = name.partition(".so.")
            if f"{base}.so" in NAMES and dot and is_version(version):
                real = link_of(context.host.driver, f"{directory}/{name}")
                if real:
                    files[real] = version
    return files


def _entries(context: Context) -> tuple[list[tuple[int, str, str]], str, os.stat_result | None]:
    """Entries of the loader cache for this machine that bear the name of a driver library, or why there are none;
    and its status."""
    path = context.options.ldcache
    arch = os.uname().machine
    try:
        fd, status = context.host.driver.open_regular(path)
    except FileNotFoundError:
        return [], "", None
    except (OSError, DetectionError) as error:
        return [], _why(error), None
    try:
        data = os.pread(fd, min(status.st_size, CACHE_LIMIT + 1), 0)
        entries = parse_cache(data, (b"libcuda.so", b"libnvidia-", b"libnvcuvid"))
    except (OSError, DetectionError) as error:
        return [], _why(error), status
    finally:
        os.close(fd)
    return [entry for entry in entries if entry[0] & ARCH_MASK == ARCH_FLAGS.get(arch)], "", status


def _why(error: OSError | DetectionError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error.cause)


def _ldconfig(context: Context) -> tuple[str, ...]:
    return ("ldconfig",) if context.root == "/" else (f"ldconfig -r {context.root}",)


def libraries(context: Context) -> Iterator[Finding]:
    """Whether libcuda and libnvidia-ml are in the driver root."""
    if wsl_node(context.host.devices) is not None:
        yield ok("WSL: the libraries are Windows'")
        return
    files = found_in(context)
    names = {_soname(path) for path in files}
    if not names:
        searched = [context.path(directory) for directory in _searched(context)]
        others = [place for place in ELSEWHERE if place != context.root and _has_driver(place, _searched(context))]
        yield failed(
            f"there is no driver library in {context.root}",
            f"looked for {' and '.join(NAMES)} with a version in {', '.join(searched)} and by the loader cache",
            *(f"a driver is in {place}" for place in others),
            commands=tuple(f"nvc-cli --root {place} info" for place in others[:1]),
            advice="set `root` in [nvidia-container-cli] to it"
            if others
            else "install the driver's libraries",
        )
        return
    for name in NAMES:
        if name not in names:
            what = "CUDA programs" if name == "libcuda.so" else "nvidia-smi and nvc itself"
            yield failed(
                f"{name} is missing, which {what} need",
                *first(files, _SHOWN),
                advice="install the driver's libraries completely (libcuda1, nvidia-driver-cuda-libs)",
            )
    if names == set(NAMES):
        yield ok("libcuda and libnvidia-ml are there", *list(files)[:_SHOWN])


def _has_driver(root: str, directories: tuple[str, ...]) -> bool:
    for directory in directories:
        try:
            if any(name.startswith("libnvidia-ml.so.") for name in os.listdir(root.rstrip("/") + directory)):
                return True
        except OSError:
            continue
    return False


def _soname(path: str) -> str:
    """The name of a library without its version: `libcuda.so`."""
    return path.rpartition("/")[2].partition(".so")[0] + ".so"


def version(context: Context) -> Iterator[Finding]:
    """Whether the libraries are of the kernel module's version."""
    loaded = context.module
    files = found_in(context)
    versions = set(files.values())
    others = sorted(path for path, other in files.items() if other != loaded)
    if versions and loaded not in versions:
        yield failed(
            f"the libraries are of driver {', '.join(sorted(versions))}, the kernel module of {loaded}",
            *first(others, _SHOWN),
            commands=("modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia", "modprobe nvidia"),
            advice="the old module of an upgraded driver is loaded: first stop what uses the GPU, or reboot",
        )
        return
    current = {_soname(path) for path, other in files.items() if other == loaded}
    for path in others:
        if _soname(path) not in current:  # it may be the right one under a wrong name
            yield failed(
                f"there is no {_soname(path)} of driver {loaded}, only {context.path(path)}",
                f"the kernel module is {loaded}",
                advice=f"if it was renamed, give it back the name {_soname(path)}.{loaded} and run ldconfig; else "
                f"install the libraries of driver {loaded} again",
            )
            continue
        yield warning(
            f"{context.path(path)} remains from driver {files[path]}",
            f"the kernel module is {loaded}",
            commands=(aside(context.path(path)), *_ldconfig(context)),
            advice="or remove the package that it belongs to",
        )
    for name in NAMES:
        for directory in {os.path.dirname(path) for path in files}:
            real = link_of(context.host.driver, f"{directory}/{name}.1")
            if files.get(real, loaded) != loaded and name in current:
                link = f"{context.path(directory)}/{name}.1"
                yield failed(
                    f"{link} leads to {real.rpartition('/')[2]}, the module is {loaded}",
                    commands=(f"ln -sf {name}.{loaded} {link}", *_ldconfig(context)),
                )


def loader_cache(context: Context) -> Iterator[Finding]:
    """Whether the loader cache names the driver's libraries, and names nothing that is gone."""
    path = context.path(context.options.ldcache)
    entries, problem, status = _entries(context)
    if problem:
        yield failed(f"the loader cache {path} is not used: {problem}", commands=_ldconfig(context))
        return
    if status is None:
        yield warning(
            f"there is no loader cache {path}",
            "NixOS and musl do without; nvc searches directories instead",
            commands=_ldconfig(context),
        )
        return
    if not stat.S_IMODE(status.st_mode) & 0o004:
        yield warning(
            f"the loader cache {path} cannot be read by users",
            f"mode {stat.S_IMODE(status.st_mode):04o}",
            commands=(f"chmod 644 {path}",),
        )
    for _, name, target in entries:
        if not link_of(context.host.driver, target):
            yield warning(
                f"the loader cache names {context.path(target)} for {name}, which does not exist",
                commands=_ldconfig(context),
            )
    known = {name for _, name, _ in entries}
    for name in NAMES:
        if f"{name}.1" not in known and any(name in file for file in found_in(context)):
            yield warning(f"the loader cache {path} does not name {name}.1", commands=_ldconfig(context))


CHECKS = (
    Check("driver.libraries", "libcuda and libnvidia-ml", libraries),
    Check("driver.version", "whether libraries and kernel module have one version", version),
    Check("driver.loader-cache", "the loader cache: readable, complete, not stale", loader_cache),
)

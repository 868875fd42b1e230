"""Files by which programs find the driver: ICDs of OpenCL, Vulkan and EGL, layers, platforms, and what OptiX and
the X server read. A file is the driver's when it names a library of the driver.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.fastjson import JsonError, parse
from nvc.base.files import closing
from nvc.base.types import Any, Iterator
from nvc.discovery.driver.modules import DRIVER
from nvc.discovery.driver.places import prefixes
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Manifest, identity_of

#: Directories below those of configuration, and the suffix of the files in them.
PLACES = (
    ("OpenCL/vendors", ".icd"),
    ("vulkan/icd.d", ".json"),
    ("vulkan/implicit_layer.d", ".json"),
    ("vulkansc/icd.d", ".json"),
    ("glvnd/egl_vendor.d", ".json"),
    ("egl/egl_external_platform.d", ".json"),
    ("X11/xorg.conf.d", ".conf"),
    ("nvidia", ".bin"),
)
#: Directories of configuration: what lies elsewhere goes to the second.
_BASES = ("/etc", "/usr/share", "/usr/local/share")
_OPENCL, _OPTIX, _X = "/etc/OpenCL/vendors", "nvoptix.bin", b'"nvidia"'
#: More than any has, bytes.
_LIMIT = 64 << 10


def find_manifests(
    root: HostRoot, known: frozenset[str], beside: str = ""
) -> tuple[tuple[Manifest, ...], tuple[str, ...], tuple[str, ...]]:
    """The files in the order of PLACES, the directories that have some, and warnings.

    `known` are names of the driver's libraries, up to `.so`; `beside` is a directory of them, beside which there
    may be files, too.
    """
    found: dict[str, Manifest] = {}
    warnings: list[str] = []
    for place, suffix in PLACES:
        for base in dict.fromkeys((*_BASES, *(f"{prefix}/share" for prefix in prefixes(beside)), "")):
            if not base and not place.startswith("vulkan/"):  # in the driver root itself, as GKE installs it
                continue
            for name, _ in root.entries(f"{base}/{place}"):
                path = f"{base}/{place}/{name}"
                target = f"{_target(base, place)}/{name}"
                if not name.endswith(suffix) or not name.isprintable() or target in found:
                    continue
                manifest = _examine(root, path, known, warnings)
                if manifest is not None:
                    found[target] = manifest.replace(target=target if target != path else "")
    directories = dict.fromkeys(os.path.dirname(manifest.path) for manifest in found.values())
    return tuple(found.values()), tuple(directories), tuple(warnings)


def _target(base: str, place: str) -> str:
    """Where programs in a container look for it."""
    if place == "OpenCL/vendors":
        return _OPENCL
    return f"{base if base in _BASES[:2] else _BASES[1]}/{place}"


def _examine(root: HostRoot, path: str, known: frozenset[str], warnings: list[str]) -> Manifest | None:
    try:
        fd, status = root.open_regular(path)
        with closing(fd):
            library = next((name for name in _named(path, os.pread(fd, _LIMIT + 1, 0)) if name in known), "")
    except (OSError, DetectionError, JsonError) as error:
        if isinstance(error, OSError):
            root.note(error, path)
        if "nvidia" in path[path.rindex("/") :]:  # what is wrong with others' is not ours to say
            warnings.append(f"{path} is left out: {error}")
        return None
    return Manifest(path, library, identity_of(status)) if library else None


def _named(path: str, content: bytes) -> Iterator[str]:
    """The libraries that the file names, without directory and up to `.so`."""
    if path.endswith(".bin"):
        names = ["libnvoptix"] if path.endswith(f"/{_OPTIX}") else []
    elif path.endswith(".conf"):
        names = [DRIVER] if _X in content else []
    elif path.endswith(".icd"):
        names = content[:_LIMIT].decode("utf-8", "replace").split()
    else:
        names = list(_paths(parse(content, _LIMIT)))
    for name in names:
        yield name[name.rfind("/") + 1 :].partition(".so")[0]


def _paths(value: Any) -> Iterator[str]:
    """Every `library_path`, at whatever depth: ICDs, layers and lists of layers have it at different ones."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "library_path" and isinstance(item, str):
                yield item
            else:
                yield from _paths(item)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item)

"""Files by which programs find the driver's OpenCL, Vulkan, EGL and OptiX libraries, one library each."""

from __future__ import annotations

import os

from nvc.discovery.hostroot import identity_of
from nvc.errors import DetectionError, of_host
from nvc.model import Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.hostroot import HostRoot

#: Directory, suffix, and the library that such a file names. The file's name contains one of _NAMES.
PLACES = (
    ("/etc/OpenCL/vendors", ".icd", "libnvidia-opencl"),
    ("/etc/vulkan/icd.d", ".json", "libGLX_nvidia"),
    ("/usr/share/vulkan/icd.d", ".json", "libGLX_nvidia"),
    ("/etc/vulkan/implicit_layer.d", ".json", "libGLX_nvidia"),
    ("/usr/share/vulkan/implicit_layer.d", ".json", "libGLX_nvidia"),
    ("/etc/glvnd/egl_vendor.d", ".json", "libEGL_nvidia"),
    ("/usr/share/glvnd/egl_vendor.d", ".json", "libEGL_nvidia"),
    ("/usr/share/nvidia", ".bin", "libnvoptix"),
)
_NAMES = ("nvidia", "nvoptix")


def find_manifests(root: HostRoot) -> tuple[tuple[Manifest, ...], tuple[str, ...], tuple[str, ...]]:
    """The files in the order of PLACES, the directories that have some, and warnings."""
    found = []
    warnings = []
    for directory, suffix, library in PLACES:
        for name, _ in root.entries(directory):
            if not name.endswith(suffix) or not any(part in name for part in _NAMES) or not name.isprintable():
                continue
            path = f"{directory}/{name}"
            try:
                fd, status = root.open_regular(path)
            except (OSError, DetectionError) as error:
                if isinstance(error, OSError):
                    of_host(error, "look for manifests", path)
                warnings.append(f"{path} is left out: {error}")
                continue
            os.close(fd)
            found.append(Manifest(path, library, identity_of(status)))
    directories = dict.fromkeys(os.path.dirname(manifest.path) for manifest in found)
    return tuple(found), tuple(directories), tuple(warnings)

"""The files of a driver installation: which libraries, with which SONAME, and in which widths."""

from __future__ import annotations

from nvc.discovery.driver.library_table import NOT, TABLE, DriverLibrary

#: Programs; all but nvidia-smi only say what they are.
PROGRAMS = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager", "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl", "nvidia-xconfig",
)  # fmt: skip

FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


#: Versions of libraries that have one of their own.
_OWN = {
    "libnvidia-api": "1",
    "libnvidia-egl-gbm": "1.1.2",
    "libnvidia-egl-wayland": "1.1.20",
    "libnvidia-egl-wayland2": "1.0.0",
    "libnvidia-egl-xcb": "1.0.3",
    "libnvidia-egl-xlib": "1.0.3",
}
LIBRARIES = (
    *(row for row in TABLE if not row.abi or row.name in _OWN),
    # Without a row: only its version says that it is the driver's.
    DriverLibrary("libnvidia-sandboxutils", "", NOT),
)

#: Files of other packages beside the driver's, as (file, SONAME): they must not be taken for it.
FOREIGN = (
    ("libGL.so.1.7.0", "libGL.so.1"),
    ("libEGL.so.1.1.0", "libEGL.so.1"),
    ("libvulkan.so.1.3.239", "libvulkan.so.1"),
)


def file_name(library: DriverLibrary, version: str) -> str:
    """The name of the library's file in a driver of this version."""
    return f"{library.name}.so.{_OWN.get(library.name, version)}"


def soname(library: DriverLibrary, version: str) -> str:
    """The SONAME that the library's file says in a driver of this version."""
    return f"{library.name}.so.{library.major or version}"

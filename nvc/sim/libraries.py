"""The files of a driver installation: which libraries, with which SONAME, and in which widths."""

from __future__ import annotations

from nvc.value import Value

#: Programs; all but nvidia-smi only say what they are.
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)

FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


class DriverLibrary(Value):
    """`<stem>.so.<driver version>`. `major`: the number after .so. in its SONAME; "": the whole version."""

    stem: str
    major: str = "1"
    compat32: bool = False  # the driver ships a 32-bit one too
    dev_link: bool = False  # `<stem>.so` exists


LIBRARIES = (
    DriverLibrary("libnvidia-ml", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-cfg", dev_link=True),
    DriverLibrary("libnvidia-nscq", "2"),
    DriverLibrary("libcuda", compat32=True, dev_link=True),
    DriverLibrary("libcudadebugger"),
    DriverLibrary("libnvidia-opencl", compat32=True),
    DriverLibrary("libnvidia-gpucomp", "", compat32=True),
    DriverLibrary("libnvidia-ptxjitcompiler", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-fatbinaryloader", ""),
    DriverLibrary("libnvidia-allocator", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-compiler", ""),
    DriverLibrary("libnvidia-pkcs11", ""),
    DriverLibrary("libnvidia-pkcs11-openssl3", ""),
    DriverLibrary("libnvidia-nvvm", "4", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-tileiras", ""),
    DriverLibrary("libnvidia-ngx"),
    DriverLibrary("libvdpau_nvidia", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-encode", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-opticalflow", compat32=True),
    DriverLibrary("libnvcuvid", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-eglcore", "", compat32=True),
    DriverLibrary("libnvidia-glcore", "", compat32=True),
    DriverLibrary("libnvidia-tls", "", compat32=True),
    DriverLibrary("libnvidia-glsi", "", compat32=True),
    DriverLibrary("libnvidia-fbc", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-ifr", compat32=True),
    DriverLibrary("libnvidia-rtcore", ""),
    DriverLibrary("libnvoptix"),
    DriverLibrary("libGLX_nvidia", "0", compat32=True),
    DriverLibrary("libEGL_nvidia", "0", compat32=True),
    DriverLibrary("libGLESv2_nvidia", "2", compat32=True),
    DriverLibrary("libGLESv1_CM_nvidia", "1", compat32=True),
    DriverLibrary("libnvidia-glvkspirv", "", compat32=True),
    DriverLibrary("libnvidia-cbl", ""),
    # Of the driver, but on no list of what a container needs.
    DriverLibrary("libnvidia-api"),
    DriverLibrary("libnvidia-sandboxutils"),
)

#: Files of other packages beside the driver's, as (file, SONAME): they must not be taken for it.
FOREIGN = (
    ("libGL.so.1.7.0", "libGL.so.1"),
    ("libEGL.so.1.1.0", "libEGL.so.1"),
    ("libvulkan.so.1.3.239", "libvulkan.so.1"),
)


def file_name(library: DriverLibrary, version: str) -> str:
    return f"{library.stem}.so.{version}"


def soname(library: DriverLibrary, version: str) -> str:
    return f"{library.stem}.so.{library.major or version}"

"""What is known of the driver's libraries, one row each. Pure.

Every library of the driver's version is the driver's, also without a row: containers get it with every capability
but `utility`. A row says which capabilities bring a library, and whether slices count its memory: they leave out
the others, and those without a row. The simulated driver has each. WSL has its own table, in wsl.py.
"""

from __future__ import annotations

from nvc.base.value import Value

#: Whether all memory that a library takes of a GPU goes through libcuda, where a slice's shim counts it.
#: COUNTED only says so: it does not make the shim count more. Say NOT where that is not known, and for parts of
#: OpenGL, EGL and Vulkan: slices start without the library, and `nvc-cli vgpu check` names who has loaded it.
COUNTED, NOT = True, False


class DriverLibrary(Value):
    """`<name>.so.<driver version>`."""

    name: str
    kind: str  # which capabilities bring it: plan/build.py, LIBRARY_KINDS
    counted: bool
    major: str = "1"  # the number after `.so.` in its SONAME; "": the driver's version
    compat32: bool = False  # the driver ships a 32-bit one too
    dev_link: bool = False  # `<name>.so` exists
    abi: str = ""  # its file bears this number in place of the driver's version, so it counts only beside libcuda
    anywhere: bool = False  # or, as other packages have it too, wherever the loader finds it


#: In the order in which `nvc-cli list` shows them.
TABLE = (
    DriverLibrary("libnvidia-ml", "utility", COUNTED, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-cfg", "utility", COUNTED, dev_link=True),
    DriverLibrary("libnvidia-nscq", "utility", COUNTED, "2"),
    DriverLibrary("libnvsdm", "utility", COUNTED),
    DriverLibrary("libcuda", "compute", COUNTED, compat32=True, dev_link=True),
    DriverLibrary("libcudadebugger", "compute", COUNTED),
    DriverLibrary("libnvidia-opencl", "compute", NOT, compat32=True),
    DriverLibrary("libnvidia-gpucomp", "compute", COUNTED, "", compat32=True),
    DriverLibrary("libnvidia-ptxjitcompiler", "compute", COUNTED, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-fatbinaryloader", "compute", COUNTED, ""),
    DriverLibrary("libnvidia-allocator", "compute", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-compiler", "compute", COUNTED, ""),
    DriverLibrary("libnvidia-pkcs11", "compute", COUNTED, ""),
    DriverLibrary("libnvidia-pkcs11-openssl3", "compute", COUNTED, ""),
    DriverLibrary("libnvidia-nvvm", "compute", COUNTED, "4", compat32=True, dev_link=True),
    DriverLibrary("libnvidia-nvvm70", "compute", COUNTED, abi="4"),
    DriverLibrary("libnvidia-tileiras", "compute", COUNTED, ""),
    DriverLibrary("libnvidia-ngx", "ngx", NOT),
    DriverLibrary("libvdpau_nvidia", "video", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-encode", "video", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-opticalflow", "video", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvcuvid", "video", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-eglcore", "graphics", NOT, "", compat32=True),
    DriverLibrary("libnvidia-glcore", "graphics", NOT, "", compat32=True),
    DriverLibrary("libnvidia-tls", "graphics", NOT, "", compat32=True),
    DriverLibrary("libnvidia-glsi", "graphics", NOT, "", compat32=True),
    DriverLibrary("libnvidia-fbc", "graphics", NOT, compat32=True, dev_link=True),
    DriverLibrary("libnvidia-ifr", "graphics", NOT, compat32=True),
    DriverLibrary("libnvidia-rtcore", "graphics", NOT, ""),
    DriverLibrary("libnvoptix", "graphics", NOT),
    DriverLibrary("libnvidia-vksc-core", "graphics", NOT),
    DriverLibrary("libnvidia-vulkan-producer", "graphics", NOT, "", dev_link=True),
    DriverLibrary("libnvidia-present", "graphics", NOT, "", compat32=True),
    DriverLibrary("libnvidia-api", "graphics", NOT, abi="1"),
    DriverLibrary("libnvidia-egl-gbm", "graphics", NOT, compat32=True, abi="1", anywhere=True),
    DriverLibrary("libnvidia-egl-wayland", "graphics", NOT, compat32=True, abi="1", anywhere=True),
    DriverLibrary("libnvidia-egl-wayland2", "graphics", NOT, compat32=True, abi="1", anywhere=True),
    DriverLibrary("libnvidia-egl-xcb", "graphics", NOT, compat32=True, abi="1", anywhere=True),
    DriverLibrary("libnvidia-egl-xlib", "graphics", NOT, compat32=True, abi="1", anywhere=True),
    DriverLibrary("libnvidia-wayland-client", "graphics", NOT, ""),
    DriverLibrary("libnvidia-gtk2", "graphics", NOT, ""),
    DriverLibrary("libnvidia-gtk3", "graphics", NOT, ""),
    DriverLibrary("libGLX_nvidia", "glvnd", NOT, "0", compat32=True),
    DriverLibrary("libEGL_nvidia", "glvnd", NOT, "0", compat32=True),
    DriverLibrary("libGLESv2_nvidia", "glvnd", NOT, "2", compat32=True),
    DriverLibrary("libGLESv1_CM_nvidia", "glvnd", NOT, "1", compat32=True),
    DriverLibrary("libnvidia-glvkspirv", "glvnd", NOT, "", compat32=True),
    DriverLibrary("libnvidia-cbl", "glvnd", NOT, ""),
)
ROWS = {row.name: row for row in TABLE}

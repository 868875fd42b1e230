"""What a driver has for graphics beside libraries: files by which they are found, and modules of the X server."""

from __future__ import annotations

import json

#: Directories of the X server's modules, and of its configuration.
X_MODULES, X_CONFIGURATION = "usr/lib/xorg/modules", "usr/share/X11/xorg.conf.d"
_PLATFORMS = "usr/share/egl/egl_external_platform.d"
_OUTPUT_CLASS = """Section "OutputClass"
    Identifier "simulated nvidia"
    MatchDriver "nvidia-drm"
    Driver "nvidia"
EndSection
"""


def _json(key: str, library: str, **more: object) -> str:
    return json.dumps({"file_format_version": "1.0.0", key: {"library_path": library, **more}}, indent=4) + "\n"


def files(version: str) -> dict[str, str]:
    """Path in the root, without a slash in front, and content of each file."""
    layers = [
        {"name": "VK_LAYER_NV_optimus", "library_path": "libGLX_nvidia.so.0"},
        {"name": "VK_LAYER_NV_present", "library_path": f"libnvidia-present.so.{version}"},
    ]
    return {
        "etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
        "etc/vulkan/icd.d/nvidia_icd.json": _json("ICD", "libGLX_nvidia.so.0", api_version="1.4.312"),
        "etc/vulkan/implicit_layer.d/nvidia_layers.json": json.dumps({"layers": layers}, indent=4) + "\n",
        "usr/share/vulkansc/icd.d/nvidia_icd_vksc.json": _json(
            "ICD", "libnvidia-vksc-core.so.1", api_version="1.0.17"
        ),
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json": _json("ICD", "libEGL_nvidia.so.0"),
        f"{_PLATFORMS}/09_nvidia_wayland2.json": _json("ICD", "libnvidia-egl-wayland2.so.1"),
        f"{_PLATFORMS}/10_nvidia_wayland.json": _json("ICD", "libnvidia-egl-wayland.so.1"),
        f"{_PLATFORMS}/15_nvidia_gbm.json": _json("ICD", "libnvidia-egl-gbm.so.1"),
        f"{_PLATFORMS}/20_nvidia_xcb.json": _json("ICD", "libnvidia-egl-xcb.so.1"),
        f"{_PLATFORMS}/20_nvidia_xlib.json": _json("ICD", "libnvidia-egl-xlib.so.1"),
        "usr/share/nvidia/nvoptix.bin": "data of a simulated NVIDIA driver\n",
        f"{X_CONFIGURATION}/nvidia-drm-outputclass.conf": _OUTPUT_CLASS,
    }


def modules(version: str) -> dict[str, str]:
    """Path in the root, without a slash in front, and SONAME of each module of the X server."""
    return {
        f"{X_MODULES}/drivers/nvidia_drv.so": "nvidia_drv.so",
        f"{X_MODULES}/extensions/libglxserver_nvidia.so.{version}": "libglxserver_nvidia.so",
    }

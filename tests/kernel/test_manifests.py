"""What containers get for graphics beside libraries."""

from __future__ import annotations

from typing import Any

import pytest
from support.bundle import Bundle

PLACES = {
    "/etc/OpenCL/vendors/nvidia.icd": "opencl",
    "/etc/vulkan/icd.d/nvidia_icd.json": "vulkan",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": "gbm",
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf": "x",
    "/usr/lib/xorg/modules/drivers/nvidia_drv.so": "x-driver",
    "/usr/bin/nvidia-xconfig": "x-program",
}
LIST = "".join(f"[ ! -s {path} ] || echo {name};" for path, name in PLACES.items())


@pytest.mark.parametrize(
    ("capabilities", "variables", "seen"),
    [
        ("graphics", [], ["vulkan", "gbm", "x", "x-driver", "x-program"]),
        # their libraries' memory is not counted, so a slice has none
        ("all", ["NVC_VGPU_MEMORY=1GiB"], ["x-program"]),
    ],
)
def test_manifests_come_with_their_libraries(
    hook: Any, bundle: Bundle, shim: str, capabilities: str, variables: list[str], seen: list[str]
) -> None:
    hook().add(bundle)
    bundle.config["process"]["env"] += [
        "NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", *variables,
    ]  # fmt: skip
    assert bundle.run("runc", LIST).stdout.split() == seen


def test_a_backend_of_gbm_leads_to_a_library(hook: Any, bundle: Bundle) -> None:
    hook().add(bundle)
    bundle.config["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]
    made = bundle.run("runc", "cd /usr/lib/*-linux-gnu/gbm && head -c 4 nvidia-drm_gbm.so && readlink -f nvidia*")
    assert made.stdout.startswith("\x7fELF") and "libnvidia-allocator.so.5" in made.stdout

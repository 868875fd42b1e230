"""Files by which programs find OpenCL, Vulkan and EGL of the driver, in real containers."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.bundle import Bundle

OPENCL, VULKAN = "/etc/OpenCL/vendors/nvidia.icd", "/usr/share/vulkan/icd.d/nvidia_icd.json"
LIST = f"for file in {OPENCL} {VULKAN}; do [ ! -e $file ] || cat $file; done"


@pytest.mark.parametrize(
    ("capabilities", "variables", "seen"),
    [
        ("utility", [], []),
        ("compute", [], ["opencl"]),
        ("graphics", [], ["vulkan"]),
        ("all", [], ["opencl", "vulkan"]),
        ("all", ["NVC_VGPU_MEMORY=1GiB"], []),  # their libraries' memory is not counted, so a slice has none
    ],
)
def test_manifests_come_with_their_libraries(
    hook: Any, bundle: Bundle, shim: str, scratch: str, capabilities: str, variables: list[str], seen: list[str]
) -> None:
    hook().add(bundle)
    for path, text in ((OPENCL, "opencl\n"), (VULKAN, "vulkan\n")):
        place = f"{scratch}/driver1{path}"
        os.makedirs(os.path.dirname(place))
        with open(place, "w", encoding="ascii") as out:
            out.write(text)
    bundle.config["process"]["env"] += [
        "NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", *variables,
    ]  # fmt: skip
    assert bundle.run("runc", LIST).stdout.split() == seen

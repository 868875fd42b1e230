"""Which files beside libraries are the driver's: those by which programs find it, and modules of the X server."""

from __future__ import annotations

import json
import os

import pytest
from support.drivertree import ARCH, LIBS, OTHER_ARCH, VERSION, DriverTree

from nvc.discovery.driver.manifests import find_manifests
from nvc.discovery.driver.modules import find_modules
from nvc.model.facts import Manifest, Module
from nvc.testing.sim.elffile import shared_object

KNOWN = frozenset(
    ("libGLX_nvidia", "libEGL_nvidia", "libnvidia-opencl", "libnvidia-egl-gbm", "libnvidia-vksc-core",
     "libnvidia-present", "libnvoptix", "nvidia_drv")
)  # fmt: skip
DRIVERS, EXTENSIONS = "/usr/lib/xorg/modules/drivers", "/usr/lib/xorg/modules/extensions"


@pytest.fixture
def tree(scratch: str) -> DriverTree:
    return DriverTree(f"{scratch}/root")


def icd(library: str, key: str = "ICD") -> str:
    return json.dumps({"file_format_version": "1.0.0", key: {"library_path": library}})


def manifests(tree: DriverTree, beside: str = LIBS) -> tuple[dict[str, Manifest], tuple[str, ...], tuple[str, ...]]:
    with tree.root() as root:
        found, directories, warnings = find_manifests(root, KNOWN, beside)
    return {one.path: one for one in found}, directories, warnings


def test_a_file_is_the_drivers_when_it_names_a_library_of_it(tree: DriverTree) -> None:
    files = {
        "/etc/OpenCL/vendors/nvidia.icd": ("libnvidia-opencl.so.1\n", "libnvidia-opencl"),
        "/etc/vulkan/icd.d/any_name.json": (icd("libGLX_nvidia.so.0"), "libGLX_nvidia"),
        "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json": (icd("/opt/lib/libGLX_nvidia.so.0"), "libGLX_nvidia"),
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json": (
            json.dumps({"layers": [{"library_path": "libelse.so"}, {"library_path": "libnvidia-present.so.1"}]}),
            "libnvidia-present",
        ),
        "/usr/share/vulkansc/icd.d/nvidia_icd_vksc.json": (icd("libnvidia-vksc-core.so.1"), "libnvidia-vksc-core"),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": (icd("libEGL_nvidia.so.0"), "libEGL_nvidia"),
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": (
            icd("libnvidia-egl-gbm.so.1"), "libnvidia-egl-gbm",
        ),
        "/usr/share/X11/xorg.conf.d/10-nvidia.conf": ('Driver "nvidia"', "nvidia_drv"),
        "/usr/share/nvidia/nvoptix.bin": ("data", "libnvoptix"),
    }  # fmt: skip
    for path, (content, _) in files.items():
        tree.file(path, content)
    for path, content in {
        "/etc/OpenCL/vendors/mesa.icd": "libMesaOpenCL.so.1\n",
        "/etc/OpenCL/vendors/nvidia.icd.bak": "libnvidia-opencl.so.1\n",
        "/usr/share/vulkan/icd.d/intel_icd.json": icd("libvulkan_intel.so"),
        "/usr/share/glvnd/egl_vendor.d/50_mesa.json": "no JSON, and not ours",
        "/usr/share/X11/xorg.conf.d/40-libinput.conf": 'Driver "libinput"',
        "/usr/share/nvidia/other.bin": "data",
    }.items():
        tree.file(path, content)
    found, directories, warnings = manifests(tree)
    assert {path: one.library for path, one in found.items()} == {path: name for path, (_, name) in files.items()}
    assert {one.target for one in found.values()} == {""}
    assert set(directories) == {os.path.dirname(path) for path in files}
    assert warnings == ()


def test_what_is_wrong_with_a_file_of_the_driver_is_a_warning(tree: DriverTree) -> None:
    os.makedirs(tree.full("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"))
    tree.file("/etc/vulkan/icd.d/nvidia_icd.json", "{")
    tree.file("/etc/vulkan/icd.d/nvidia_large.json", icd("libGLX_nvidia.so.0") + " " * 65536)
    os.mkfifo(tree.file("/etc/OpenCL/vendors/x") + "nvidia.icd")
    found, directories, warnings = manifests(tree)
    assert found == {} and directories == ()
    places = ["xnvidia.icd", "nvidia_icd.json", "nvidia_large.json", "10_nvidia.json"]
    assert len(warnings) == 4
    assert all(f"{place} is left out: " in warning for place, warning in zip(places, warnings))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/usr/local/share/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/icd.d/nvidia_icd.json"),
        ("/run/opengl-driver/share/glvnd/egl_vendor.d/10_x.json", "/usr/share/glvnd/egl_vendor.d/10_x.json"),
        ("/usr/share/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
    ],
)
def test_a_file_in_an_odd_place_goes_where_programs_look(tree: DriverTree, path: str, target: str) -> None:
    tree.file(path, "libnvidia-opencl.so.1" if path.endswith(".icd") else icd("libGLX_nvidia.so.0"))
    found, _, _ = manifests(tree, "/run/opengl-driver/lib")
    assert found[path].target == target


def modules(tree: DriverTree, *directories: str) -> tuple[tuple[Module, ...], tuple[str, ...]]:
    with tree.root() as root:
        return find_modules(root, ARCH, VERSION, directories or (LIBS,))


@pytest.mark.parametrize(
    ("drivers", "extensions"),
    [
        (DRIVERS, EXTENSIONS),
        (f"{LIBS}/nvidia/xorg", f"{LIBS}/nvidia/xorg"),
        ("/usr/lib64/xorg/modules/drivers", "/usr/lib64/xorg/modules/extensions"),
    ],
)
def test_modules_of_the_x_server(tree: DriverTree, drivers: str, extensions: str) -> None:
    tree.file(f"{drivers}/nvidia_drv.so", shared_object("nvidia_drv.so", ARCH))
    tree.file(f"{extensions}/libglxserver_nvidia.so.{VERSION}", shared_object("libglxserver_nvidia.so", ARCH))
    tree.file(f"{extensions}/libglxserver_nvidia.so.1.2.3", shared_object("libglxserver_nvidia.so", ARCH))
    found, warnings = modules(tree)
    assert [(one.path, one.target, one.link) for one in found] == [
        (f"{drivers}/nvidia_drv.so",) * 2 + ("",),
        (f"{extensions}/libglxserver_nvidia.so.{VERSION}",) * 2 + ("libglxserver_nvidia.so",),
    ]
    assert warnings == ()


def test_modules_stay_where_the_x_server_finds_them(tree: DriverTree) -> None:
    """Debian has links there, to what its alternatives have chosen."""
    own = "/usr/lib/nvidia/current"
    for directory, name in ((DRIVERS, "nvidia_drv.so"), (EXTENSIONS, "libglxserver_nvidia.so")):
        tree.file(f"{own}/{name}", shared_object(name, ARCH))
        tree.link(f"{own}/{name}", f"{directory}/{name}")
    found, _ = modules(tree)
    assert [(one.path, one.target, one.link) for one in found] == [
        (f"{own}/nvidia_drv.so", f"{DRIVERS}/nvidia_drv.so", ""),
        (f"{own}/libglxserver_nvidia.so", f"{EXTENSIONS}/libglxserver_nvidia.so", ""),
    ]


def test_what_is_no_module_for_this_machine_is_left_out(tree: DriverTree) -> None:
    tree.file(f"{DRIVERS}/nvidia_drv.so", shared_object("nvidia_drv.so", OTHER_ARCH))
    tree.file(f"{EXTENSIONS}/libglxserver_nvidia.so.{VERSION}", b"no ELF file" * 10)
    found, warnings = modules(tree)
    assert found == ()
    assert len(warnings) == 1 and "libglxserver_nvidia" in warnings[0] and "not a sound ELF file" in warnings[0]
    assert modules(DriverTree(tree.path + "/empty")) == ((), ())

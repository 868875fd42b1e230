"""What plans have for graphics beside libraries: modules of the X server, manifests, a backend for GBM."""

from __future__ import annotations

from typing import Any

import pytest
from support.facts import IDENTITY, LIBS, VERSION, facts

from nvc.apply.target import Layout
from nvc.model.facts import Binary, Library, Manifest, Module
from nvc.model.request import Request
from nvc.model.selection import Selection
from nvc.plan.build import build_plan
from nvc.plan.ops import BindFile, Symlink

DEBIAN = Layout("/usr/bin", LIBS, "", False)
FEDORA = Layout("/usr/bin", "/usr/lib64", "", False)
HOST = Layout("", "", "", False, as_host=True)
GLX = f"libglxserver_nvidia.so.{VERSION}"
ICD, CONFIGURATION, ODD = "/etc/vulkan/icd.d/x.json", "/usr/share/X11/xorg.conf.d/10-x.conf", "/vulkan/y.json"


def host(modules: str = "/usr/lib/xorg/modules") -> Any:
    def library(name: str, kind: str, soname: str) -> Library:
        return Library(f"{LIBS}/{name}.so.{VERSION}", soname, kind, "x86_64", False, IDENTITY)

    return facts().replace(
        libraries=(
            library("libnvidia-allocator", "compute", "libnvidia-allocator.so.1"),
            library("libGLX_nvidia", "glvnd", "libGLX_nvidia.so.0"),
            library("libnvidia-new", "other", "libnvidia-new.so.1"),
        ),
        binaries=(Binary("/usr/bin/nvidia-xconfig", "graphics", IDENTITY),),
        manifests=(
            Manifest(ICD, "libGLX_nvidia", IDENTITY),
            Manifest(ODD, "libGLX_nvidia", IDENTITY, "/usr/share/vulkan/icd.d/y.json"),
            Manifest(CONFIGURATION, "nvidia_drv", IDENTITY),
        ),
        modules=(
            Module("/real/nvidia_drv.so", f"{modules}/drivers/nvidia_drv.so", "", IDENTITY),
            Module(f"/real/{GLX}", f"{modules}/extensions/{GLX}", "libglxserver_nvidia.so", IDENTITY),
        ),
    )


def made(layout: Layout = DEBIAN, found: Any = None, **wanted: Any) -> tuple[dict[str, BindFile], dict[str, str]]:
    """The files by target, and the text of links."""
    ops = build_plan(found or host(), Selection(), Request(**wanted), layout).ops
    files = {op.target: op for op in ops if isinstance(op, BindFile)}
    return files, {op.target: op.text for op in ops if isinstance(op, Symlink)}


@pytest.mark.parametrize("capability", ["graphics", "display"])
def test_graphics_and_display_bring_all_of_it(capability: str) -> None:
    files, links = made(capabilities=(capability,))
    assert files["/usr/bin/nvidia-xconfig"].source == "/usr/bin/nvidia-xconfig"
    assert files[ICD].noexec and files[CONFIGURATION].noexec
    assert files["/usr/share/vulkan/icd.d/y.json"].source == ODD
    module = files["/usr/lib/xorg/modules/drivers/nvidia_drv.so"]
    assert module.source == "/real/nvidia_drv.so" and not module.noexec
    assert links["/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"] == GLX
    assert f"{LIBS}/gbm/nvidia-drm_gbm.so" not in links  # it leads to a library of compute


@pytest.mark.parametrize("layout", [DEBIAN, FEDORA])
def test_libgbm_finds_a_backend_in_the_images_directory(layout: Layout) -> None:
    _, links = made(layout, capabilities=("compute", "graphics"))
    assert links[f"{layout.libs_dir}/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"


@pytest.mark.parametrize(
    ("on_host", "layout", "there"),
    [
        ("/usr/lib/xorg/modules", FEDORA, "/usr/lib64/xorg/modules"),
        ("/usr/lib64/xorg/modules", DEBIAN, "/usr/lib/xorg/modules"),
        ("/usr/lib64/xorg/modules", HOST, "/usr/lib64/xorg/modules"),  # no image is known
        (f"{LIBS}/nvidia/xorg", FEDORA, f"{LIBS}/nvidia/xorg"),  # its configuration names this path
    ],
)
def test_modules_go_where_the_images_x_server_searches(on_host: str, layout: Layout, there: str) -> None:
    files, links = made(layout, host(on_host), capabilities=("display",))
    assert f"{there}/drivers/nvidia_drv.so" in files
    assert f"{there}/extensions/{GLX}" in files
    assert f"{there}/extensions/libglxserver_nvidia.so" in links


def test_who_finds_libraries_himself_gets_no_manifests() -> None:
    """soperator takes files of less than 1,024 bytes for mounts that are gone. NVIDIA makes none of these."""
    for ldconfig in ("/usr/bin/true", "@/bin/true"):
        files, _ = made(capabilities=("graphics", "compute"), ldconfig=ldconfig)
        assert not [path for path in files if path.endswith((".json", ".conf")) or "xorg" in path]
        assert f"{LIBS}/libGLX_nvidia.so.{VERSION}" in files
    files, _ = made(capabilities=("graphics",), ldconfig="@/sbin/ldconfig.real")
    assert ICD in files

"""Plans, operation by operation; equal input gives equal output, and nothing is asked of the system."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.facts import LIBS, VERSION, facts

from nvc.apply.target import Layout
from nvc.discovery.driver.compat import CompatLibrary
from nvc.model.request import Request
from nvc.model.selection import select
from nvc.plan.build import build_plan
from nvc.plan.ops import (
    AllowDevice,
    BindDevice,
    BindFile,
    BindProc,
    BindSocket,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
)

DEBIAN = Layout("/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/i386-linux-gnu", False)
FEDORA = Layout("/usr/bin", "/usr/lib64", "", False)
EVERYTHING = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32")


def plan(
    layout: Layout = DEBIAN, host: Any = None, compat: tuple[CompatLibrary, ...] = (), **wanted: Any
) -> Any:
    request = Request(**{"devices": ("all",), "capabilities": ("compute", "utility"), **wanted})
    found = host or facts()
    return build_plan(found, select(found, request), request, layout, compat)


def of(made: Any, kind: type) -> list[Any]:
    return [op for op in made.ops if isinstance(op, kind)]


def test_32_bit_libraries_need_their_capability_and_a_place() -> None:
    def paths(made: Any) -> list[str]:
        return [op.source for op in of(made, BindFile) if "i386" in op.source]

    wanted = ("compute", "compat32")
    assert paths(plan()) == []
    assert paths(plan(capabilities=wanted)) == [f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"]
    assert paths(plan(FEDORA, capabilities=wanted)) == []


def test_soname_links_always_and_extra_links() -> None:
    links = {op.target: op.text for op in of(plan(), Symlink)}
    assert links[f"{LIBS}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert links[f"{LIBS}/libcuda.so"] == "libcuda.so.1"
    entries = of(plan(), UpdateLoaderCache)[0].entries
    assert [entry.path for entry in entries if entry.soname == "libcuda.so"] == [f"{LIBS}/libcuda.so"]
    assert links[f"{LIBS}/libnvidia-ml.so.1"] == f"libnvidia-ml.so.{VERSION}"


def test_order_binds_then_links_then_loader_cache() -> None:
    kinds = [type(op) for op in plan(capabilities=EVERYTHING).ops]
    assert kinds[0] is Tmpfs
    assert kinds[-1] is UpdateLoaderCache
    assert max(i for i, kind in enumerate(kinds) if kind is BindFile) < kinds.index(Symlink)


def test_the_proc_overlay_hides_other_gpus_and_forbids_making_nodes() -> None:
    made = plan(devices=("0",))
    overlay = of(made, Tmpfs)[0]
    assert overlay.target == "/proc/driver/nvidia"
    assert overlay.files == (("params", b"ModifyDeviceFiles: 0\n"),)
    assert [op.target for op in of(made, BindProc)] == ["/proc/driver/nvidia/gpus/0000:3b:00.0"]
    assert overlay.directories == ("gpus", "gpus/0000:3b:00.0")


def test_each_node_comes_with_its_rule() -> None:
    made = plan(devices=("0",), capabilities=("utility",))
    assert [op.target for op in of(made, BindDevice)] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert of(made, AllowDevice) == [AllowDevice(195, 255), AllowDevice(195, 1)]
    assert of(plan(cgroups=False), AllowDevice) == []
    assert of(plan(devbind=False), BindDevice) == []
    assert of(plan(devbind=False), AllowDevice)


def test_nodes_of_classes() -> None:
    def nodes(*capabilities: str) -> set[str]:
        return {op.target for op in of(plan(devices=(), capabilities=capabilities), BindDevice)}

    assert nodes("utility") == {"/dev/nvidiactl"}
    assert nodes("compute") == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    assert nodes("display") == {"/dev/nvidiactl", "/dev/nvidia-modeset"}


@pytest.mark.parametrize(
    ("wanted", "services"),
    [
        ({}, {"persistenced", "fabricmanager", "mps"}),
        ({"persistenced": False}, {"fabricmanager", "mps"}),
        ({"fabricmanager": False}, {"persistenced", "mps"}),
        ({"capabilities": ("utility",)}, {"persistenced", "fabricmanager"}),
        ({"capabilities": ("compute",)}, {"mps"}),
    ],
)
def test_sockets(wanted: dict[str, Any], services: set[str]) -> None:
    made = {op.source for op in of(plan(**wanted), BindSocket)}
    assert {
        name for name in ("persistenced", "fabricmanager", "mps") if any(name in path for path in made)
    } == services


def test_the_application_profile_names_the_visible_gpus() -> None:
    made = plan(devices=("0",), capabilities=("graphics",))
    profile = of(made, Tmpfs)[1]
    assert profile.target == "/etc/nvidia/nvidia-application-profiles-rc.d"
    document = json.loads(dict(profile.files)["10-container.conf"])
    assert document["profiles"][0]["settings"] == ["EGLVisibleDGPUDevices", 1 << 1]
    assert len(of(plan(), Tmpfs)) == 1

"""Device nodes: a node is what its number says, never what its name says."""

from __future__ import annotations

import os

import pytest
from support.drivertree import DriverTree
from support.nvml import NvmlTree, built, nvml_tree

from nvc.base.errors import DetectionError
from nvc.discovery import discover
from nvc.discovery.devices.nodes import control_nodes, dri_nodes, find_node, nvidia_major
from nvc.kernel import LinuxKernel
from nvc.model.facts import ControlNode, DeviceNode
from nvc.model.request import DriverOptions

__all__ = ["built", "nvml_tree"]


@pytest.fixture
def tree(scratch: str) -> DriverTree:
    return DriverTree(f"{scratch}/root")


def test_a_node_of_the_drivers_number(tree: DriverTree) -> None:
    tree.node("/dev/nvidia3", 195, 3)
    root = tree.root()
    assert find_node(root, "/dev/nvidia3", 195, 3) == DeviceNode("/dev/nvidia3", 195, 3)
    assert find_node(root, "/dev/nvidia4", 195, 4) is None
    assert find_node(root, "/dev/nvidia3/x", 195, 4) is None


def test_what_is_not_the_drivers_node_is_refused_by_name(tree: DriverTree) -> None:
    tree.node("/dev/null-like", 1, 3)
    tree.node("/dev/nvidia1", 195, 0)
    tree.file("/dev/file")
    tree.link("nvidia1", "/dev/link")
    os.mknod(tree.full("/dev/block"), 0o60600, os.makedev(195, 0))
    root = tree.root()
    for path, cause in (
        ("/dev/null-like", "is 1:3, the driver's is 195:0"),
        ("/dev/nvidia1", "is 195:0, the driver's is 195:1"),
        ("/dev/file", "not a character device"),
        ("/dev/link", "not a character device"),
        ("/dev/block", "not a character device"),
    ):
        with pytest.raises(DetectionError) as caught:
            find_node(root, path, 195, int(path[-1]) if path[-1].isdigit() else 0)
        assert str(caught.value).startswith(
            f"detection error: invalid device node: {path}: {cause}; remove {path}"
        )


def test_control_nodes_have_the_numbers_of_proc_devices(tree: DriverTree) -> None:
    root = tree.root()
    majors = {"nvidia": 195, "nvidia-uvm": 507}
    assert control_nodes(root, majors) == ()
    tree.node("/dev/nvidiactl", 195, 255)
    tree.node("/dev/nvidia-uvm", 507, 0)
    tree.node("/dev/nvidia-modeset", 195, 254)
    assert control_nodes(root, majors) == (
        ControlNode(DeviceNode("/dev/nvidiactl", 195, 255)),
        ControlNode(DeviceNode("/dev/nvidia-uvm", 507, 0), "compute"),
        ControlNode(DeviceNode("/dev/nvidia-modeset", 195, 254), "display"),
    )
    tree.node("/dev/nvidia-uvm-tools", 507, 1)
    paths = [one.node.path for one in control_nodes(root, majors)]
    assert paths[1:3] == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    # The module is gone and its number given to another: the left-over node is nobody's.
    assert [one.node.minor for one in control_nodes(root, {"nvidia": 195})] == [255, 254]
    with pytest.raises(DetectionError, match="/dev/nvidia-uvm: is 507:0, the driver's is 508:0"):
        control_nodes(root, {"nvidia": 195, "nvidia-uvm": 508})


@pytest.mark.parametrize(
    ("majors", "major"),
    [({"nvidia-frontend": 195}, 195), ({"nvidiactl": 195}, 195), ({"nvidia": 196}, 196), ({}, 195)],
)
def test_the_major_under_each_of_its_names(majors: dict[str, int], major: int) -> None:
    assert nvidia_major(majors) == major


def test_dri_nodes_of_a_gpu(tree: DriverTree) -> None:
    drm = "/sys/bus/pci/devices/0001:3b:00.0/drm"
    for name in ("card1", "renderD129", "controlD65", "card-x", "card2"):
        tree.directory(f"{drm}/{name}")
    tree.node("/dev/dri/card1", 226, 1)
    tree.node("/dev/dri/renderD129", 226, 129)
    tree.node("/dev/dri/renderD128", 226, 128)
    root = tree.root()
    assert dri_nodes(root, root, (1, 0x3B, 0)) == ("/dev/dri/card1", "/dev/dri/renderD129")
    assert dri_nodes(root, root, (0, 0x3B, 0)) == ()


def small_driver(tree: DriverTree) -> DriverTree:
    tree.simulated()
    tree.kernel_side()
    tree.gpu("0000:1b:00.0", 0)
    tree.library("libcuda")
    tree.cache()
    return tree


def test_discovery_warns_of_a_missing_gpu_node(nvml_tree: NvmlTree) -> None:
    tree = small_driver(nvml_tree("NONE", 'NAME="Test GPU (simulated)"'))
    facts = discover(LinuxKernel(), DriverOptions(root=tree.path, inventory=False))
    assert facts.gpus[0].node == DeviceNode("/dev/nvidia0", 195, 0)
    assert facts.warnings == (
        "device node /dev/nvidia0 is missing: run nvidia-modprobe -c 0, or use --load-kmods",
    )


def test_a_driver_root_with_nodes_of_its_own_is_where_nodes_are(tree: DriverTree) -> None:
    host = tree.host()
    assert (host.devices.path, host.system.path, host.simulated) == ("/", "/", False)
    host.close()
    tree.file("/dev/nvidiactl")
    host = tree.host()
    assert host.devices.path == "/"
    host.close()
    os.unlink(tree.full("/dev/nvidiactl"))
    tree.node("/dev/nvidiactl", 195, 255)
    host = tree.host()
    assert (host.devices.path, host.system.path, host.simulated) == (tree.path, "/", False)
    host.close()
    tree.simulated()
    host = tree.host()
    assert (host.devices.path, host.system.path, host.simulated) == (tree.path, tree.path, True)
    host.close()

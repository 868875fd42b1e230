"""WSL: one node for all, files from the driver store. The tree is made after a Windows 11 host's."""

from __future__ import annotations

import pytest
from support.drivertree import ARCH, OTHER_ARCH, DriverTree
from support.nvml import NvmlTree, built, nvml_tree

from nvc.discovery.full import find_facts
from nvc.discovery.host import Host
from nvc.discovery.pack import pack, unpack
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.generate import document_of
from nvc.kernel import LinuxKernel
from nvc.model.facts import ControlNode, DeviceNode, HostFacts
from nvc.model.request import DriverOptions, Request
from nvc.testing.sim.elffile import shared_object

__all__ = ["built", "nvml_tree"]

LIB = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0afec3f2050014a0"


@pytest.fixture
def tree(nvml_tree: NvmlTree) -> DriverTree:
    """The NVML of `LIB` does not tell minors, as on WSL."""
    tree = nvml_tree("NONE", "BARE", directory=LIB)
    for name in ("libdxcore.so", "libcuda.so.1.1", "libnvidia-encode.so.1"):
        tree.file(f"{LIB}/{name}", shared_object(name, ARCH))
    for name in (
        "libcuda.so.1.1",
        "libcuda_loader.so",
        "libnvidia-ptxjitcompiler.so.1",
        "libnvdxgdmal.so.1",
    ):
        tree.file(f"{STORE}/{name}", shared_object(name, ARCH))
    tree.file(f"{STORE}/nvcubins.bin", b"data")
    for directory in (STORE, LIB):
        tree.file(f"{directory}/nvidia-smi", shared_object("", ARCH), 0o755)
    tree.file("/usr/lib/wsl/drivers/other.inf_amd64_1/readme.txt")
    tree.node("/dev/dxg", 10, 125)
    return tree


def find(tree: DriverTree) -> HostFacts:
    root = tree.root()
    with Host(root, root, root, False) as host:
        facts, directories = find_facts(host, DriverOptions(root=tree.path))
    assert directories is not None and "/usr/lib/wsl/drivers" in directories
    return facts


def test_everything_goes_through_one_node(tree: DriverTree) -> None:
    facts = find(tree)
    node = DeviceNode("/dev/dxg", 10, 125)
    assert (facts.controls, facts.imex_major) == ((ControlNode(node),), -1)
    (gpu,) = facts.gpus
    assert (gpu.node, gpu.minor, gpu.proc_dir) == (node, 0, "")
    assert facts.warnings == ()
    assert unpack(pack(facts), facts.ipcs, facts.proc_files) == facts


def test_the_document_of_refresh(tree: DriverTree) -> None:
    """Each device in it is the one node."""
    how = DocumentOptions("/usr/bin/nvc-cdi-hook")
    request = Request(devices=("all",), capabilities=("utility", "compute"))
    document = document_of(LinuxKernel(), find(tree), request, how, DriverOptions(root=tree.path))
    found = [document["containerEdits"], *(device["containerEdits"] for device in document["devices"])]
    nodes = [node["path"] for edits in found for node in edits.get("deviceNodes", ())]
    assert document["devices"] and set(nodes) == {"/dev/dxg"}


def test_files_come_from_the_store_first(tree: DriverTree) -> None:
    facts = find(tree)
    assert [(library.path, library.kind) for library in facts.libraries] == [
        (f"{LIB}/libdxcore.so", "utility"),
        (f"{LIB}/libdxcore.so", "compute"),
        (f"{LIB}/libnvidia-ml.so.580.159.04", "utility"),
        (f"{STORE}/libcuda.so.1.1", "compute"),
        (f"{STORE}/libcuda_loader.so", "compute"),
        (f"{STORE}/libnvidia-ptxjitcompiler.so.1", "compute"),
        (f"{STORE}/libnvdxgdmal.so.1", "compute"),
        (f"{LIB}/libnvidia-encode.so.1", "video"),
    ]
    assert [binary.path for binary in facts.binaries] == [f"{STORE}/nvidia-smi"]
    assert [firmware.path for firmware in facts.firmwares] == [f"{STORE}/nvcubins.bin"]


def test_what_does_not_run_here_is_left_out(tree: DriverTree) -> None:
    tree.file(f"{STORE}/libcuda_loader.so", shared_object("libcuda_loader.so", OTHER_ARCH))
    assert f"{STORE}/libcuda_loader.so" not in [library.path for library in find(tree).libraries]


def test_a_second_store_is_told(tree: DriverTree) -> None:
    tree.file("/usr/lib/wsl/drivers/nv_older/libcuda.so.1.1", shared_object("libcuda.so.1.1", ARCH))
    assert find(tree).warnings == ("2 driver stores below /usr/lib/wsl/drivers: the first is used",)

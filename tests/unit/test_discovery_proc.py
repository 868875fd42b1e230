"""What is read from /proc and /sys, and the door through which it is read."""

from __future__ import annotations

import os

import pytest
from support.drivertree import VERSION, DriverTree

from nvc.base.errors import DetectionError, InitializationError
from nvc.base.files import closing
from nvc.discovery.devices.mig import MigCapabilities
from nvc.discovery.devices.proc import (
    char_majors,
    is_version,
    kernel_version,
    parse_address,
    proc_files,
    proc_gpus,
)
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import LinuxKernel
from nvc.model.facts import DeviceNode, ProcFile

CAPABILITIES = "/proc/driver/nvidia/capabilities"
NVRM = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Aug 12 17:39:11 UTC 2026\nGCC version: 12.2.0\n"
)
OPEN_NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (builder@host)\n"


@pytest.fixture
def tree(scratch: str) -> DriverTree:
    return DriverTree(f"{scratch}/root")


def test_version_of_the_module(tree: DriverTree) -> None:
    root = tree.root()
    assert kernel_version(root) == ""
    for text in (NVRM, OPEN_NVRM):
        tree.file("/proc/driver/nvidia/version", text % VERSION)
        assert kernel_version(root) == VERSION
    tree.file("/proc/driver/nvidia/version", NVRM % "unknown")
    assert kernel_version(root) == ""
    tree.file("/sys/module/nvidia/version", "570.1.2\n")
    assert kernel_version(root) == "570.1.2"
    tree.file("/sys/module/nvidia/version", "../../etc\n")
    tree.file("/proc/driver/nvidia/version", NVRM % VERSION)
    assert kernel_version(root) == VERSION


def test_what_a_version_is() -> None:
    assert all(is_version(text) for text in ("580.159.04", "535.1", "1.2.3.4"))
    assert not any(
        is_version(text) for text in ("", "580", "1.2.3.4.5", "1..2", "1.2a", "1.\u0662", "1." + "2" * 30)
    )


def test_majors_come_from_the_character_section() -> None:
    text = b"Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n"
    text += b"\nBlock devices:\n  8 nvidia-caps\n"
    assert char_majors(text) == {"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}
    assert char_majors(b"x nvidia\n99999999 a\n-1 b\n1 c d\n") == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", (0, 0x3B, 0)), ("00000001:3B:1f.0", (1, 0x3B, 31)),
        ("10000:01:02.3", (0x10000, 1, 2)), ("0000:3b:00", None), ("0000:3b:20.0", None), ("3b:00.0", None),
        ("000000000:3b:00.0", None), ("0000:3g:00.0", None), ("0000:+1:00.0", None), ("..", None),
    ],
)  # fmt: skip
def test_pci_addresses(text: str, address: tuple[int, int, int] | None) -> None:
    assert parse_address(text) == address


def test_gpus_by_address_with_the_kernels_minors(tree: DriverTree) -> None:
    root = tree.root()
    assert proc_gpus(root) is None
    tree.gpu("0000:9d:00.0", 1)
    tree.gpu("0000:1b:00.0", 7, uuid="GPU-x", excluded=True)
    tree.directory("/proc/driver/nvidia/gpus/not-an-address")
    tree.directory("/proc/driver/nvidia/gpus/0000:ff:00.0")
    found = proc_gpus(root)
    assert found is not None
    assert [(gpu.directory[-12:], gpu.minor, gpu.excluded) for gpu in found] == [
        ("0000:1b:00.0", 7, True),
        ("0000:9d:00.0", 1, False),
        ("0000:ff:00.0", -1, False),
    ]
    tree.gpu("0000:2b:00.0", 1)
    with pytest.raises(DetectionError, match="0000:2b:00.0 has minor 1 too"):
        proc_gpus(root)


def test_proc_files_are_those_that_exist(tree: DriverTree) -> None:
    tree.file("/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n")
    tree.file("/proc/driver/nvidia/registry", 'Binary: ""\n')
    assert proc_files(tree.root()) == (
        ProcFile("params", b"ModifyDeviceFiles: 1\n"),
        ProcFile("registry", b'Binary: ""\n'),
    )


def test_mig_minors_and_capability_files(tree: DriverTree) -> None:
    lines = ["config 1", "monitor 2", "gpu0/gi1/access 12", "gpu0/gi1/ci0/access 13", "gpu3/gi1/access 417"]
    tree.file(
        "/proc/driver/nvidia-caps/mig-minors", "\n".join([*lines, "bad", "gpu0/x -3", "gpu0/y 99999999"])
    )
    capabilities = MigCapabilities(tree.root(), {"nvidia-caps": 510})
    assert capabilities.of_global("config") == DeviceNode("/dev/nvidia-caps/nvidia-cap1", 510, 1)
    assert list(capabilities.of_gpu(0)) == [12, 13]
    assert list(capabilities.of_gpu(3)) == [417]
    assert capabilities.of_gpu(1) == ()
    gi_access, ci_access, gi_node, ci_node = capabilities.access(0, 1, 0)
    assert gi_access == f"{CAPABILITIES}/gpu0/mig/gi1/access"
    assert ci_access == f"{CAPABILITIES}/gpu0/mig/gi1/ci0/access"
    assert (gi_node, ci_node) == (
        DeviceNode("/dev/nvidia-caps/nvidia-cap12", 510, 12),
        DeviceNode("/dev/nvidia-caps/nvidia-cap13", 510, 13),
    )


def test_a_capability_that_mig_minors_does_not_list_tells_its_minor_itself(tree: DriverTree) -> None:
    tree.file(f"{CAPABILITIES}/gpu0/mig/gi5/access", "DeviceFileMinor: 77\nDeviceFileMode: 292\n")
    tree.file(f"{CAPABILITIES}/mig/monitor", "DeviceFileMinor: 2\n")
    capabilities = MigCapabilities(tree.root(), {"nvidia-caps": 510})
    assert capabilities.access(0, 5, 0)[2:] == (DeviceNode("/dev/nvidia-caps/nvidia-cap77", 510, 77), None)
    assert capabilities.of_global("monitor") == DeviceNode("/dev/nvidia-caps/nvidia-cap2", 510, 2)
    assert capabilities.of_global("config") is None
    assert MigCapabilities(tree.root(), {}).of_global("monitor") is None  # capabilities without nodes


def test_a_root_must_be_a_directory(scratch: str) -> None:
    for path, cause in (
        (f"{scratch}/none", "no such file"),
        ("relative", "not an absolute path"),
        ("", "absolute"),
    ):
        with pytest.raises(InitializationError, match=cause):
            HostRoot.at(LinuxKernel(), path)


def test_reads_stay_in_the_root_and_in_bounds(tree: DriverTree, scratch: str) -> None:
    DriverTree(scratch).file("/secret", "secret")
    root = tree.root()
    tree.link("../../secret", "/a/up")
    tree.link(f"{scratch}/secret", "/a/absolute")
    for path in ("/a/up", "/a/absolute", "/../secret", "../secret"):
        assert root.read_optional(path) is None
    tree.file("/proc/big", b"x" * 70000)
    assert root.read("/proc/big") == b"x" * 70000
    with pytest.raises(DetectionError, match="larger than 1000 bytes"):
        root.read("/proc/big", 1000)
    os.mkfifo(tree.full("/fifo"))
    assert root.read("/fifo") == b""  # and does not wait for a writer
    with pytest.raises(DetectionError, match="not a regular file"):
        root.open_regular("/fifo")


def test_listing_is_sorted_and_bounded(tree: DriverTree) -> None:
    for name in ("b", "a", "c"):
        tree.file(f"/d/{name}")
    root = tree.root()
    assert [name for name, _ in root.entries("/d")] == ["a", "b", "c"]
    assert dict(root.entries("/d"))["a"] == os.stat(tree.full("/d/a")).st_ino
    assert root.entries("/none") == []
    with pytest.raises(DetectionError, match="more than 2 entries"):
        root.entries("/d", limit=2)


def test_a_descriptors_path_is_inside_the_root(tree: DriverTree, scratch: str) -> None:
    tree.file("/usr/lib/x")
    tree.link("usr/lib", "/lib")
    root = tree.root()
    with closing(root.open("/lib/x")) as fd:
        assert root.real_path(fd) == "/usr/lib/x"
        os.unlink(tree.full("/usr/lib/x"))
        with pytest.raises(DetectionError, match="deleted"):
            root.real_path(fd)
    with closing(os.open(scratch, os.O_PATH)) as fd:
        with pytest.raises(DetectionError, match="not inside"):
            root.real_path(fd)

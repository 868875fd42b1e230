"""discover() on whole simulated driver roots, through the real probe."""

from __future__ import annotations

import os

import pytest
from support.drivertree import ARCH, LIBS, OTHER_LIBS, DriverTree
from support.nvml import NvmlTree, built, nvml_tree
from support.processes import become, enter_user_namespace, in_child

from nvc.base.errors import DetectionError, InitializationError
from nvc.discovery import discover
from nvc.discovery.full import find_facts
from nvc.discovery.host import Host
from nvc.kernel import LinuxKernel
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions
from nvc.testing.sim import SimSpec, create
from nvc.testing.sim.spec import gpus_of

__all__ = ["built", "nvml_tree"]


@pytest.fixture
def root(scratch: str, stage: str) -> str:
    """The path of a simulated driver root to be made; `stage` brings its libraries."""
    return f"{scratch}/sim"


def facts_of(root: str, **options: object) -> HostFacts:
    return discover(LinuxKernel(), DriverOptions(root=root, inventory=False, **options))  # type: ignore[arg-type]


def names(facts: HostFacts) -> set[str]:
    return {os.path.basename(library.path).partition(".so")[0] for library in facts.libraries}


def test_a_plain_root(root: str) -> None:
    spec = SimSpec(gpus=2, mps=True, fabricmanager=True)
    create(root, spec)
    facts = facts_of(root)
    assert facts.warnings == ()
    assert (facts.driver_root, facts.system_root, facts.device_root) == (root, root, root)
    assert (facts.driver_version, facts.cuda_version, facts.simulated) == ("580.159.04", "13.0", True)
    assert facts.driver_label == "580.159.04-sim"
    for gpu, made in zip(facts.gpus, gpus_of(spec), strict=True):
        assert (gpu.uuid, gpu.name, gpu.minor) == (made.uuid, made.name, made.minor)
        assert gpu.bus_id == f"0000{made.bus_id}"
        assert gpu.proc_dir == f"/proc/driver/nvidia/gpus/{made.bus_id}"
        assert (gpu.node.path, gpu.node.major, gpu.node.minor) == (
            f"/dev/nvidia{made.minor}",
            195,
            made.minor,
        )
        assert (gpu.architecture, gpu.mig_capable, gpu.mig_enabled, gpu.mig) == ("9.0", True, False, ())
        assert len(gpu.capability_nodes) == 135
    assert {"libcuda", "libnvidia-ml", "libvdpau_nvidia", "libGLX_nvidia", "libnvidia-tls"} <= names(facts)
    assert {os.path.dirname(library.path) for library in facts.libraries} <= {LIBS, f"{LIBS}/vdpau"}
    assert (facts.libraries32 != ()) == (ARCH == "x86_64")
    assert all(library.path.startswith(OTHER_LIBS) for library in facts.libraries32)
    assert [binary.path for binary in facts.binaries][:2] == [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-debugdump",
    ]
    assert [os.path.basename(firmware.path) for firmware in facts.firmwares] == [
        "gsp_ga10x.bin",
        "gsp_tu10x.bin",
    ]
    assert [ipc.service for ipc in facts.ipcs] == ["persistenced", "fabricmanager", "mps"]
    assert [(one.node.path, one.node.minor) for one in facts.controls] == [
        ("/dev/nvidiactl", 255), ("/dev/nvidia-uvm", 0), ("/dev/nvidia-uvm-tools", 1), ("/dev/nvidia-modeset", 254),
    ]  # fmt: skip
    assert [file.name for file in facts.proc_files] == ["params", "version", "registry"]


def test_mig_devices_with_their_capabilities(root: str) -> None:
    spec = SimSpec(gpus=2, mig=("", "3g.40gb,2x2g.20gb"), minors=(4, 1))
    create(root, spec)
    facts = facts_of(root)
    plain, split = facts.gpus
    assert (plain.minor, plain.mig_enabled, plain.mig) == (4, False, ())
    made = gpus_of(spec)[1].mig
    assert len(made) == 3
    assert [(mig.uuid, mig.gpu_instance, mig.compute_instance) for mig in split.mig] == [
        (mig.uuid, mig.gpu_instance, mig.compute_instance) for mig in made
    ]
    for mig in split.mig:
        # The capability tree goes by minors, not by NVML's indices.
        base = f"/proc/driver/nvidia/capabilities/gpu1/mig/gi{mig.gpu_instance}"
        assert (mig.gi_access, mig.ci_access) == (f"{base}/access", f"{base}/ci0/access")
        for access, node in ((mig.gi_access, mig.gi_node), (mig.ci_access, mig.ci_node)):
            assert node is not None
            with open(root + access, encoding="ascii") as file:
                assert f"DeviceFileMinor: {node.minor}\n" in file.read()
            assert os.stat(root + node.path).st_rdev == os.makedev(node.major, node.minor)
    assert facts.mig_config is not None and facts.mig_config.path == "/dev/nvidia-caps/nvidia-cap1"
    assert facts.mig_monitor is not None and facts.mig_monitor.path == "/dev/nvidia-caps/nvidia-cap2"


def test_a_mig_device_without_capability_is_left_out_with_a_warning(root: str) -> None:
    create(root, SimSpec(mig=("2x3g.40gb",)))
    access = facts_of(root).gpus[0].mig[0].ci_access
    os.unlink(root + access)
    facts = facts_of(root)
    assert [mig.index for mig in facts.gpus[0].mig] == [1]
    assert facts.warnings == (f"MIG device 0:0 is left out: {access} is missing",)


@pytest.mark.parametrize(
    "spec",
    [
        SimSpec(cache="combined"),
        SimSpec(cache="none"),
        SimSpec(libdir="/usr/local/nvidia/lib64", cache="none"),
        SimSpec(libdir="/run/opengl-driver/lib", cache="none"),
        SimSpec(libdir="/usr/lib64/nvidia"),
        SimSpec(second_copy=True),
    ],
    ids=lambda spec: f"{spec.libdir}-{spec.cache}-{spec.second_copy}",
)
def test_every_layout_gives_the_same_libraries(root: str, scratch: str, spec: SimSpec) -> None:
    create(f"{scratch}/plain", SimSpec())
    create(root, spec)
    facts, plain = facts_of(root), facts_of(f"{scratch}/plain")
    assert facts.warnings == ()
    assert names(facts) == names(plain)
    assert [library.soname for library in facts.libraries] == [library.soname for library in plain.libraries]
    assert len(facts.libraries32) == len(plain.libraries32)
    places = {os.path.dirname(library.path).removesuffix("/vdpau") for library in facts.libraries}
    assert len(places) == 1, "one driver, one place"


def test_a_stale_entry_and_a_wrapper_do_not_stop_anything(root: str) -> None:
    create(root, SimSpec(stale_entry=True, smi_wrapper=True))
    facts = facts_of(root)
    assert len(facts.warnings) == 1
    assert facts.warnings[0].startswith("stale entry in the loader cache: /")
    with open(root + facts.binaries[0].path, "rb") as file:
        assert file.read(4) == b"\x7fELF"


def test_another_loader_cache_can_be_named(root: str) -> None:
    create(root, SimSpec(libdir="/opt/odd/lib"))
    os.rename(f"{root}/etc/ld.so.cache", f"{root}/etc/other.cache")
    with pytest.raises(
        InitializationError, match="load library failed: libnvidia-ml.so.1: .*kernel module 580"
    ):
        facts_of(root)
    facts = facts_of(root, ldcache="/etc/other.cache")
    assert os.path.dirname(facts.libraries[0].path) == "/opt/odd/lib"


def test_no_gpus_is_not_an_error(root: str) -> None:
    create(root, SimSpec(gpus=0))
    facts = facts_of(root)
    assert facts.gpus == ()
    assert "libcuda" in names(facts)


def with_kernel_side(tree: DriverTree, version: str = "580.159.04") -> DriverTree:
    """Makes the tree a simulated driver with one GPU, whose NVML must say so."""
    tree.simulated()
    tree.kernel_side(version)
    tree.gpu("0000:1b:00.0", 0)
    tree.library("libcuda")
    tree.cache()
    tree.node("/dev/nvidiactl", 195, 255)
    tree.node("/dev/nvidia0", 195, 0)
    return tree


SIMULATED = 'NAME="Test GPU (simulated)"'


def test_nvml_of_another_version_than_the_module(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE", SIMULATED), "570.1.2")
    with pytest.raises(DetectionError, match="NVML says 580.159.04, the kernel module 570.1.2; .*reboot"):
        facts_of(tree.path)


def test_a_real_nvml_in_a_simulated_root(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE"))
    with pytest.raises(DetectionError, match="a simulated driver root with a real NVML"):
        facts_of(tree.path)


def test_a_gpu_that_the_kernel_does_not_know(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE", SIMULATED))
    os.rename(
        tree.full("/proc/driver/nvidia/gpus/0000:1b:00.0"),
        tree.full("/proc/driver/nvidia/gpus/0000:1c:00.0"),
    )
    with pytest.raises(
        DetectionError, match="00000000:1b:00.0: NVML lists it, /proc/driver/nvidia/gpus does not"
    ):
        facts_of(tree.path)


def test_a_gpu_that_the_kernel_knows_by_another_minor(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE", SIMULATED))
    tree.gpu("0000:1b:00.0", 5)
    with pytest.raises(DetectionError, match="minor 0 in NVML, 5 in /proc/driver/nvidia/gpus"):
        facts_of(tree.path)


def test_a_gpu_that_nvml_does_not_list_is_a_warning_unless_it_is_excluded(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE", SIMULATED))
    tree.gpu("0000:2b:00.0", 1)
    tree.gpu("0000:3b:00.0", 2, excluded=True)
    facts = facts_of(tree.path)
    assert facts.warnings == ("GPU 0000:2b:00.0 is claimed by the driver but not in NVML",)
    assert len(facts.gpus) == 1


def test_the_minor_is_the_kernels_where_nvml_does_not_tell(nvml_tree: NvmlTree) -> None:
    tree = with_kernel_side(nvml_tree("NONE", "BARE", SIMULATED))
    tree.gpu("0000:1b:00.0", 5)
    tree.node("/dev/nvidia5", 195, 5)
    assert facts_of(tree.path).gpus[0].node.path == "/dev/nvidia5"
    tree.file("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: Test\n")
    with pytest.raises(DetectionError, match="neither NVML nor the kernel module reports its minor"):
        facts_of(tree.path)


def test_a_driver_without_libraries_of_its_version(nvml_tree: NvmlTree) -> None:
    tree = nvml_tree("NONE", SIMULATED)
    os.replace(tree.full(f"{LIBS}/libnvidia-ml.so.580.159.04"), tree.full(f"{LIBS}/libnvidia-ml.so.1"))
    tree.simulated()
    tree.kernel_side()
    with pytest.raises(DetectionError, match="no library of driver 580.159.04; run ldconfig"):
        facts_of(tree.path)


def test_a_tree_of_files_alone_is_used_with_the_hosts_kernel(nvml_tree: NvmlTree, scratch: str) -> None:
    """A driver root without nodes: NVML is loaded from it, but stays in the host's root, where the nodes are."""
    tree = nvml_tree("NONE", directory="/opt/driver/lib")
    tree.library("libcuda", directory="/opt/driver/lib")
    tree.listed.append(("libnvidia-ml.so.1", "/opt/driver/lib/libnvidia-ml.so.1", ARCH))
    tree.cache()
    system = DriverTree(f"{scratch}/host")
    system.kernel_side()
    system.gpu("0000:1b:00.0", 0)
    system.node("/dev/nvidia0", 195, 0)
    root = system.root()
    host = Host(tree.root(), root, root, False)
    facts, _ = find_facts(host, DriverOptions(root=tree.path))
    host.close()
    assert (facts.system_root, facts.device_root, facts.simulated) == (system.path, system.path, False)
    assert [library.path for library in facts.libraries] == [
        "/opt/driver/lib/libnvidia-ml.so.580.159.04",
        "/opt/driver/lib/libcuda.so.580.159.04",
    ]
    assert (facts.gpus[0].name, facts.gpus[0].node.path) == ("Test GPU", "/dev/nvidia0")
    assert facts.warnings == ()


def test_an_ordinary_user_can_look(root: str) -> None:
    """Also without a place for the inventory."""
    create(root, SimSpec(gpus=2))

    def look() -> str:
        become(4321)
        facts = discover(LinuxKernel(), DriverOptions(root=root))
        return f"{len(facts.gpus)} {len(facts.libraries) > 20} {facts.warnings}"

    assert in_child(look) == "2 True ()"


def test_root_of_a_user_namespace_can_look(root: str) -> None:
    create(root, SimSpec(gpus=2))

    def look() -> str:
        enter_user_namespace(setgroups=False)
        facts = discover(LinuxKernel(), DriverOptions(root=root))
        return f"{len(facts.gpus)} {facts.warnings}"

    assert in_child(look) == "2 ()"

"""Slices that containers ask for by variables, given by nvc-hook under real runtimes."""

from __future__ import annotations

import filecmp
import os
import shutil
from typing import Any

import pytest
from support import GIB
from support.bundle import Bundle
from support.fileleases import Lease
from support.hook import ask
from support.loader import needing_libcuda, places
from support.nightly import few
from support.rootfs import LIBS
from support.vgpu import entry_of, limits_of

from nvc.kernel import LinuxKernel
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.store import registry

KINDS = ("prestart", "createRuntime", "createContainer")
pytestmark = pytest.mark.usefixtures("shim")


@pytest.mark.parametrize(("runtime", "kind"), tuple(zip(("crun", "runc", "crun"), KINDS)))
def test_every_kind_of_hook(hook: Any, bundle: Bundle, runtime: str, kind: str) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="10GiB")
    hook().add(bundle, kind)
    with bundle.created(runtime) as container:
        container.start()
        assert limits_of(container.pid) == [10 * GIB, 10 * GIB]
        smi = container.exec("nvidia-smi").stdout if runtime == "runc" else "10240MiB"
        assert "10240MiB" in smi
        assert (
            registry.prune(LinuxKernel(), registry.base_directory()).count(entry_of(container.pid).key) == 0
        )


@pytest.mark.parametrize(
    ("variables", "limits"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "3g"}, [3 * GIB, NO_LIMIT]),
        ({"ALIYUN_COM_GPU_MEM_CONTAINER": "3", "ALIYUN_COM_GPU_VISIBLE_DEVICES": "1"}, [NO_LIMIT, 3 * GIB]),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "3072", "NVIDIA_GPU_MEMORY_REQUEST": "1024"}, [3 * GIB] * 2),
    ],
)
def test_every_system_of_variables(
    hook: Any, bundle: Bundle, variables: dict[str, str], limits: list[int]
) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **variables)
    hook().add(bundle)
    with bundle.created("runc") as container:
        assert limits_of(container.pid) == limits


def test_what_tells_hami_and_cgpu_to_look_away(hook: Any, bundle: Bundle) -> None:
    """Their variables that switch limits off, or put other places or words for them, change nothing."""
    switches = {
        "CUDA_DISABLE_CONTROL": "true", "CUDA_OVERSUBSCRIBE": "true", "ACTIVE_OOM_KILLER": "false",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/other.cache", "CUDA_REDIRECT": "/tmp/other.so",
        "RECORD_KERNEL_INTERVAL": "1", "CUDA_TASK_PRIORITY": "0", "LIBCUDA_LOG_LEVEL": "4", "CGPU_DISABLE": "true",
        "LD_PRELOAD": "", "CUDA_DEVICE_MEMORY_LIMIT_0": "80g",
    }  # fmt: skip
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", CUDA_DEVICE_MEMORY_LIMIT="1g")
    bundle.config["root"]["readonly"] = False
    hook().add(bundle)
    with bundle.created("runc") as container:
        container.start()
        assert limits_of(container.pid) == [GIB, GIB]
        container.exec("mkdir -p /tmp; echo CUDA_DEVICE_MEMORY_LIMIT=80g > /overrideEnv")
        words = " ".join(f"{name}={value}" for name, value in switches.items())
        assert container.exec(f"{words} nvidia-smi").stdout.count("1024MiB") == 2
        assert limits_of(container.pid) == [GIB, GIB]


@pytest.mark.parametrize("variables", [{}, {"ALIYUN_COM_GPU_MEM_CONTAINER": "3", "CGPU_DISABLE": "true"}])
def test_who_asks_for_none_gets_whole_devices(hook: Any, bundle: Bundle, variables: dict[str, str]) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **variables)
    hook().add(bundle)
    with bundle.created("runc") as container:
        assert entry_of(container.pid) is None


@pytest.mark.parametrize(
    ("settings", "variables", "limits"),
    [
        ('vgpu-memory-max = "2GiB"', {}, [2 * GIB] * 2),
        ('vgpu-memory = "2GiB"\nvgpu-variables = "ignore"', {"NVC_VGPU_MEMORY": "3g"}, [2 * GIB] * 2),
    ],
)
def test_what_the_operator_says(
    hook: Any, bundle: Bundle, settings: str, variables: dict[str, str], limits: list[int]
) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **variables)
    made = hook()
    made.add_settings(settings)
    made.add(bundle)
    with bundle.created("runc") as container:
        assert limits_of(container.pid) == limits


@pytest.mark.parametrize(
    ("settings", "variables", "cause"),
    [
        ("", {"NVC_VGPU_MEMORY": "90g"}, "NVC_VGPU_MEMORY: 90g: GPU-"),
        ("vgpu-cores-max = 40", {"NVC_VGPU_CORES": "100"}, "NVC_VGPU_CORES: 100: the operator grants 40"),
        ('vgpu-variables = "refuse"', {"NVC_VGPU_MEMORY": "3g"}, "whole GPUs only"),
    ],
)
def test_refused_before_the_container_exists(
    hook: Any, bundle: Bundle, settings: str, variables: dict[str, str], cause: str
) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **variables)
    made = hook()
    with open(made.config, "a", encoding="utf-8") as config:
        config.write(f"{settings}\n")
    made.add(bundle)
    done = bundle.run("runc", "echo started", check=False)
    assert done.returncode != 0 and cause in done.stderr and "started" not in done.stdout


def test_libraries_of_the_image_are_found_by_its_variable(hook: Any, bundle: Bundle, shim: str) -> None:
    made = hook()
    os.makedirs(f"{bundle.rootfs}/opt/odd")
    with (
        open(f"{shim}/libcuda.so", "rb") as library,
        open(f"{bundle.rootfs}/opt/odd/libcuda.so.1", "wb") as copy,
    ):
        copy.write(library.read())
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="1g", LD_LIBRARY_PATH="/nowhere:/opt/odd")
    made.add(bundle)
    with bundle.created("runc") as container:
        container.start()
        root = f"/proc/{container.pid}/root"
        assert os.path.samefile(f"{root}/opt/odd/libcuda.so.1", f"{shim}/libcuda.so")
        assert os.readlink(f"{root}/opt/odd/nvc") == f"{LIBS}/nvc"


@pytest.mark.parametrize("first", ["/opt/one", "/usr/local/cuda-1/compat"])
def test_a_directory_that_is_mounted_twice(
    hook: Any, bundle: Bundle, shim: str, tmp_path: Any, first: str
) -> None:
    """What covers a file in one mount does not cover it in the other; nor is what a path hides hidden there."""
    shutil.copy(f"{shim}/libcuda.so", tmp_path / "libcuda.so.1")
    for place in (first, "/opt/two"):
        mount = {"destination": place, "type": "bind", "source": str(tmp_path), "options": ["bind", "rw"]}
        bundle.config["mounts"].append(mount)
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="1g", LD_LIBRARY_PATH=f"{first}:/opt/two")
    hook().add(bundle)
    with bundle.created("runc") as container:
        container.start()
        seen = f"/proc/{container.pid}/root/opt/two/libcuda.so.1"
        assert os.path.samefile(seen, f"{shim}/libcuda.so")


@pytest.mark.parametrize(
    ("searched", "base"),
    few([("/opt/odd", "/opt/odd"), ("/none;/opt/$LIB", ""), ("/opt/${PLATFORM}/x", ""),
     ("$ORIGIN/../odd", "/usr/local/odd"), ("/usr/local/cuda/compat", "/usr/local/cuda/compat")], 2),
    ids=["preferred", "lib", "platform", "origin", "compat"],
)  # fmt: skip
def test_wherever_the_loader_of_the_image_looks_first(
    hook: Any, bundle: Bundle, shim: str, scratch: str, searched: str, base: str
) -> None:
    """Copies are in each directory that this machine's loader, which is the image's, names for its processor."""
    program, library = needing_libcuda(scratch)
    shutil.copy(program, f"{bundle.rootfs}/usr/local/bin")
    for place in places(base or searched):
        if not place.startswith("/none"):
            os.makedirs(bundle.rootfs + place, exist_ok=True)
            shutil.copy(library, bundle.rootfs + place)
    loading = "LD_TRACE_LOADED_OBJECTS=1 /usr/local/bin/needs-libcuda"
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="1g", LD_LIBRARY_PATH=searched)
    with bundle.created("runc") as container:
        container.start()
        without = os.path.normpath(found_libcuda(container.exec(loading).stdout))
        assert without.startswith(base or "/opt") and filecmp.cmp(bundle.rootfs + without, library, False)
    hook().add(bundle)
    with bundle.created("runc") as container:
        container.start()
        said = container.exec(loading).stdout
        assert os.path.samefile(f"/proc/{container.pid}/root{found_libcuda(said)}", f"{shim}/libcuda.so")
        assert "nvc/real-libcuda.so.1" in said and "not found" not in said


@pytest.mark.parametrize("lock", ["F_WRLCK", "F_RDLCK"])
def test_a_copy_that_cannot_be_read_is_not_passed_over(
    hook: Any, bundle: Bundle, shim: str, scratch: str, lock: str
) -> None:
    """The start went on without a shim over it. A lease for reading keeps nobody from reading."""
    _, library = needing_libcuda(scratch)
    os.makedirs(f"{bundle.rootfs}/vol")
    copy = shutil.copy(library, f"{bundle.rootfs}/vol")
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="1g", LD_LIBRARY_PATH="/vol")
    hook().add(bundle)
    with Lease(copy, lock=lock):
        done = bundle.run("runc", "grep -c ' /vol/libcuda' /proc/self/mountinfo", check=False)
        refused = "/vol/libcuda.so.1: resource temporarily unavailable" in done.stderr.lower()
        assert refused is (lock == "F_WRLCK") and (done.stdout == "1\n") is not refused, done
    assert bundle.run("runc", "grep -c ' /vol/libcuda' /proc/self/mountinfo").stdout == "1\n"


def found_libcuda(said: str) -> str:
    """Where the loader says that libcuda is."""
    return next(line.split()[2] for line in said.splitlines() if line.split()[0] == "libcuda.so.1")


def test_a_user_namespace(hook: Any, bundle: Bundle) -> None:
    """The ledger belongs to the container's root, and everybody in it can write it."""
    os.chmod(bundle.rootfs, 0o777)
    bundle.user_namespace()
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_MEMORY="1g", NVC_VGPU_LOG="/tmp/log")
    hook().add(bundle)
    for path, _, _ in os.walk(f"{bundle.rootfs}/usr"):
        os.chmod(path, 0o777)
    with bundle.created("runc") as container:
        container.start()
        assert limits_of(container.pid) == [GIB, GIB]
        place = f"{LIBS}/nvc/ledger"
        assert container.exec(f"stat -c %u:%a {place} {place}/ledger").stdout.split() == ["0:555", "0:666"]
        assert "1024MiB" in container.exec("nvidia-smi").stdout

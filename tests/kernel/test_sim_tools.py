"""What NVIDIA's own container tools look up in a driver root, looked up in a simulated one as they do it.

nvidia-container-cli loads NVML in a chroot to the root, as nobody; of the loader cache it takes the libraries whose
real file ends in the version that NVML tells. nvidia-ctk itself is in
tests/native/test_sim_programs.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile
from support import run
from support.ldcache import listing
from support.simdriver import environment, library_directory

from nvc.discovery.devices.proc import kernel_version
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import LinuxKernel
from nvc.testing.sim.libraries import LIBRARIES, file_name

#: What nvidia-container-cli's helper does with the driver root in its first argument.
CHROOTED = """
import ctypes, os, sys
os.chroot(sys.argv[1])
os.chdir("/")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
text = ctypes.create_string_buffer(80)
count = ctypes.c_uint()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
print(text.value.decode(), count.value)
"""


def in_chroot(root: str) -> tuple[str, int]:
    """Driver version and number of GPUs, told by the NVML of a driver root in a chroot to it."""
    version, count = run(sys.executable, "-I", "-c", CHROOTED, root).stdout.split()
    return version, int(count)


def test_nvml_works_in_a_chroot_to_the_root(sim_root: Callable[..., str]) -> None:
    assert in_chroot(sim_root(gpus=2, driver_version="575.57.08")) == ("575.57.08", 2)


def test_nvml_needs_nothing_that_a_driver_root_lacks(sim_root: Callable[..., str]) -> None:
    with open(os.path.join(library_directory(sim_root()), "libnvidia-ml.so.1"), "rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        assert [tag.needed for tag in tags] == ["libc.so.6"]


@pytest.mark.parametrize("layout", [{}, {"libdir": "/opt/driver/lib"}, {"cache": "combined"}])
def test_each_library_of_the_cache_has_the_version_that_nvml_tells(
    sim_root: Callable[..., str], layout: dict[str, str]
) -> None:
    root = sim_root(**layout)
    version, _ = in_chroot(root)
    driver = HostRoot.at(LinuxKernel(), root)
    chosen = set()
    for line in listing(os.path.join(root, "etc/ld.so.cache")):
        real = os.path.basename(os.path.realpath(root + line.path))
        if real.endswith("." + version):
            chosen.add(real.partition(".so")[0])
    own = {library.name for library in LIBRARIES if not file_name(library, version).endswith(f".so.{version}")}
    assert chosen == {library.name for library in LIBRARIES} - own
    assert "libnvidia-egl-gbm" in own
    assert kernel_version(driver) == version
    with open(os.path.join(root, "proc/driver/nvidia/version"), encoding="ascii") as file:
        assert version in file.readline().split()


def test_sandboxutils_declines(sim_root: Callable[..., str]) -> None:
    """nvidia-ctk binds its functions when it calls them: a missing one ends nvidia-ctk."""
    library = ctypes.CDLL(os.path.join(library_directory(sim_root()), "libnvidia-sandboxutils.so.1"))
    assert library.nvSandboxUtilsInit(None) == 2  # not supported: nvidia-ctk turns to NVML
    text, size = ctypes.create_string_buffer(b"untouched"), ctypes.c_uint(9)
    assert library.nvSandboxUtilsGetDriverVersion(text, 9) == 1
    assert library.nvSandboxUtilsGetGpuResource(text) == 1
    assert library.nvSandboxUtilsGetFileContent(b"/proc/version", text, ctypes.byref(size)) == 1
    assert library.nvSandboxUtilsShutdown() == 1
    assert text.value == b"untouched"


#: What nvidia-ctk asks to tell the profile of each MIG device of GPU 1: ids, profiles, places in memory.
INSTANCES = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def do(name, *arguments):
    code = getattr(nvml, name)(*arguments)
    assert code == 0, (name, code)
def number(name, *arguments):
    out = ctypes.c_uint()
    do(name, *arguments, ctypes.byref(out))
    return out.value
def pointer(name, *arguments):
    out = ctypes.c_void_p()
    do(name, *arguments, ctypes.byref(out))
    return out
def fields(name, skipped, count, *arguments):
    out = (ctypes.c_uint * 16)()
    do(name, *arguments, out)
    return list(out)[skipped:skipped + count]
do("nvmlInit_v2")
gpu = pointer("nvmlDeviceGetHandleByIndex_v2", 1)
told = []
for index in range(3):
    mig = pointer("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
    gi = pointer("nvmlDeviceGetGpuInstanceById", gpu, number("nvmlDeviceGetGpuInstanceId", mig))
    ci = pointer("nvmlGpuInstanceGetComputeInstanceById", gi, number("nvmlDeviceGetComputeInstanceId", mig))
    told.append([
        fields("nvmlGpuInstanceGetInfo", 2, 4, gi),
        fields("nvmlComputeInstanceGetInfo_v2", 4, 4, ci),
    ])
profiles = []
out = (ctypes.c_uint * 16)()
for profile in range(19):
    code = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, profile, out)
    profiles.append(out[0] if code == 0 else -code)
assert nvml.nvmlDeviceGetGpuInstanceById(gpu, 99, ctypes.byref(gpu)) == 6
print(json.dumps([told, profiles]))
"""


def test_nvml_tells_the_instances_of_mig_devices(sim_root: Callable[..., str]) -> None:
    root = sim_root(gpus=2, mig=("", "2g.20gb,1g.10gb,1g.20gb"))
    told, profiles = json.loads(run(sys.executable, "-c", INSTANCES, env=environment(root)).stdout)
    assert told == [  # id, profile, start, size: of the GPU instance, of its compute instance
        [[3, 14, 0, 2], [0, 1, 0, 2]],
        [[7, 19, 2, 1], [0, 0, 0, 1]],
        [[8, 15, 3, 2], [0, 0, 0, 1]],
    ]
    # 19: 1g.10gb, 14: 2g.20gb, 15: 1g.20gb; those that the GPU has none of are not supported, the last is no number
    assert profiles == [19, 14, -3, -3, -3, -3, -3, -3, -3, 15, -3, -3, -3, -3, -3, -3, -3, -3, -2]

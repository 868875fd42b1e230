"""What NVIDIA's own container tools look up in a driver root, looked up in a simulated one as they do it.

nvidia-container-cli loads NVML in a chroot to the root, as nobody; of the loader cache it takes the libraries whose
real file ends in the version that NVML tells. nvidia-ctk is in tests/kernel/test_sim_nvidia_ctk.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile
from support import run
from support.ldcache import listing
from support.simdriver import library_directory

from nvc.discovery.hostroot import HostRoot
from nvc.discovery.proc import kernel_version
from nvc.kernel import LinuxKernel
from nvc.sim.libraries import LIBRARIES

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
    assert chosen == {library.stem for library in LIBRARIES}
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

"""The built files themselves: names, versions of symbols, and what a loader makes of a root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile
from support import CLEAN_ENV, need, run
from support.simdriver import environment, library_directory

from nvc.testing.sim.libraries import PROGRAMS

Root = Callable[..., str]

BUILT = ("libcuda.so", "libnvidia-ml.so", *PROGRAMS, "vector_add")


def dynamic(path: str) -> dict[str, list[object]]:
    """Dynamic tags of an ELF file by name, strings in plain."""
    tags: dict[str, list[object]] = {}
    with open(path, "rb") as file:
        for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags():
            value = next(
                (getattr(tag, name) for name in ("soname", "needed") if hasattr(tag, name)), tag.entry.d_val
            )
            tags.setdefault(tag.entry.d_tag, []).append(value)
    return tags


@pytest.mark.parametrize("name", BUILT)
def test_an_old_c_library_is_enough(name: str, simdriver: str) -> None:
    """glibc 2.17 is what the oldest images that people still run have."""
    with open(os.path.join(simdriver, name), "rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        needed = {version.name for _, versions in section.iter_versions() for version in versions}
    assert needed
    for version in needed:
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
        assert match and (int(match[1]), int(match[2])) <= (2, 17), version


def test_the_libraries_bind_as_the_real_ones_do(simdriver: str) -> None:
    cuda = dynamic(os.path.join(simdriver, "libcuda.so"))
    nvml = dynamic(os.path.join(simdriver, "libnvidia-ml.so"))
    assert cuda["DT_SONAME"] == ["libcuda.so.1"] and nvml["DT_SONAME"] == ["libnvidia-ml.so.1"]
    assert "DT_SYMBOLIC" in cuda or int(str(cuda["DT_FLAGS"][0])) & 2
    assert "DT_SYMBOLIC" not in nvml and not int(str(nvml.get("DT_FLAGS", [0])[0])) & 2
    for tags in (cuda, nvml):
        assert "DT_VERDEF" not in tags  # unversioned symbols


def test_only_the_interface_is_exported(simdriver: str) -> None:
    for name, prefix in (("libcuda.so", "cu"), ("libnvidia-ml.so", "nvml")):
        with open(os.path.join(simdriver, name), "rb") as file:
            symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
            exported = {
                s.name
                for s in symbols
                if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"
            }
        assert len(exported) > 60
        assert [symbol for symbol in exported if not symbol.startswith(prefix)] == []


def test_the_example_computes(sim_root: Root, simdriver: str) -> None:
    done = run(os.path.join(simdriver, "vector_add"), "5000", env=environment(sim_root()))
    assert re.match(
        r"device 0 of 2: NVIDIA H100 80GB HBM3 \(simulated\), \d+ of 81008 MiB free\n", done.stdout
    )
    assert done.stdout.endswith("5000 elements added, all sums right\n")


def test_the_example_without_a_driver(simdriver: str) -> None:
    done = run(os.path.join(simdriver, "vector_add"), check=False, env=CLEAN_ENV)
    assert done.returncode == 1 and "libcuda.so.1" in done.stderr


@pytest.mark.parametrize("cache", ["new", "combined"])
def test_the_system_loader_uses_the_cache(
    cache: str, sim_root: Root, rootfs: Callable[..., str], simdriver: str
) -> None:
    """In a root with a C library, the driver's libraries are found through our cache and by nothing else."""
    sim = sim_root(cache=cache, libdir="/opt/driver/lib")
    root = rootfs(glibc=True)
    for part in ("opt", "dev", "proc"):
        shutil.rmtree(os.path.join(root, part), ignore_errors=True)
        subprocess.run([need("cp"), "-a", os.path.join(sim, part), root], check=True)
    shutil.copy(os.path.join(sim, "etc/ld.so.cache"), os.path.join(root, "etc/ld.so.cache"))
    shutil.copy(os.path.join(simdriver, "vector_add"), os.path.join(root, "vector_add"))
    done = run(need("chroot"), root, "/vector_add", "100", check=False)
    assert done.returncode == 0, done.stderr
    os.unlink(os.path.join(root, "etc/ld.so.cache"))
    assert "libcuda.so.1" in run(need("chroot"), root, "/vector_add", check=False).stderr


def test_a_real_dlopen_takes_every_library(sim_root: Root) -> None:
    directory = library_directory(sim_root())
    names = sorted(name for name in os.listdir(directory) if ".so" in name)
    script = "import ctypes, sys\nfor name in sys.argv[1:]: ctypes.CDLL(name)"
    run(need("python3"), "-c", script, *[os.path.join(directory, name) for name in names])
    assert len(names) > 60

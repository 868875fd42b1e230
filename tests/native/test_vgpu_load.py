"""However a program comes by libcuda, it gets the shim, and through it the one real library."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, PATIENCE, need, run
from support.builds import kept
from support.simdriver import SOURCES, WARN
from support.vgpushim import Slice


@pytest.fixture(scope="session")
def loader() -> str:
    def build(directory: str) -> str:
        program = os.path.join(directory, "vgpu_load")
        run("gcc", *WARN, "-o", program, os.path.join(SOURCES, "vgpu_load.c"), "-ldl")
        return program

    return kept("vgpu_load", build)


@pytest.fixture
def made(plain_slice: Callable[..., Slice]) -> Slice:
    made = plain_slice()
    os.symlink("libcuda.so.1", made.path("libcuda.so"))
    return made


def origins(made: Slice, loader: str, *words: str, **variables: str) -> tuple[str, str]:
    """Where the wrapped and the passing function come from, relative to the slice."""
    out = run(loader, *words, env=made.environment(**variables)).stdout.split()
    return os.path.relpath(out[0], made.libraries), os.path.relpath(out[1], made.libraries)


SHIM = ("libcuda.so.1", "nvc/real-libcuda.so.1")


@pytest.mark.parametrize("way", ["open", "global", "noload", "again", "namespace"])
@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", "{}/libcuda.so.1", "{}/libcuda.so"])
def test_every_way_leads_to_the_shim(made: Slice, loader: str, way: str, name: str) -> None:
    wrapped, passing = origins(made, loader, way, name.format(made.libraries))
    assert (os.path.basename(wrapped), passing) == (os.path.basename(wrapped), SHIM[1])
    assert os.path.realpath(made.path(wrapped)) == made.path("libcuda.so.1")


def test_a_relative_path(made: Slice, loader: str) -> None:
    out = run(loader, "open", "./libcuda.so.1", env=CLEAN_ENV, cwd=made.libraries).stdout.split()
    assert [os.path.normpath(os.path.join(made.libraries, path)) for path in out] == [
        made.path(name) for name in SHIM
    ]


@pytest.mark.parametrize("linked_with", ["shim", "driver"])
def test_a_plugin_that_binds_deeply(made: Slice, loader: str, scratch: str, linked_with: str) -> None:
    """Linked inside the container, or elsewhere with the driver's own library."""
    library = made.path("libcuda.so.1") if linked_with == "shim" else made.path("nvc/real-libcuda.so.1")
    plugin = os.path.join(scratch, "plugin.so")
    run("gcc", "-shared", "-fPIC", "-o", plugin, os.path.join(SOURCES, "vgpu_plugin.c"), library)
    assert origins(made, loader, "plugin", plugin) == SHIM


def test_a_versioned_lookup(made: Slice, loader: str) -> None:
    """The shim has no versions, as the driver has none: nothing that is linked with it comes to depend on one."""
    assert "VERDEF" not in run(need("readelf"), "-d", made.path("libcuda.so.1")).stdout
    assert origins(made, loader, "version")[0] != SHIM[1]


def test_preload_and_dependency(made: Slice, loader: str) -> None:
    assert origins(made, loader, "open", LD_PRELOAD=made.path("libcuda.so.1")) == SHIM
    assert origins(made, loader, "open", LD_BIND_NOW="1") == SHIM


def test_the_private_file_must_not_come_first(made: Slice, loader: str) -> None:
    """Why no code of nvc opens it by itself: from then on it is what the SONAME means."""
    private = made.path("nvc/real-libcuda.so.1")
    assert origins(made, loader, "open", LD_PRELOAD=private) == (SHIM[1], SHIM[1])


def test_ldconfig_leaves_the_shim_in_place(made: Slice) -> None:
    """It does not look into nvc/, and takes the higher version where a directory has two files of one SONAME."""
    os.unlink(made.path("libcuda.so"))
    os.rename(made.path("libcuda.so.1"), made.path("libcuda.so.580.159.04"))
    shutil.copy(made.path("nvc/real-libcuda.so.1"), made.path("libcuda.so.535.1"))
    run("/sbin/ldconfig", "-n", made.libraries)
    assert os.readlink(made.path("libcuda.so.1")) == "libcuda.so.580.159.04"


@pytest.mark.parametrize("per_thread", [False, True])
def test_the_resolver_finds_wrappers_of_the_right_abi(made: Slice, per_thread: bool) -> None:
    process = made.process().do("init")
    flags = 2 if per_thread else 1
    end = "_ptsz" if per_thread else ""
    wanted = {
        "cuMemAlloc 13000": "cuMemAlloc_v2",
        "cuMemAlloc 2000": "cuMemAlloc",
        "cuCtxCreate 12000": "cuCtxCreate_v3",
        "cuCtxCreate 11030": "cuCtxCreate_v2",
        "cuCtxCreate 13000": "cuCtxCreate_v4",
        "cuMemAllocAsync 13000": f"cuMemAllocAsync{end}",
        "cuLaunchKernel 13000": f"cuLaunchKernel{end}",
        "cuGraphInstantiate 13000": "cuGraphInstantiateWithFlags",
        "cuGraphInstantiate 11000": "cuGraphInstantiate_v2",
        "cuGetProcAddress 13000": "cuGetProcAddress_v2",
        "cuGetProcAddress 11030": "cuGetProcAddress",
        "cuDevicePrimaryCtxRelease 13000": "cuDevicePrimaryCtxRelease_v2",
    }
    for asked, symbol in wanted.items():
        status, name, file = process.ask(f"proc {asked} {flags}")
        assert (status, name) == ("0", symbol), asked
        assert file == made.path("libcuda.so.1"), asked
    assert process.ask(f"proc cuMemFreeHost 13000 {flags}")[2] == made.path("nvc/real-libcuda.so.1")
    assert process.ask(f"proc cuFromTheFuture 13000 {flags}") == ["1", "-", "-"]
    assert process.ask(f"proc cuMemAllocAsync 9000 {flags}") == ["2", "-", "-"]


def test_the_first_resolver(made: Slice, loader: str) -> None:
    """cuGetProcAddress itself is a wrapper, by dlsym and by itself: nobody gets past it."""
    process = made.process().do("init")
    status, name, file = process.ask("proc cuGetProcAddress 13000 0")
    assert (status, name, file) == ("0", "cuGetProcAddress_v2", made.path("libcuda.so.1"))


def test_a_privileged_program(made: Slice, loader: str, scratch: str) -> None:
    """For a set-user-ID program the loader follows $ORIGIN below directories of the system, in a path only."""
    trusted = os.path.dirname(run("gcc", "-print-file-name=libc.so.6").stdout.strip())
    trusted = os.path.realpath(trusted)
    for name in ("upper", "layers"):
        os.mkdir(os.path.join(scratch, name))
    program = os.path.join(scratch, "privileged")
    shutil.copy(loader, program)
    os.chmod(program, 0o4755)
    script = f"""set -e
mount -t tmpfs none {scratch}/layers
mkdir {scratch}/layers/upper {scratch}/layers/work
cp -r {made.libraries}/libcuda.so.1 {made.libraries}/nvc {scratch}/layers/upper
mount -t overlay none -o lowerdir={trusted},upperdir={scratch}/layers/upper,workdir={scratch}/layers/work {trusted}
exec setpriv --reuid 65534 --regid 65534 --clear-groups {program} open libcuda.so.1
"""
    done = subprocess.run(
        [need("unshare"), "-m", "sh", "-c", script],
        env={**CLEAN_ENV, "LD_LIBRARY_PATH": made.libraries}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    found = [os.path.realpath(path) for path in done.stdout.split()]
    assert found == [f"{trusted}/{name}" for name in SHIM], done.stderr

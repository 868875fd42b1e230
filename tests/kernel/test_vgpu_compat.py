"""A container with a slice whose image has CUDA forward-compatibility libraries."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import run
from support.configure import BASIC, Configure, as_hook
from support.plans import mount_at, mounts, snapshot
from support.rootfs import LIBS

VERSION = "580.159.04"
SLICE = (*BASIC, "--vgpu-memory=10GiB")
pytestmark = pytest.mark.usefixtures("shim")


def add_compat(rootfs: str, configure: Configure) -> None:
    """Forward-compatibility libraries of two toolkits, the older one being what the image uses."""
    driver = configure.command[1].partition("=")[2]
    for name in ("cuda-12.9/compat", "cuda-13.0/compat/lib.real"):
        os.makedirs(f"{rootfs}/usr/local/{name}")
        for stem in ("libcuda", "libnvidia-ptxjitcompiler"):
            library = f"{driver}{LIBS}/{stem}.so.{VERSION}"
            run("cp", library, f"{rootfs}/usr/local/{name}/{stem}.so.999.1")
    os.symlink("cuda-12.9", f"{rootfs}/usr/local/cuda")
    os.makedirs(f"{rootfs}/usr/local/cuda-12.9/lib64/stubs")
    run("cp", f"{driver}{LIBS}/libcuda.so.{VERSION}", f"{rootfs}/usr/local/cuda-12.9/lib64/stubs/libcuda.so")


@pytest.mark.parametrize("readonly", [False, True])
def test_forward_compatibility(
    runc_bundle: Any, debian: str, configure: Configure, shim: str, readonly: bool
) -> None:
    """What the image uses takes the driver's place behind the shim, which lies over it too; others are hidden."""
    add_compat(debian, configure)
    bundle = runc_bundle(debian)
    bundle.config["root"]["readonly"] = readonly
    compat = f"{debian}/usr/local/cuda-12.9/compat/libcuda.so.999.1"
    before = os.stat(compat).st_ino
    as_hook(bundle, configure, SLICE)
    with bundle.created("runc") as container:
        container.start()
        root = f"/proc/{container.pid}/root"
        assert os.path.samefile(f"{root}/usr/local/cuda/compat/libcuda.so.999.1", f"{shim}/libcuda.so")
        assert os.path.samefile(f"{root}{LIBS}/libcuda.so.1", f"{shim}/libcuda.so")
        real = f"{root}{LIBS}/nvc/real-libcuda.so.1"
        assert os.stat(real).st_ino == before and "ro,nosuid,nodev" in mount_at(
            container.pid, "real-libcuda.so.1"
        )
        assert os.readlink(f"{root}/usr/local/cuda/compat/nvc") == f"{LIBS}/nvc"
        assert not os.listdir(f"{root}/usr/local/cuda-13.0/compat")
        again = snapshot(debian), mounts(container.pid)
        configure(container.pid, debian, SLICE)
        assert (snapshot(debian), mounts(container.pid)) == again
    listed = run("/sbin/ldconfig", "-p", "-C", f"{debian}/etc/ld.so.cache").stdout
    assert "=> /usr/local/cuda/compat/libnvidia-ptxjitcompiler" in listed
    assert "compat/libcuda" not in listed


def test_forward_compatibility_that_is_not_wanted(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    add_compat(debian, configure)
    driver = configure.command[1].partition("=")[2]
    with runc_bundle(debian).created("runc") as container:
        container.start()
        done = configure(container.pid, debian, (*SLICE, "--cuda-compat-mode=disabled"))
        assert done.stderr.count("is hidden: its forward-compatibility libraries") == 2
        found = container.exec("busybox find /usr/local -name 'libcuda*'").stdout.split()
        assert found == ["/usr/local/cuda-12.9/lib64/stubs/libcuda.so"]
        real = f"/proc/{container.pid}/root{LIBS}/nvc/real-libcuda.so.1"
        assert os.path.samefile(real, f"{driver}{LIBS}/libcuda.so.{VERSION}")
    listed = run("/sbin/ldconfig", "-p", "-C", f"{debian}/etc/ld.so.cache").stdout
    assert "/compat/" not in listed

"""The main job, end to end: a simulated driver, the real launcher, real containers."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import pytest
from support import run
from support.configure import BASIC, Configure, as_hook
from support.plans import mounts
from support.prestart import at_prestart
from support.rootfs import LIBS

VERSION = "580.159.04"


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", True), ("crun", False)])
def test_a_container_gets_its_gpus(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str, runtime: str, readonly: bool
) -> None:
    bundle = runc_bundle(debian)
    bundle.config["root"]["readonly"] = readonly
    as_hook(bundle, Configure(launcher, sim_root(gpus=2)))
    script = (
        f"nvidia-smi -L; ls /dev | grep nvidia; readlink {LIBS}/libcuda.so.1; readlink {LIBS}/libcuda.so"
    )
    lines = bundle.run(runtime, script).stdout.splitlines()
    assert [line[:6] for line in lines[:2]] == ["GPU 0:", "GPU 1:"]
    assert lines[2:7] == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert lines[7:] == [f"libcuda.so.{VERSION}", "libcuda.so.1"]


def test_devices_can_be_opened_and_others_cannot(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str
) -> None:
    """No driver answers behind a simulated node: ENXIO where the cgroup allows, EPERM where it denies."""
    bundle = runc_bundle(debian)
    bundle.config["process"]["capabilities"] = {
        kind: [*caps, "CAP_MKNOD"] for kind, caps in bundle.config["process"]["capabilities"].items()
    }
    bundle.config["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "m"}
    )
    as_hook(bundle, Configure(launcher, sim_root(gpus=2)), ("--device=0", "--utility"))
    script = "busybox mknod /dev/nvidia1 c 195 1; for n in 0 1; do cat /dev/nvidia$n; done; true"
    errors = bundle.run("runc", script).stderr.splitlines()
    assert "No such device or address" in errors[0], errors
    assert "Operation not permitted" in errors[1], errors


@pytest.mark.parametrize("cache", [False, True])
def test_foreign_layouts(runc_bundle: Any, rootfs: Any, sim_root: Any, launcher: str, cache: bool) -> None:
    """Not Debian: /usr/lib64 and /usr/lib32, with and without a loader cache; the real loader finds libcuda."""
    path = rootfs(cache=cache)
    os.makedirs(f"{path}/usr/lib32")
    bundle = runc_bundle(path)
    configure = Configure(launcher, sim_root(gpus=1))
    as_hook(bundle, configure, (*BASIC, "--compat32"))
    bundle.run("runc", "nvidia-smi -L; ls /usr/lib32/libcuda.so.1")
    listed = run("/sbin/ldconfig", "-p", "-C", f"{path}/etc/ld.so.cache").stdout
    assert "libcuda.so.1 (libc6,x86-64) => /usr/lib64/libcuda.so.1" in listed
    assert "libcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1" in listed


def test_musl_gets_a_warning_and_everything_else(
    runc_bundle: Any, rootfs: Any, sim_root: Any, launcher: str
) -> None:
    path = rootfs(glibc=False)
    os.makedirs(f"{path}/lib", exist_ok=True)
    with open(f"{path}/lib/ld-musl-{os.uname().machine}.so.1", "w", encoding="ascii") as out:
        out.write("stands for musl's loader\n")
    bundle = runc_bundle(path)
    with at_prestart(bundle, "runc", "ls /dev/nvidia0 /usr/lib64/libcuda.so.1") as held:
        done = Configure(launcher, sim_root(gpus=1))(held.pid, path)
        assert "musl" in done.stderr
        assert held.release().stdout.split() == ["/dev/nvidia0", "/usr/lib64/libcuda.so.1"]


def test_mig_config_and_imex(runc_bundle: Any, debian: str, sim_root: Any, launcher: str) -> None:
    """The directory of capabilities is the host's own: nothing is made, removed or opened to others there."""
    bundle = runc_bundle(debian)
    root = sim_root(gpus=1, mig=("7x1g.10gb",), imex_channels=(0, 3))
    as_hook(
        bundle,
        Configure(launcher, root),
        ("--device=0", "--mig-config=all", "--imex-channel=3", "--utility"),
    )
    script = (
        "ls /proc/driver/nvidia/capabilities/mig; ls /dev/nvidia-caps | wc -l; "
        "ls /dev/nvidia-caps-imex-channels; "
        "! touch /dev/nvidia-caps/mine && ! chmod 666 /dev/nvidia-caps/nvidia-cap1"
    )
    lines = bundle.run("runc", script).stdout.split()
    assert lines[:2] == ["config", "monitor"] and int(lines[2]) > 7 and lines[3:] == ["channel3"]


def test_newer_compat_libraries_of_the_image_come_first(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str
) -> None:
    """By the loader cache alone: nothing of the container is bound onto another part of it."""
    compat = f"{debian}/usr/local/cuda/compat"
    os.makedirs(compat)
    root = sim_root(gpus=1)
    source = f"{root}{LIBS}/libcuda.so.{VERSION}"
    for name in ("libcuda.so.999.10.02", "libcuda.so.123.45"):
        run("cp", source, f"{compat}/{name}")
    bundle = runc_bundle(debian)
    with at_prestart(bundle, "runc", "true") as held:
        Configure(launcher, root)(held.pid, debian)
        assert not [line for line in mounts(held.pid) if "/compat/" in line]
        held.release()
    listed = run("/sbin/ldconfig", "-p", "-C", f"{debian}/etc/ld.so.cache").stdout
    found = [line.split("=> ")[1] for line in listed.splitlines() if "libcuda.so.1 (libc6,x86-64)" in line]
    assert found[0] == "/usr/local/cuda/compat/libcuda.so.999.10.02"


@pytest.mark.parametrize("mode", ["mount", "disabled"])
def test_compat_modes(runc_bundle: Any, debian: str, sim_root: Any, launcher: str, mode: str) -> None:
    os.makedirs(f"{debian}/usr/local/cuda/compat")
    root = sim_root(gpus=1)
    run("cp", f"{root}{LIBS}/libcuda.so.{VERSION}", f"{debian}/usr/local/cuda/compat/libcuda.so.999.1")
    bundle = runc_bundle(debian)
    as_hook(bundle, Configure(launcher, root), (*BASIC, f"--cuda-compat-mode={mode}"))
    bundle.run("runc", "true")
    listed = run("/sbin/ldconfig", "-p", "-C", f"{debian}/etc/ld.so.cache").stdout
    assert ("/compat/" in listed) is (mode == "mount")


def test_few_descriptors_are_enough(runc_bundle: Any, debian: str, sim_root: Any, launcher: str) -> None:
    """systemd gives 1024; a plan with many MIG devices opens more sources than that."""
    configure = Configure(launcher, sim_root(gpus=2))
    configure.command[:0] = ["prlimit", "--nofile=64:4096"]
    with at_prestart(runc_bundle(debian), "runc", "nvidia-smi -L") as held:
        configure(held.pid, held.rootfs)
        assert held.release().stdout.count("GPU ") == 2


@pytest.mark.parametrize("owner", [0, 1000])
def test_an_mps_directory_by_way_of_a_link_must_be_roots(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str, owner: int
) -> None:
    """Anyone can make /tmp/nvidia-mps a link to /etc of the host, which containers could then write."""
    driver = sim_root(gpus=1)
    os.makedirs(f"{driver}/tmp", exist_ok=True)
    os.makedirs(f"{driver}/opt/private")
    os.symlink("/opt/private", f"{driver}/tmp/nvidia-mps")
    os.lchown(f"{driver}/tmp/nvidia-mps", owner, owner)
    with at_prestart(runc_bundle(debian), "runc", "true") as held:
        done = Configure(launcher, driver)(held.pid, held.rootfs)
        mounted = any(f" {held.rootfs}/opt/private " in line for line in mounts(held.pid))
        assert os.path.exists(f"{held.rootfs}/opt/private") is mounted is (owner == 0)
        assert ("MPS directory /tmp/nvidia-mps is left out" in done.stderr) is (owner != 0)
        held.release()


def test_programs_connect_to_services_and_change_nothing(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str
) -> None:
    """The container's root owns these files on the host too: what it writes there, others could run."""
    driver = sim_root(gpus=1, mps=True)
    places = (f"{driver}/tmp/nvidia-mps/control", f"{driver}/run/nvidia-persistenced/socket")
    with contextlib.ExitStack() as stack:
        for place in places:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            listener.bind(place)
            listener.listen()
        with at_prestart(runc_bundle(debian), "runc", "true") as held:
            Configure(launcher, driver)(held.pid, held.rootfs)
            inside = f"/proc/{held.pid}/root{held.rootfs}"
            for path in ("/tmp/nvidia-mps/control", "/run/nvidia-persistenced/socket"):
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(f"{inside}{path}")
                with pytest.raises(OSError, match="Read-only file system"):
                    os.chmod(f"{inside}{path}", 0o4777)
            with pytest.raises(OSError, match="Read-only file system"):
                os.mkdir(f"{inside}/tmp/nvidia-mps/x")
            held.release()

"""Podman with CDI devices that are slices: nvidia.com/vgpu, and whole devices whose containers ask for a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.engines import CONFIG_TOML, DIRECT, DRIVER, PODMAN, Host
from support.rootfs import multiarch

GENERATIONS = ("debian", "sid")
LIBS = f"/usr/lib/{multiarch()}"
CDI = f"nvc-cli --root {DRIVER} cdi"
SIZES = """
[[nvc.vgpu]]
name = "small"
memory = "4GiB"

[[nvc.vgpu]]
name = "big"
memory = "50%"
devices = ["1"]
"""
#: What nvidia-smi says each device has, in MiB.
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"


@pytest.fixture(scope="module")
def machine(host: Host) -> Iterator[Host]:
    """The host with specifications of whole devices and of slices."""
    host.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)
    said = host.sh(f"{CDI} refresh").stdout
    assert "nvidia.com-gpu.json: written" in said and "nvidia.com-vgpu.json: written, 8 devices" in said
    yield host


def podman(host: Host, devices: str, script: str, options: str = "", check: bool = True) -> Any:
    """Run a shell script in a container with CDI devices; the finished process is returned."""
    wanted = " ".join(f"--device nvidia.com/{device}" for device in devices.split())
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    flags = f"--runtime runc --network host {limits} {wanted} {options}"
    line = f"podman {PODMAN} run --rm {DIRECT} {flags} --rootfs /run/rootfs sh -c '{script}'"
    return host.sh(line, check=check)


def test_the_devices_are_listed(machine: Host) -> None:
    listed = machine.sh(f"{CDI} list").stdout.split()
    names = [name.partition("=")[2] for name in listed if name.startswith("nvidia.com/vgpu=")]
    assert {"0:small", "1:small", "1:big", "all:small", "all:big"} <= set(names) and len(names) == 8


@pytest.mark.parametrize(
    ("devices", "memory"),
    [
        ("vgpu=0:small", "4096"),
        ("vgpu=1:big", "40779"),
        ("vgpu=all:small", "4096 4096"),
        ("vgpu=0:small vgpu=1:big", "4096 40779"),
        ("vgpu=0:small gpu=1", "4096 81559"),
        ("gpu=1 vgpu=0:small", "4096 81559"),
    ],
)
def test_sizes(machine: Host, devices: str, memory: str) -> None:
    assert podman(machine, devices, MEMORY).stdout.split() == memory.split()


def test_what_lies_where(machine: Host) -> None:
    script = f"ls {LIBS}/nvc {LIBS}/nvc/ledger; cat /proc/mounts"
    listed, _, mounts = podman(machine, "vgpu=0:small", script).stdout.partition("\n\n")
    assert {"real-libcuda.so.1", "real-libnvidia-ml.so.1", "quota", "ledger"} <= set(
        f"{listed}\n{mounts}".split()
    )
    assert mounts.count("/nvc/quota ") == 1 and "nvc-ledger" in mounts
    assert "libnvidia-opencl" not in mounts and "libGLX_nvidia" not in mounts


@pytest.mark.parametrize(
    ("devices", "variables", "memory"),
    [
        ("gpu=0", "NVC_VGPU_MEMORY=3g", "3072"),
        ("gpu=all", "NVC_VGPU_MEMORY_1=25%", "81559 20389"),
        ("gpu=0 gpu=1", "CUDA_DEVICE_MEMORY_LIMIT=2g", "2048 2048"),
        ("vgpu=0:small", "NVC_VGPU_MEMORY=40g", "4096"),
    ],
)
def test_variables(machine: Host, devices: str, variables: str, memory: str) -> None:
    """Of whole devices they make slices; the size of a device that is one stays."""
    assert podman(machine, devices, MEMORY, f"--env {variables}").stdout.split() == memory.split()


def test_libraries_that_are_not_counted_are_covered(machine: Host) -> None:
    script = f"busybox wc -c {LIBS}/libnvidia-opencl.so.* {LIBS}/libGLX_nvidia.so.*"
    whole = podman(machine, "gpu=0", script).stdout
    part = podman(machine, "gpu=0", script, "--env NVC_VGPU_MEMORY=3g").stdout
    assert " 0 /" not in "\n".join(f" {line.strip()}" for line in whole.splitlines())
    assert part.split()[0] == "0"


@pytest.mark.parametrize(
    ("devices", "variable", "cause"),
    [
        ("gpu=0", "NVC_VGPU_MEMORY=3gb", "NVC_VGPU_MEMORY: 3gb"),
        ("gpu=0", "NVC_VGPU_MEMORY=90g", "has 81559 MiB"),
        ("vgpu=1:small vgpu=1:big", "A=b", "two slices of one device"),
    ],
)
def test_refused(machine: Host, devices: str, variable: str, cause: str) -> None:
    done = podman(machine, devices, "echo started", f"--env {variable}", check=False)
    assert done.returncode != 0 and cause in done.stderr and "started" not in done.stdout


def test_what_the_operator_grants_at_most(machine: Host) -> None:
    machine.write("/etc/nvc/config.toml", f'{CONFIG_TOML}[nvc]\nvgpu-memory-max = "2GiB"\n')
    try:
        assert podman(machine, "gpu=0", MEMORY).stdout.split() == ["2048"]
        refused = podman(machine, "vgpu=0:small", MEMORY, check=False)
        assert refused.returncode != 0 and "the operator grants 2GiB" in refused.stderr
        assert f"{CDI} refresh" and "removed" in machine.sh(f"{CDI} refresh").stdout
        assert "vgpu" not in machine.sh(f"{CDI} list").stdout
    finally:
        machine.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)
        machine.sh(f"{CDI} refresh")


def test_podman_by_hand(machine: Host) -> None:
    """`cdi generate --slices` writes the same; without sizes there is nothing to write."""
    made = machine.sh(f"{CDI} generate --slices").stdout
    assert made == machine.read("/run/cdi/nvidia.com-vgpu.json")
    machine.write("/etc/nvc/config.toml", CONFIG_TOML)
    try:
        done = machine.sh(f"{CDI} generate --slices", check=False)
        assert done.returncode == 1 and "has no [[nvc.vgpu]]" in done.stderr
    finally:
        machine.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)


def test_a_start_that_fails_leaves_a_record_that_holds_nothing(machine: Host) -> None:
    """docs/podman.md says so: no slice runs, and `rm --gone` removes the record."""
    machine.sh("nvc-cli vgpu rm --gone")
    failed = machine.sh(
        f"podman {PODMAN} run --rm {DIRECT} --runtime runc --network host --ulimit nofile=1024:1024"
        " --ulimit nproc=1024:1024 --device nvidia.com/vgpu=0:small --rootfs /run/rootfs /nosuch",
        check=False,
    )
    assert failed.returncode != 0
    assert machine.sh("nvc-cli vgpu ls -q").stdout == ""
    (left,) = machine.sh("nvc-cli vgpu ls --all -q").stdout.split()
    assert machine.sh("nvc-cli vgpu rm --gone").stdout.split() == [left]
    assert machine.sh("nvc-cli vgpu ls --all -q").stdout == ""

"""Podman with specifications of the Container Device Interface: the reference loader, and real containers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import client_ran
from support.engines import DIRECT, DRIVER, PODMAN, Host
from support.nightly import few
from support.rootfs import multiarch

from nvc.frontends.cdi.validate import problems

GENERATIONS = ("debian", "sid")
LIBS = f"/usr/lib/{multiarch()}"
MACHINE = {"x86_64": "x86-64", "aarch64": "AArch64"}[os.uname().machine]
CDI = f"nvc-cli --root {DRIVER} cdi"


def test_version(host: Host) -> None:
    client_ran("Podman", host.sh("podman --version").stdout, "root", "CDI")


def podman(host: Host, devices: str, script: str, options: str = "") -> Any:
    """Run a shell script in a container with devices; the finished process is returned."""
    wanted = " ".join(f"--device {device}" for device in devices.split())
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    flags = f"--runtime runc --network host {limits} {wanted} {options}"
    line = f"podman {PODMAN} run --rm {DIRECT} {flags} --rootfs /run/rootfs sh -c '{script}'"
    return host.sh(line, check=False)


def lines(done: Any) -> list[str]:
    """The output of a container that must have succeeded."""
    assert done.returncode == 0, done.stderr
    found: list[str] = done.stdout.splitlines()
    return found


@pytest.fixture(params=["/var/run/cdi json", "/var/run/cdi yaml", "/etc/cdi yaml"])
def spec(host: Host, request: pytest.FixtureRequest) -> Iterator[str]:
    """A specification that podman finds, in each directory and format."""
    directory, form = request.param.split()
    host.sh(f"{CDI} refresh --output-dir {directory} --format {form} --device-name-strategy index "
            "--device-name-strategy uuid --device-name-strategy type-index")  # fmt: skip
    yield f"{directory}/nvidia.com-gpu.{form}"
    host.sh(f"rm -r {directory}")


@pytest.fixture
def refreshed(host: Host) -> Iterator[Host]:
    """The host with an up-to-date specification of its two GPUs."""
    host.sh(f"{CDI} refresh")
    yield host
    host.sh("rm -rf /var/run/cdi /etc/cdi")


def test_one_gpu(host: Host, spec: str) -> None:
    """Seen from inside: the tool, the nodes, links, the loader cache and the driver's proc files."""
    script = (
        "nvidia-smi -L; ls /dev | grep nvidia; cat /dev/nvidia1; ls /proc/driver/nvidia/gpus; "
        f"readlink {LIBS}/libcuda.so.1; readlink {LIBS}/libcuda.so; env | grep -i nv; id -u"
    )
    found = lines(podman(host, "nvidia.com/gpu=1", script))
    assert found[0].startswith("GPU 0: NVIDIA H100") and "(UUID: GPU-" in found[0]
    nodes = [f"nvidia{name}" for name in ("-modeset", "-uvm", "-uvm-tools", "1", "ctl")]
    assert found[1:6] == nodes, "no other GPU"
    assert found[6:9] == ["0000:43:00.0", "libcuda.so.580.159.04", "libcuda.so.1"]
    assert found[9:] == ["NVIDIA_VISIBLE_DEVICES=void", "0"]
    cache = host.sh("/sbin/ldconfig -p -C /run/rootfs/etc/ld.so.cache").stdout
    assert f"libcuda.so.1 (libc6,{MACHINE}) => {LIBS}/libcuda.so.1" in cache


@pytest.mark.parametrize("name", few(["all", "gpu0 nvidia.com/gpu=gpu1", "0 nvidia.com/gpu=1"], 3))
def test_all_gpus(host: Host, spec: str, name: str) -> None:
    found = lines(podman(host, f"nvidia.com/gpu={name}", "nvidia-smi -L; ls /proc/driver/nvidia/gpus"))
    assert [line[:6] for line in found] == ["GPU 0:", "GPU 1:", "0000:1", "0000:4"]


def test_the_device_rules_are_the_runtimes_own(refreshed: Host) -> None:
    """ENXIO where the cgroup allows, EPERM where it denies; no node can be made."""
    script = "cat /dev/nvidia0; busybox mknod /tmp/n c 195 1 && cat /tmp/n; busybox mknod /tmp/m c 195 0"
    done = podman(refreshed, "nvidia.com/gpu=0", script)
    errors = done.stderr.splitlines()
    assert "No such device or address" in errors[0], errors
    assert [line.endswith("Operation not permitted") for line in errors[1:]] == [True, True], errors


def test_mig(host: Host) -> None:
    host.simulate(gpus=1, mig="2x1g.10gb")
    try:
        host.sh(f"{CDI} refresh")
        script = "nvidia-smi -L | grep -c MIG-; ls /dev/nvidia-caps | wc -l; find /proc/driver/nvidia -name access"
        found = lines(podman(host, "nvidia.com/gpu=0:1", script))
        assert found[:2] == ["1", "2"] and len(found) == 4
        assert "unresolvable" in podman(host, "nvidia.com/gpu=0", "true").stderr, "no whole GPU in MIG mode"
        assert lines(podman(host, "nvidia.com/gpu=all", "nvidia-smi -L | grep -c MIG-")) == ["2"]
    finally:
        host.simulate(gpus=2)
        host.sh("rm -r /var/run/cdi")


def test_with_the_hook_registered_too_it_is_injected_once(refreshed: Host) -> None:
    """NVIDIA_VISIBLE_DEVICES=void of the specification keeps the other hook away."""
    refreshed.sh("nvc-cli runtime configure --engine podman")
    try:
        script = "nvidia-smi -L | wc -l; grep -c nvidia /proc/mounts; ls /dev | grep -c nvidia[0-9]"
        both = lines(podman(refreshed, "nvidia.com/gpu=0", script, "--env NVIDIA_VISIBLE_DEVICES=all"))
    finally:
        refreshed.sh("nvc-cli runtime configure --engine podman --remove")
    assert both == lines(podman(refreshed, "nvidia.com/gpu=0", script))
    assert both[0] == "1" and both[2] == "1"


BROKEN: list[tuple[str, Any]] = [
    ("cdiVersion", "0.5"),
    ("kind", "nvidia.com"),
    ("kind", "1nvidia.com/gpu"),
    ("devices", []),
    ("devices", [{"name": "0", "containerEdits": {}}]),
    ("devices", [{"name": "0:", "containerEdits": {"env": ["A=b"]}}]),
    ("containerEdits", {"env": ["=b"]}),
    ("containerEdits", {"deviceNodes": [{"path": "/dev/null", "permissions": "x"}]}),
    ("containerEdits", {"hooks": [{"hookName": "never", "path": "/bin/true"}]}),
    ("containerEdits", {"mounts": [{"hostPath": "", "containerPath": "/x"}]}),
    ("unknown", 1),
]


@pytest.mark.parametrize(("key", "value"), few([("kind", "nvidia.com/gpu"), *BROKEN], 3))
def test_the_loader_drops_what_validate_refuses(host: Host, key: str, value: Any) -> None:
    """And takes the file that is not changed: the rules are the same ones, though later loaders have more."""
    good = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}],
    }
    document = {**good, key: value}
    works = document == good
    assert (problems(document) == []) is works
    host.write("/etc/cdi/x.json", json.dumps(document))
    done = podman(host, "nvidia.com/gpu=0", "true")
    assert (done.returncode == 0) is works, done.stderr
    assert works or "unresolvable CDI devices" in done.stderr
    assert (host.sh(f"{CDI} validate /etc/cdi/x.json", check=False).returncode == 0) is works
    host.sh("rm -r /etc/cdi")

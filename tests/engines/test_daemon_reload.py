"""cgroups of version 2 with systemd as their driver: GPUs after `systemctl daemon-reload` and `docker update`.

What Docker and systemd do is real; the Debian is one of its own (tests/support/booted.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import generations
from support.booted import Booted
from support.rootfs import make_rootfs

pytestmark = pytest.mark.engines
DRIVER = "/srv/driver"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "docker", "dockerd", "runc")
CTR = "ctr --address /run/docker/containerd/containerd.sock"
DAEMON_JSON = '{"bridge": "none", "iptables": false, "userland-proxy": false, "storage-driver": "vfs"}'
UNIT = """[Unit]
Description=Docker
[Service]
Type=notify
ExecStart=/usr/local/bin/dockerd
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Delegate=yes
KillMode=process
"""
OPENED, DENIED = "No such device or address", "Operation not permitted"
#: The ways of docs/docker.md, and whether their rules are Docker's own.
WAYS = {
    "hook": ("--gpus device=0", False),
    "runtime": ("--runtime nvc -e NVIDIA_VISIBLE_DEVICES=0", True),
    "cdi": ("--device nvidia.com/gpu=0", True),
    "gpus-by-cdi": ("--gpus device=0", True),
}


@pytest.fixture(scope="module")
def host(installed: str) -> Iterator[Booted]:
    """A Debian with nvc's package and Docker 29, whose images are in memory."""
    directory = tempfile.mkdtemp(prefix="nvc-reload-")
    found = generations.programs(generations.NEWEST)
    try:
        with Booted(f"{directory}/debian", installed, "docker.service", unified=True) as debian:
            debian.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n')
            debian.write("/etc/docker/daemon.json", DAEMON_JSON)
            debian.write("/etc/systemd/system/docker.service", UNIT)
            for name in PROGRAMS:
                shutil.copy(os.path.realpath(found[name]), f"{debian.root}/usr/local/bin/{name}")
            debian.sh(f"nvc-cli sim create --gpus=2 {DRIVER}; nvc-cli runtime configure --engine docker")
            debian.sh("rm -f /usr/bin/nvidia-cdi-hook")  # `--gpus` is to go by the hook
            debian.start()
            debian.sh(f"nvc-cli --root {DRIVER} cdi refresh")
            make_rootfs(f"{debian.root}/srv/rootfs")
            debian.sh("tar -C /srv/rootfs -c . | docker import - nvc-test")
            yield debian
    finally:
        shutil.rmtree(directory)


def said(host: Booted, way: str, number: int = 0) -> str:
    """What opening a GPU's node in the container says."""
    return host.sh(f"docker exec {way} cat /dev/nvidia{number}", check=False).stderr


@pytest.mark.parametrize("way", WAYS)
def test_gpus_survive(host: Booted, way: str) -> None:
    options, kept = WAYS[way]
    if way == "gpus-by-cdi":
        host.sh("ln -s /usr/bin/nvc-cdi-hook /usr/bin/nvidia-cdi-hook; systemctl restart docker")
    host.sh(f"docker run -d --name {way} --network none {options} nvc-test sleep 600")
    try:
        assert OPENED in said(host, way)
        host.sh(f"docker exec {way} busybox mknod /dev/nvidia1 c 195 1")
        assert DENIED in said(host, way, 1)
        host.sh(f"docker update --memory 256m --memory-swap 256m {way}")
        assert OPENED in said(host, way)
        host.sh("systemctl daemon-reload")
        assert (OPENED if kept else DENIED) in said(host, way)
        assert DENIED in said(host, way, 1)
    finally:
        host.sh(f"docker rm -f {way}")


def test_the_driver_is_systemd(host: Booted) -> None:
    info = host.sh("docker info --format '{{.CgroupDriver}} {{.CgroupVersion}}'").stdout
    assert info.split() == ["systemd", "2"]


@pytest.mark.parametrize(
    "way",
    [
        "--runc-binary /usr/bin/nvc-runtime --env NVIDIA_VISIBLE_DEVICES=0",
        "--runc-binary /usr/local/bin/runc --device nvidia.com/gpu=0",
    ],
)
def test_containerd(host: Booted, way: str) -> None:
    """By its own client, with systemd's scopes."""
    group = "--cpu-shares 0 --runc-systemd-cgroup --cgroup machine.slice:ctr:kept"
    host.sh(f"{CTR} run -d {group} {way} --rootfs /srv/rootfs kept /bin/sleep 600")
    try:
        host.sh("systemctl daemon-reload")
        # Into files: once, ctr showed nothing of what a program had written that ended at once.
        cat = "cat /dev/nvidia0 2>/zero; cat /dev/nvidia1 2>/one; true"
        host.sh(f"{CTR} task exec --exec-id look kept /bin/sh -c '{cat}'")
        opened = [host.sh(f"cat /srv/rootfs/{name}; rm /srv/rootfs/{name}").stdout for name in ("zero", "one")]
        assert OPENED in opened[0] and "No such file" in opened[1]
    finally:
        host.sh(f"{CTR} task kill -s KILL kept; {CTR} task delete kept; {CTR} c rm kept", check=False)

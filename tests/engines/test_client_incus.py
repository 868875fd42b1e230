"""Incus and LXD read GPUs from `nvidia-container-cli info --csv`, and LXC's hook gives them the driver's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from support.clientdebs import CLIENTS
from support.clients import client_ran, named
from support.engines import DRIVER, IMAGE, Host
from support.owndev import DEV

pytestmark = pytest.mark.engines
NAME = "nvc-incus"
#: Their daemons, what administers them, and the client, which is `client` in this module.
MANAGERS = {"incus": ("incusd", "incus admin", "incus"), "lxd": ("lxd", "lxd", "lxc")}
#: What sysfs has of the GPUs. Containers get a sysfs of their own where one is seen whole.
SYSFS = f"""
mkdir -p /run/sys /run/pci/nvidia/module
mount -t sysfs sysfs /run/sys
cat {DRIVER}/sys/module/nvidia/version > /run/pci/nvidia/module/version
mount -t tmpfs none /sys/bus/pci/devices
for card in $(ls {DRIVER}/proc/driver/nvidia/gpus); do
    at=/sys/bus/pci/devices/$card
    mkdir $at
    ln -s /run/pci/nvidia $at/driver
    echo 0x10de > $at/vendor; echo 0x2330 > $at/device; echo 0x030200 > $at/class
done
"""
#: They want cgroups of version 2, and leave files there.
GROUND = """
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs none /var/log
mount -t tmpfs none /var/cache
echo root:1000000:65536 | tee /etc/subuid > /etc/subgid
"""
PACK = f"""
mkdir -p /run/image/rootfs/sbin
cp -a /run/rootfs/. /run/image/rootfs
printf '#!/bin/sh\\nexec sleep 600\\n' > /run/image/rootfs/sbin/init
chmod 755 /run/image/rootfs/sbin/init
printf 'architecture: {os.uname().machine}\\ncreation_date: 1\\n' > /run/image/metadata.yaml
tar -C /run/image -cf /run/image.tar metadata.yaml rootfs
"""
#: A daemon looks for images and types of instances, so it has no network.
START = f"""
ln -sfT $(command -v %(client)s) /usr/local/bin/client
mkdir -p /var/lib/%(name)s
export INCUS_LXC_HOOK=/usr/share/lxc/hooks LXD_LXC_HOOK=/usr/share/lxc/hooks
unshare --net %(daemon)s > /run/%(name)s.log 2>&1 &
%(admin)s waitready --timeout 60
%(admin)s init --preseed <<END
storage_pools: [{{name: default, driver: dir}}]
profiles: [{{name: default, devices: {{root: {{path: /, pool: default, type: disk}}}}}}]
END
client image import /run/image.tar --alias {IMAGE}
client init {IMAGE} {NAME} -c nvidia.runtime=true -c nvidia.driver.capabilities=compute,utility
"""
#: After a start that failed it is busy for a moment.
END = f"""
until client delete --force {NAME}; do :; done
%(admin)s shutdown
"""

#: Each GPU's own nodes, and what all have.
SHARED = ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


@pytest.fixture(scope="module", autouse=True)
def machine(host: Host) -> None:
    named(host)
    host.sh(DEV + SYSFS + GROUND + PACK)


@pytest.fixture(scope="module", params=MANAGERS, autouse=True)
def manager(request: pytest.FixtureRequest, machine: None, host: Host) -> Iterator[dict[str, str]]:
    """A daemon that runs, and has a container."""
    name = request.param
    made = dict(zip(("daemon", "admin", "client"), MANAGERS[name], strict=True), name=name)
    CLIENTS[name].put(host)
    host.sh(START % made)
    yield made
    host.sh(END % made)


def start(host: Host) -> None:
    host.sh(f"client start {NAME} >/dev/null || {{ cat /var/log/*/{NAME}/lxc.log; exit 1; }}")


def inside(host: Host, command: str) -> list[str]:
    return host.sh(f"client exec {NAME} -- {command}", check=False).stdout.splitlines()


def gives(host: Host, *minors: int) -> None:
    """The container has these GPUs, and is stopped."""
    seen = inside(host, "nvidia-smi -L")
    assert [line[:6] for line in seen] == [f"GPU {number}:" for number in range(len(minors))]
    nodes = [node for node in inside(host, "ls /dev") if node.startswith("nvidia")]
    assert nodes == sorted([*SHARED, *(f"nvidia{minor}" for minor in minors)])
    assert inside(host, "grep -c libcuda.so.1 /etc/ld.so.cache") == ["1"]
    host.sh(f"client stop --force {NAME}")


def test_version(host: Host, manager: dict[str, str]) -> None:
    said = host.sh(f"{manager['daemon']} --version").stdout
    if manager["name"] == "incus":
        client_ran("Incus", said, "root", "`nvidia.runtime`, `nvidia.require.cuda`, `gpu` devices, `info`")
    else:
        client_ran("LXD", said, "root", "as Incus, but it does not hand on `nvidia.require.cuda`")


def test_its_list_of_gpus(host: Host) -> None:
    cards = json.loads(host.sh("client query /1.0/resources").stdout)["gpu"]["cards"]
    uuids = host.sh("nvc-cli info --csv | grep -o 'GPU-[^,]*'").stdout.split()
    assert [card["nvidia"]["uuid"] for card in cards] == uuids
    assert [card["nvidia"]["card_name"] for card in cards] == ["nvidia0", "nvidia1"]
    assert all(card["nvidia"]["nvrm_version"].startswith("580.") for card in cards)


def test_a_container_with_gpus(host: Host) -> None:
    """It stays, so each start finds what the last one left."""
    host.sh(f"client config device add {NAME} gpu gpu")
    start(host)
    gives(host, 0, 1)
    address = host.sh("ls /sys/bus/pci/devices | tail -1").stdout.strip()
    host.sh(f"client config device set {NAME} gpu pci={address}")
    start(host)
    gives(host, 1)


def test_a_gpu_that_comes_later(host: Host) -> None:
    """A running container with the driver's files gets a GPU's node from the daemon."""
    host.sh(f"client config device remove {NAME} gpu")
    start(host)
    assert inside(host, "nvidia-smi -L") == ["No devices were found"]
    host.sh(f"client config device add {NAME} gpu gpu")
    gives(host, 0, 1)


def test_what_an_image_requires(host: Host, manager: dict[str, str]) -> None:
    """A container that the driver does not suit does not start. Its log only says that a hook failed.

    LXD 5.0 hands on `nvidia.require.cuda` only where it is empty; a variable has the same effect.
    """
    key = {"incus": "nvidia.require.cuda", "lxd": "environment.NVIDIA_REQUIRE_IT"}[manager["name"]]
    host.sh(f"client config set {NAME} {key}='cuda>=12.0'")
    start(host)
    gives(host, 0, 1)
    host.sh(f"client config set {NAME} {key}='cuda>=99'")
    with pytest.raises(AssertionError, match="Failed to run mount hooks"):
        start(host)

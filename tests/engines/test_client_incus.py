"""Incus reads GPUs from `nvidia-container-cli info --csv`, and has LXC's hook give the driver's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from support.clientdebs import CLIENTS
from support.clients import as_the_page_says, named
from support.engines import DRIVER, IMAGE, Host
from support.owndev import DEV

pytestmark = pytest.mark.engines
NAME = "nvc-incus"
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
#: Incus wants cgroups of version 2. Its daemon looks for images and types of instances, so it has no network.
START = """
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo root:1000000:65536 | tee /etc/subuid > /etc/subgid
mkdir -p /var/lib/incus
INCUS_LXC_HOOK=/usr/share/lxc/hooks unshare --net incusd > /run/incusd.log 2>&1 & echo $! > /run/incusd.pid
incus admin waitready --timeout 60
incus admin init --preseed <<END
storage_pools: [{name: default, driver: dir}]
profiles: [{name: default, devices: {root: {path: /, pool: default, type: disk}}}]
END
"""
PACK = f"""
mkdir -p /run/image/rootfs/sbin
cp -a /run/rootfs/. /run/image/rootfs
printf '#!/bin/sh\\nexec sleep 600\\n' > /run/image/rootfs/sbin/init
chmod 755 /run/image/rootfs/sbin/init
printf 'architecture: {os.uname().machine}\\ncreation_date: 1\\n' > /run/image/metadata.yaml
tar -C /run/image -cf /run/image.tar metadata.yaml rootfs
incus image import /run/image.tar --alias {IMAGE}
incus init {IMAGE} {NAME} -c nvidia.runtime=true -c nvidia.driver.capabilities=compute,utility
"""
#: After a start that failed it is busy for a moment.
END = f"""
until incus delete --force {NAME}; do :; done
incus admin shutdown
"""

#: Each GPU's own nodes, and what all have.
SHARED = ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


@pytest.fixture(scope="module", autouse=True)
def daemon(host: Host) -> Iterator[None]:
    CLIENTS["incus"].put(host)
    named(host)
    host.sh(DEV + SYSFS + START + PACK)
    yield
    host.sh(END)


def start(host: Host) -> None:
    host.sh(f"incus start {NAME} >/dev/null || {{ cat /var/log/incus/{NAME}/lxc.log; exit 1; }}")


def inside(host: Host, command: str) -> list[str]:
    return host.sh(f"incus exec {NAME} -- {command}", check=False).stdout.splitlines()


def gives(host: Host, *minors: int) -> None:
    """The container has these GPUs, and is stopped."""
    seen = inside(host, "nvidia-smi -L")
    assert [line[:6] for line in seen] == [f"GPU {number}:" for number in range(len(minors))]
    nodes = [node for node in inside(host, "ls /dev") if node.startswith("nvidia")]
    assert nodes == sorted([*SHARED, *(f"nvidia{minor}" for minor in minors)])
    assert inside(host, "grep -c libcuda.so.1 /etc/ld.so.cache") == ["1"]
    host.sh(f"incus stop --force {NAME}")


def test_version(host: Host) -> None:
    as_the_page_says("Incus", host.sh("incusd --version").stdout)


def test_its_list_of_gpus(host: Host) -> None:
    cards = json.loads(host.sh("incus query /1.0/resources").stdout)["gpu"]["cards"]
    uuids = host.sh("nvc-cli info --csv | grep -o 'GPU-[^,]*'").stdout.split()
    assert [card["nvidia"]["uuid"] for card in cards] == uuids
    assert [card["nvidia"]["card_name"] for card in cards] == ["nvidia0", "nvidia1"]
    assert all(card["nvidia"]["nvrm_version"].startswith("580.") for card in cards)


def test_a_container_with_gpus(host: Host) -> None:
    """It stays, so each start finds what the last one left."""
    host.sh(f"incus config device add {NAME} gpu gpu")
    start(host)
    gives(host, 0, 1)
    address = host.sh("ls /sys/bus/pci/devices | tail -1").stdout.strip()
    host.sh(f"incus config device set {NAME} gpu pci={address}")
    start(host)
    gives(host, 1)


def test_a_gpu_that_comes_later(host: Host) -> None:
    """A running container with the driver's files gets a GPU's node from Incus."""
    host.sh(f"incus config device remove {NAME} gpu")
    start(host)
    assert inside(host, "nvidia-smi -L") == ["No devices were found"]
    host.sh(f"incus config device add {NAME} gpu gpu")
    gives(host, 0, 1)


def test_what_an_image_requires(host: Host) -> None:
    """A container that the driver does not suit does not start. Its log only says that a hook failed."""
    host.sh(f"incus config set {NAME} nvidia.require.cuda='cuda>=12.0'")
    start(host)
    gives(host, 0, 1)
    host.sh(f"incus config set {NAME} nvidia.require.cuda='cuda>=99'")
    with pytest.raises(AssertionError, match="Failed to run mount hooks"):
        start(host)

"""A slice of one GPU and the nodes of another: whoever makes one, and under whatever name, cannot open it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.bundle import Bundle
from support.configure import BASIC, Configure, as_hook
from support.hook import Hook, ask

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=2)]
SECOND = (195, 1)
#: No driver answers behind a simulated node: the cgroup allows what gives the first, and denies the second.
ALLOWED, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def volume(scratch: str) -> str:
    """A directory of the host with a node of each GPU, under names that are not the driver's."""
    path = f"{scratch}/volume"
    os.mkdir(path)
    for minor in (0, 1):
        os.mknod(f"{path}/disk{minor}", 0o20666, os.makedev(195, minor))
    return path


def add(bundle: Bundle, volume: str) -> None:
    """Give a container the volume, and the right to make nodes as engines do, of any device."""
    mount = {"source": volume, "destination": "/mnt", "type": "bind", "options": ["rbind", "rw", "dev"]}
    bundle.config["mounts"].append(mount)
    capabilities = bundle.config["process"]["capabilities"]
    capabilities.update({kind: [*names, "CAP_MKNOD"] for kind, names in capabilities.items()})
    rules = bundle.config["linux"]["resources"]["devices"]
    rules.append({"allow": True, "type": "c", "access": "m"})


@pytest.mark.parametrize("way", ["configure", "hook"])
def test_a_node_of_another_gpu_cannot_be_opened(
    bundle: Bundle, configure: Configure, hook: Any, volume: str, way: str
) -> None:
    add(bundle, volume)
    if way == "configure":
        as_hook(bundle, configure, ("--device=0", *BASIC[1:], "--vgpu-memory=1g"))
    else:
        ask(bundle, NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_MEMORY="1g")
        made: Hook = hook()
        made.add(bundle)
    script = """
        busybox mknod /dev/nvidia1 c 195 1; busybox mknod /tmp/tty c 195 1; busybox mknod /mnt/made c 195 1
        for path in /dev/nvidia0 /mnt/disk0 /dev/nvidia1 /tmp/tty /mnt/made /mnt/disk1; do cat $path; done; true
    """
    errors = bundle.run("runc", script).stderr.splitlines()
    assert len(errors) == 6, errors
    assert all(ALLOWED in line for line in errors[:2]) and all(DENIED in line for line in errors[2:]), errors

"""LXC, whose hook for NVIDIA runs `nvidia-container-cli --user configure` before a container's init."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO
from support.clients import client_ran, named
from support.engines import Host

pytestmark = pytest.mark.engines
CONTAINER = "/srv/lxc/nvc-lxc"
USER = "HOME=/srv/lxc setpriv --reuid 1001 --regid 1001 --clear-groups"
MAP = "lxc.idmap = u 0 100000 65536\nlxc.idmap = g 0 100000 65536\n"
HOOK = "/usr/share/lxc/hooks/nvidia"
OWN = "/srv/hook"
LOG = f"{CONTAINER}/log"
CONFIG = """lxc.uts.name = nvc-lxc
lxc.rootfs.path = dir:{container}/rootfs
lxc.mount.auto = proc:mixed
lxc.net.0.type = empty
lxc.environment = NVIDIA_VISIBLE_DEVICES={devices}
lxc.environment = NVIDIA_DRIVER_CAPABILITIES=compute,utility
lxc.environment = NVIDIA_REQUIRE_CUDA=cuda>=12.0
lxc.hook.mount = {hook}
lxc.init.cmd = /look
{map}"""
#: With a terminal or without, LXC gives init one of its own.
LOOK = """#!/bin/sh
exec >/root/seen 2>&1
nvidia-smi -L
ls /dev | grep nvidia
grep -c libcuda.so.1 /etc/ld.so.cache
"""
#: A privileged container's call, by a hook that somebody wrote.
CALL = """#!/bin/sh
set -- --no-cgroups --ldconfig=@/sbin/ldconfig --device=all --compute --utility
exec nvidia-container-cli configure "$@" "$LXC_ROOTFS_MOUNT"
"""
UVM = ["nvidia-uvm", "nvidia-uvm-tools"]
BOTH = [*UVM, "nvidia0", "nvidia1", "nvidiactl", "1"]


@pytest.fixture(scope="module", autouse=True)
def container(host: Host) -> None:
    named(host)
    host.sh("echo tenant:x:1001:1001::/srv/lxc:/bin/sh >> /etc/passwd")
    host.sh("for who in root tenant; do echo $who:100000:65536; done | tee /etc/subuid > /etc/subgid")
    host.sh(f"mkdir -p {CONTAINER}; cp -a {host.rootfs()} {CONTAINER}/rootfs")
    host.write(f"{CONTAINER}/rootfs/look", LOOK, 0o755)
    host.write(OWN, CALL, 0o755)


def start(
    host: Host, devices: str = "", hook: str = HOOK, mapped: bool = True, user: str = "", config: str = CONFIG
) -> list[str]:
    """The lines that init prints. `user` precedes LXC's program."""
    owner = 100000 if mapped else 0
    config = config.format(container=CONTAINER, devices=devices, hook=hook, map=MAP if mapped else "")
    host.write(f"{CONTAINER}/config", config)
    host.sh(f"chown -R {owner}:{owner} {CONTAINER}/rootfs; rm -f {CONTAINER}/rootfs/root/seen")
    host.sh(f"{user} lxc-start -P /srv/lxc -n nvc-lxc -F -l DEBUG -o {LOG} || {{ cat {LOG}; exit 1; }}")
    return host.read(f"{CONTAINER}/rootfs/root/seen").splitlines()


def gpus(host: Host) -> list[str]:
    return host.sh("nvc-cli info --csv | sed 1,/UUID/d | grep -o 'GPU-[^,]*'").stdout.splitlines()


def test_version(host: Host) -> None:
    what = "LXC's hook in containers with an id map, Proxmox's lines; privileged by a hook of one's own"
    client_ran("LXC", host.sh("lxc-start --version").stdout, "root, user", what)


@pytest.mark.parametrize("devices", ["all", "1", "none"])
def test_a_container_with_an_id_map(host: Host, devices: str) -> None:
    """The containers stay, so each starts on what the last one left."""
    seen = start(host, devices)
    numbers = {"all": [0, 1], "1": [1], "none": []}[devices]
    uuids = [gpus(host)[number] for number in numbers]
    assert [line.partition("UUID: ")[2].rstrip(")") for line in seen if line.startswith("GPU ")] == uuids
    assert ("No devices were found" in seen) == (devices == "none")
    nodes = sorted([*UVM, *(f"nvidia{number}" for number in numbers), "nvidiactl"])
    assert [line for line in seen if line.startswith("nvidia")] == nodes
    assert seen[-1] == "1", "the loader's cache has libcuda"


def test_what_proxmox_adds(host: Host) -> None:
    """The lines of docs/replace-nvidia.md are all that says of GPUs."""
    with open(os.path.join(REPO, "docs/replace-nvidia.md"), encoding="utf-8") as page:
        lines = re.findall(r"^    (lxc\.[\w.]+): (.*)$", page.read(), re.MULTILINE)
    own = [line for line in CONFIG.splitlines() if "NVIDIA" not in line and "hook.mount" not in line]
    config = "\n".join([*own, *(f"{key} = {value}" for key, value in lines), ""])
    assert start(host, config=config)[2:] == BOTH


def test_of_an_ordinary_user(host: Host) -> None:
    """newuidmap gives the container the ids that /etc/subuid has for the user."""
    host.sh(f"rm -f {LOG}; chown 1001:1001 /srv/lxc {CONTAINER}")
    seen = start(host, "all", user=USER)
    assert [line[:6] for line in seen[:2]] == ["GPU 0:", "GPU 1:"]
    assert seen[2:] == BOTH


def test_a_privileged_container(host: Host) -> None:
    """LXC's hook refuses to serve one before it calls anything; a hook of one's own can."""
    with pytest.raises(AssertionError, match="This hook currently only works in unprivileged mode"):
        start(host, "all", mapped=False)
    seen = start(host, "all", hook=OWN, mapped=False)
    assert [line[:6] for line in seen[:2]] == ["GPU 0:", "GPU 1:"]
    assert seen[2:] == BOTH

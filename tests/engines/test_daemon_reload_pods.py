"""cgroups of version 2 with systemd as their driver: GPUs of Podman and CRI-O after `systemctl daemon-reload`.

The programs and systemd are real; the Debian is one of its own (tests/support/booted.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import generations, run
from support.booted import Booted
from support.cache import cache
from support.debian import APT
from support.engines import DIRECT
from support.fetch import fetch
from support.pods import Pods
from support.rootfs import make_rootfs
from support.sid import sid

pytestmark = pytest.mark.engines
DRIVER = "/srv/driver"
#: crun asks systemd for cgroups by the bus of the system.
BUS = "dbus"
BUILT = ("crio", "crictl", "pinns", "runc")
SID = ("conmon", "crun", "podman")
#: systemd has no controller for limits of processes here: this machine's are those of version 1.
CONTAINERS_CONF = """[containers]
pids_limit = 0
[engine]
cgroup_manager = "systemd"
events_logger = "file"
conmon_path = ["/usr/local/bin/conmon"]
helper_binaries_dir = ["/usr/local/libexec/podman"]
[engine.runtimes]
crun = ["/usr/local/bin/crun"]
runc = ["/usr/local/bin/runc"]
"""
CRIO_UNIT = """[Unit]
Description=CRI-O
[Service]
Type=notify
ExecStart=/usr/local/bin/crio
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
KillMode=process
"""
OPENED, DENIED, MISSING = "No such device or address", "Operation not permitted", "No such file"
#: The ways of docs/podman.md, and whether their rules are in the container's configuration.
PODMAN = {
    "cdi": ("--device nvidia.com/gpu=0", True),
    "hook": ("-e NVIDIA_VISIBLE_DEVICES=0", False),
    "runtime": ("--runtime /usr/bin/nvc-runtime -e NVIDIA_VISIBLE_DEVICES=0", True),
}
STORAGE_CONF = """[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""
HOOKS = "/etc/containers/oci/hooks.d"


@pytest.fixture(scope="module")
def layer() -> Iterator[str]:
    """A layer with the programs: those of Debian's sid name their libraries by the path where they are here."""
    os.makedirs(cache(), exist_ok=True)
    directory = tempfile.mkdtemp(prefix="nvc-layer-", dir=cache())
    found = generations.programs(generations.NEWEST)
    try:
        os.makedirs(f"{directory}/usr/local/bin")
        os.makedirs(f"{directory}/usr/local/libexec/podman")
        os.makedirs(os.path.dirname(f"{directory}{sid()}"))
        run("cp", "-al", sid(), f"{directory}{sid()}")
        for name in BUILT:
            shutil.copy(os.path.realpath(found[name]), f"{directory}/usr/local/bin/{name}")
        for name in SID:
            os.symlink(found[name], f"{directory}/usr/local/bin/{name}")
        os.symlink(found["netavark"], f"{directory}/usr/local/libexec/podman/netavark")
        yield directory
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def host(installed: str, layer: str) -> Iterator[Booted]:
    """A Debian with nvc's package and the programs."""
    directory = tempfile.mkdtemp(prefix="nvc-reload-")
    try:
        with Booted(f"{directory}/debian", f"{layer}:{installed}", "dbus.socket", unified=True) as debian:
            command = f"{APT} update && {APT} install -y --no-install-recommends {BUS}"
            fetch(f"{BUS} of Debian", *debian.namespace, "/bin/sh", "-ec", command)
            debian.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n')
            debian.write("/etc/containers/containers.conf", CONTAINERS_CONF)
            debian.write("/etc/containers/storage.conf", STORAGE_CONF)
            debian.write("/etc/systemd/system/crio.service", CRIO_UNIT)
            debian.sh("touch /etc/hosts /etc/resolv.conf")  # CRI-O mounts them into containers
            debian.sh(f"nvc-cli sim create --gpus=2 {DRIVER}")
            debian.start()
            debian.sh(f"nvc-cli --root {DRIVER} cdi refresh")
            make_rootfs(f"{debian.root}/srv/rootfs")
            yield debian
    finally:
        shutil.rmtree(directory)


def opened(host: Booted, words: str, number: int = 0) -> str:
    """What opening a GPU's node says to a program that `words` starts in the container.

    It says so to a file: a conmon that is late loses what a program writes that ends soon.
    """
    host.sh(f"{words} sh -c 'cat /dev/nvidia{number} 2>/said || true'")
    return host.sh("cat /srv/rootfs/said; rm /srv/rootfs/said").stdout


@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize("way", PODMAN)
def test_podman(host: Booted, way: str, runtime: str) -> None:
    options, kept = PODMAN[way]
    host.sh(f"nvc-cli config set nvidia-container-runtime.runtimes '[\"/usr/local/bin/{runtime}\"]'")
    if way == "hook":
        host.sh(f"nvc-cli runtime configure --engine podman --hook-dir {HOOKS}")
    chosen = "" if way == "runtime" else f"--runtime {runtime}"
    words = f"--name {way} --network none --cap-add MKNOD {options} --rootfs /srv/rootfs sleep 600"
    host.sh(f"podman {chosen} run -d {words}")
    try:
        inside = f"podman exec {way}"
        assert OPENED in opened(host, inside)
        host.sh(f"{inside} busybox mknod /dev/nvidia1 c 195 1")
        assert DENIED in opened(host, inside, 1)
        host.sh("systemctl daemon-reload")
        assert (OPENED if kept else DENIED) in opened(host, inside)
        assert DENIED in opened(host, inside, 1)
    finally:
        host.sh(f"podman rm -f -t 0 {way}; rm -f /srv/rootfs/dev/nvidia1", check=False)
        if way == "hook":
            host.sh(f"nvc-cli runtime configure --engine podman --hook-dir {HOOKS} --remove")


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_slice_with_podman(host: Booted, runtime: str) -> None:
    """By CDI and a variable, with each runtime."""
    size = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    options = "--network none --device nvidia.com/gpu=0 -e NVC_VGPU_MEMORY=4GiB --rootfs /srv/rootfs"
    assert host.sh(f"podman --runtime {runtime} run --rm {DIRECT} {options} {size}").stdout.split() == ["4096"]


@pytest.fixture(scope="module")
def pods(host: Booted) -> Iterator[Pods]:
    """CRI-O with the runtime `nvc`, and its hook for pods without a runtime class."""
    host.sh("rm -rf /var/lib/containers /run/containers")
    host.sh(f"nvc-cli runtime configure --engine crio; nvc-cli runtime configure --engine crio --hook-dir {HOOKS}")
    host.sh("nvc-cli config set nvidia-container-runtime.runtimes '[\"/usr/local/bin/runc\"]'")
    with Pods(host, "crio", systemd=True) as running:
        yield running


#: The ways of docs/crio.md, and whether their rules are in the container's configuration.
CRIO = {
    "cdi": ({"devices": ("nvidia.com/gpu=0",)}, True),
    "hook": ({"env": {"NVIDIA_VISIBLE_DEVICES": "0"}}, False),
    "runtime": ({"handler": "nvc", "env": {"NVIDIA_VISIBLE_DEVICES": "0"}}, True),
}


@pytest.mark.parametrize("way", CRIO)
def test_crio(host: Booted, pods: Pods, way: str) -> None:
    wanted, kept = CRIO[way]
    pods.start(way, **wanted)
    try:
        look = "cat /dev/nvidia0 2>&1 || true"
        assert OPENED in pods.exec(way, look)
        host.sh("systemctl daemon-reload")
        assert (OPENED if kept else DENIED) in pods.exec(way, look)
    finally:
        pods.end(way)

"""Quadlet: systemd starts containers of Podman 5 whose units name GPUs as CDI devices."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support.booted import Booted
from support.clients import client_ran
from support.rootfs import LIBS, make_rootfs
from support.sid import programs, sid
from support.unpacked import LOADER

pytestmark = pytest.mark.engines
DRIVER = "/srv/driver"
GENERATOR = "/etc/systemd/system-generators/podman-system-generator"
PODMAN = {
    **{name: f"/usr/bin/{name}" for name in ("podman", "conmon", "crun")},
    "netavark": "/usr/libexec/podman/netavark", "quadlet": GENERATOR,
}  # fmt: skip
STORAGE = '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/run/images"\n'
#: A machine with cgroups of version 1 has that controller there.
CONTAINERS = "[containers]\npids_limit = 0\n"
UNIT = """[Container]
Image=localhost/nvc-test
ContainerName=%s
AddDevice=%s
Network=none
Exec=sleep 600
StopTimeout=0
"""
UNITS = {"one": "nvidia.com/gpu=1", "every": "nvidia.com/gpu=all"}


@pytest.fixture(scope="module")
def host(installed: str) -> Iterator[Booted]:
    """A Debian with nvc's package, and sid's Podman where its programs look for their libraries."""
    directory = tempfile.mkdtemp(prefix="nvc-quadlet-")
    tree = sid()
    found = {**programs(), "quadlet": f"{tree}/usr/libexec/podman/quadlet"}
    try:
        with Booted(f"{directory}/debian", installed, "nvcd.socket", unified=True) as debian:
            debian.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n')
            debian.write("/etc/containers/storage.conf", STORAGE)
            debian.write("/etc/containers/containers.conf", CONTAINERS)
            debian.write("/etc/containers/policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')
            for name, device in UNITS.items():
                debian.write(f"/etc/containers/systemd/{name}.container", UNIT % (name, device))
            shutil.copytree(tree + LIBS, debian.root + tree + LIBS, symlinks=True)
            loader = f"{tree}/usr/{LOADER[os.uname().machine]}"
            for path, source in {**{PODMAN[name]: found[name] for name in PODMAN}, loader: loader}.items():
                os.makedirs(os.path.dirname(debian.root + path), exist_ok=True)
                shutil.copy(source, debian.root + path)
            debian.start()
            debian.sh(f"nvc-cli sim create --gpus=2 {DRIVER}; nvc-cli cdi refresh")
            make_rootfs(f"{debian.root}/srv/rootfs")
            debian.sh("tar -C /srv/rootfs -c . | podman import - nvc-test")
            yield debian
    finally:
        shutil.rmtree(directory)


def gpus(host: Booted, name: str) -> list[str]:
    """The nodes of GPUs in a container, each of which nvidia-smi finds."""
    seen = host.sh(f'podman exec {name} sh -c "nvidia-smi -L; ls /dev | grep nvidia[0-9]"').stdout.splitlines()
    found = [line for line in seen if line.startswith("nvidia")]
    assert len(seen) == 2 * len(found), seen
    return found


def test_version(host: Booted) -> None:
    said = host.sh(f"{GENERATOR} --version").stdout
    client_ran("Quadlet", said, "root", "`AddDevice`, restarts, `daemon-reload`")


@pytest.mark.parametrize("name, has", [("one", ["nvidia1"]), ("every", ["nvidia0", "nvidia1"])])
def test_a_unit(host: Booted, name: str, has: list[str]) -> None:
    """It keeps its GPUs when systemd reads its units again, and has them after a restart."""
    host.sh(f"systemctl start {name} || {{ systemctl status {name}; exit 1; }}")
    assert gpus(host, name) == has
    host.sh("systemctl daemon-reload")
    assert gpus(host, name) == has
    assert host.sh(f"nvc-cli doctor --container {name}").stdout.strip().endswith(" ok"), "found by its name"
    host.sh(f"systemctl restart {name}")
    assert gpus(host, name) == has
    host.sh(f"systemctl stop {name}")

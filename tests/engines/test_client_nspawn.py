"""systemd-nspawn as jailmaker calls it: with options for each path that `nvidia-container-cli list` names."""

from __future__ import annotations

import pytest
from support.clients import client_ran, driver_in_place, named
from support.engines import DRIVER, Host

pytestmark = pytest.mark.engines
ROOT = "/srv/jail"
#: Devices are bound as they are, files read-only, and ldconfig runs inside.
BINDS = """nvidia-smi -f /dev/null
nvidia-container-cli list | sed -e 's|^/dev/|--bind=&|' -e 's|^/|--bind-ro=&|'
"""
#: The simulated driver's kernel is files, which nspawn cannot bind below /proc.
LOOK = (
    "mount --bind /run/sim /proc/driver; ldconfig; nvidia-smi -L; ls /dev | grep nvidia; "
    "grep -c libcuda.so.1 /etc/ld.so.cache"
)
FLAGS = "--quiet --keep-unit --register=no --private-network --pipe"


def test_binds_from_list(host: Host) -> None:
    said = host.sh("systemd-nspawn --version").stdout
    client_ran("systemd-nspawn", said, "root", "binds from `nvidia-container-cli list`, as jailmaker makes them")
    named(host)
    driver_in_place(host)
    host.sh(f"cp -a {host.rootfs()} {ROOT}; cp /sbin/ldconfig {ROOT}/sbin")
    binds = " ".join(host.sh(BINDS).stdout.split())
    assert "--bind=/dev/nvidia1" in binds and "--bind-ro=/usr/bin/nvidia-smi" in binds
    jail = f"systemd-nspawn {FLAGS} -D {ROOT} {binds} --bind={DRIVER}/proc/driver:/run/sim sh -c '{LOOK}'"
    seen = host.sh(jail).stdout.splitlines()
    assert [line[:6] for line in seen[:2]] == ["GPU 0:", "GPU 1:"]
    nodes = ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert seen[2:] == [*nodes, "1"]

"""GPUs after `podman update`, which hands all resources that Podman knows of to the runtime, on cgroup v2.

Neither devices by CDI nor those of a hook are among them, and crun writes the device rules from them.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator

import pytest
from support import REPO, generations
from support.engines import DRIVER, PODMAN, Host

pytestmark = pytest.mark.engines
OPENED, DENIED = "No such device or address", "Operation not permitted"
#: crun raises a limit that not every test may raise.
PODMAN_THERE = shlex.join([sys.executable, os.path.join(REPO, "tests/support/without_memlock.py"), "podman"])
WAYS = {"cdi": "--device nvidia.com/gpu=0", "hook": "--env NVIDIA_VISIBLE_DEVICES=0"}


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Podman 5 on cgroup v2 alone, without its limit of processes: not every host has a controller for it."""
    with tempfile.TemporaryDirectory() as directory, Host(directory, generations.SID) as made:
        made.simulate(gpus=2)
        made.sh("umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup")
        made.sh("printf '[containers]\\npids_limit = 0\\n' >> /etc/containers/containers.conf")
        made.sh(f"nvc-cli --root {DRIVER} cdi refresh")
        made.sh("nvc-cli runtime configure --engine podman --hook-dir /usr/share/containers/oci/hooks.d")
        made.rootfs()
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("runtime", "after"), [("runc", OPENED), ("crun", DENIED)])
def test_what_is_left_of_device_rules(host: Host, way: str, runtime: str, after: str) -> None:
    podman = f"{PODMAN_THERE} {PODMAN} --runtime {runtime}"
    # What a program says goes to a file: a conmon that is late loses what one writes that ends soon.
    flags = f"--network none --ulimit host --volume /run/said:/said {WAYS[way]}"
    host.sh(f"mkdir -p /run/said; {podman} run -d --name kept {flags} --rootfs /run/rootfs:O sleep 600")
    try:
        cat = "sh -c 'cat /dev/nvidia0 2>/said/now || true'"
        look = f"{podman} exec kept {cat}; cat /run/said/now; rm /run/said/now"
        assert OPENED in host.sh(look).stdout
        host.sh(f"{podman} update --health-timeout 30s kept")
        assert after in host.sh(look).stdout
        host.sh(f"{podman} restart -t 0 kept")
        assert OPENED in host.sh(look).stdout
    finally:
        host.sh(f"{podman} rm -f -t 0 kept")

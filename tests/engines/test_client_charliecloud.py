"""Charliecloud, whose `ch-fromhost --nvidia` copies what `nvidia-container-cli list` names into an image."""

from __future__ import annotations

import pytest
from support.clients import client_ran, driver_in_place, named
from support.engines import Host

pytestmark = pytest.mark.engines
IMAGE = "/srv/image"
LOOK = "nvidia-smi -L; grep -c libcuda.so.1 /etc/ld.so.cache"


def test_an_image_s_directory(host: Host) -> None:
    client_ran("Charliecloud", host.sh("ch-fromhost --version 2>&1").stdout, "root", "`ch-fromhost --nvidia`")
    named(host)
    driver_in_place(host)
    # ch-run binds onto directories that the image has.
    host.sh(f"cp -a {host.rootfs()} {IMAGE}; cp /sbin/ldconfig {IMAGE}/sbin; mkdir {IMAGE}/home {IMAGE}/mnt")
    host.sh(f"USER=root ch-fromhost --nvidia {IMAGE}")
    seen = host.sh(f"USER=root ch-run {IMAGE} -- sh -c '{LOOK}'").stdout.splitlines()
    assert [line[:6] for line in seen] == ["GPU 0:", "GPU 1:", "1"]

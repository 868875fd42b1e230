"""`require-nvcd` in config.toml: no slice starts whose policy nobody would enforce."""

from __future__ import annotations

import pytest
from support.engines import DIRECT, DRIVER, PODMAN, Host

RUN = f"nvc-cli --root {DRIVER} vgpu run --memory 1GiB"


@pytest.fixture(scope="module", autouse=True)
def required(host: Host) -> None:
    host.sh("nvc-cli config set nvc.require-nvcd true; nvc-cli config check")


def test_programs(host: Host) -> None:
    refused = host.sh(f"{RUN} --weight 3 -- true", check=False)
    assert refused.returncode == 1 and "the policy weight needs nvcd: nvcd is not running" in refused.stderr
    host.sh(f"{RUN} --cores 30 -- true")
    host.sh(f"nvc-cli --root {DRIVER} vgpu policy 0 first")
    try:
        assert host.sh(f"{RUN} --device 0 --cores 30 -- true", check=False).returncode == 1, "laid down"
    finally:
        host.sh(f"nvc-cli --root {DRIVER} vgpu policy 0 --reset")


def test_containers(host: Host) -> None:
    """By the hook, and by CDI devices."""
    host.sh(f"nvc-cli --root {DRIVER} cdi refresh")
    options = "--network host --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 -e NVC_VGPU_WEIGHT=2"
    for way in (
        "--runtime /usr/local/bin/nvc-runtime -e NVIDIA_VISIBLE_DEVICES=0",
        "--runtime runc --device nvidia.com/gpu=0",
    ):
        line = f"podman {PODMAN} run --rm {DIRECT} {options} {way} --rootfs /run/rootfs sh -c 'echo it ran'"
        refused = host.sh(line, check=False)
        assert refused.returncode != 0 and "needs nvcd" in refused.stderr and "it ran" not in refused.stdout
        host.sh("nvc-cli config set nvc.require-nvcd false")
        assert host.sh(line).stdout == "it ran\n"
        host.sh("nvc-cli config set nvc.require-nvcd true")


def test_with_nvcd(host: Host) -> None:
    host.sh(
        "(nvcd > /run/nvcd.log 2>&1 & echo $! > /run/nvcd.pid); until nvcd --state >/dev/null 2>&1; do :; done"
    )
    try:
        assert host.sh(f"{RUN} --weight 3 -- echo it ran").stdout == "it ran\n"
    finally:
        host.sh("kill $(cat /run/nvcd.pid); while kill -0 $(cat /run/nvcd.pid) 2>/dev/null; do :; done")

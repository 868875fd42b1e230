"""Compose 2, a plugin of Docker 28: GPUs by each way that its files have for them."""

from __future__ import annotations

import pytest
from support.clientdebs import CLIENTS
from support.clients import client_ran, named
from support.engines import IMAGE, Host

pytestmark = pytest.mark.engines
GENERATIONS = ("sid",)
PLUGINS = "/usr/local/lib/docker/cli-plugins"
RESERVED = "    deploy: {resources: {reservations: {devices: [{driver: %s, capabilities: [gpu], %s}]}}}\n"
#: What each service asks for, and the GPUs that it has.
SERVICES = {
    "count": (RESERVED % ("nvidia", "count: 1"), ["nvidia0"]),
    "ids": (RESERVED % ("nvidia", "device_ids: ['1']"), ["nvidia1"]),
    "gpus": ("    gpus: all\n", ["nvidia0", "nvidia1"]),
    "runtime": ("    runtime: nvidia\n    environment: [NVIDIA_VISIBLE_DEVICES=1]\n", ["nvidia1"]),
    "cdi": (RESERVED % ("cdi", "device_ids: ['nvidia.com/gpu=1']"), ["nvidia1"]),
    "device": ("    devices: ['nvidia.com/gpu=0']\n", ["nvidia0"]),
}
SERVICE = f"""
    image: {IMAGE}
    network_mode: none
    command: [sh, -c, "nvidia-smi -L; ls /dev | grep nvidia[0-9]"]
"""


@pytest.fixture(scope="module", autouse=True)
def docker(host: Host) -> None:
    named(host)
    CLIENTS["compose"].put(host)
    host.sh(f"mkdir -p {PLUGINS}; ln -s /usr/local/bin/docker-compose {PLUGINS}")
    host.sh("nvidia-ctk runtime configure --runtime=docker; nvc-cli cdi refresh; systemctl start docker")
    host.image()
    services = "".join(f"  {name}:{SERVICE}{asked}" for name, (asked, _) in SERVICES.items())
    host.write("/srv/app/compose.yml", f"services:\n{services}")


def test_version(host: Host) -> None:
    what = "reservations, `gpus`, `devices`, CDI names, `runtime: nvidia`"
    client_ran("Compose", host.sh("docker compose version --short").stdout, "root", what)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(host: Host, name: str) -> None:
    seen = host.sh(f"cd /srv/app; docker compose run --rm -T {name}").stdout.splitlines()
    gpus = SERVICES[name][1]
    assert [line[:6] for line in seen[: len(gpus)]] == [f"GPU {number}:" for number in range(len(gpus))]
    assert seen[len(gpus) :] == gpus

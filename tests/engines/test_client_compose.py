"""docker-compose: GPUs by reservations, which are Docker's `--gpus`, and by the runtime `nvidia`."""

from __future__ import annotations

import pytest
from support.clients import client_ran, named
from support.engines import IMAGE, Host

pytestmark = pytest.mark.engines
SERVICE = f"""
    image: {IMAGE}
    network_mode: none
    command: [sh, -c, "nvidia-smi -L; ls /dev | grep nvidia[0-9]"]
"""
DEPLOY = """    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              capabilities: [gpu]
"""
#: What each service asks for, and the GPUs that it has.
SERVICES = {
    "count": (f"{DEPLOY}              count: 1\n", ["nvidia0"]),
    "ids": (f"{DEPLOY}              device_ids: ['1']\n", ["nvidia1"]),
    "runtime": (
        "    runtime: nvidia\n    environment: [NVIDIA_VISIBLE_DEVICES=all]\n",
        ["nvidia0", "nvidia1"],
    ),
}


@pytest.fixture(scope="module", autouse=True)
def docker(host: Host) -> None:
    """The daemon with its hook, and as NVIDIA's guide has it."""
    named(host)
    host.sh("nvidia-ctk runtime configure --runtime=docker; systemctl start docker")
    host.image()
    services = "".join(f"  {name}:{SERVICE}{wish}" for name, (wish, _) in SERVICES.items())
    host.write("/srv/app/docker-compose.yml", f"services:\n{services}")


def test_version(host: Host) -> None:
    what = "reservations, `runtime: nvidia`"
    client_ran("docker-compose", host.sh("docker-compose --version").stdout, "root", what)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(host: Host, name: str) -> None:
    seen = host.sh(f"cd /srv/app; docker-compose run --rm -T {name}").stdout.splitlines()
    gpus = SERVICES[name][1]
    assert [line[:6] for line in seen[: len(gpus)]] == [f"GPU {number}:" for number in range(len(gpus))]
    assert seen[len(gpus) :] == gpus

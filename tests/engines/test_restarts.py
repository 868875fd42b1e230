"""Docker restarted while containers with slices start: each has its slice or is not there, and nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.engines import IMAGE, Host

GENERATIONS = ("sid", "newest")
COUNT = 6
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
RUN = f"--stop-timeout 1 --runtime nvc -e NVIDIA_VISIBLE_DEVICES=0 -e NVC_VGPU_MEMORY=2g {IMAGE}"


@pytest.fixture(scope="module", autouse=True)
def docker(host: Host) -> Iterator[None]:
    host.sh("nvc-cli runtime configure --engine docker; systemctl start docker")
    host.image()
    yield
    host.sh("nvc-cli runtime configure --engine docker --remove")


def daemon(host: Host, live: bool) -> None:
    """Have dockerd leave containers running when it ends, or not."""
    document = json.loads(host.read("/etc/docker/daemon.json"))
    host.write("/etc/docker/daemon.json", json.dumps({**document, "live-restore": live}))
    host.sh("systemctl restart docker")


def running(host: Host) -> list[str]:
    return host.sh("docker ps --format '{{.Names}}'").stdout.split()


@pytest.mark.parametrize("live", [False, True])
def test_while_containers_start(host: Host, live: bool) -> None:
    daemon(host, live)
    starts = "".join(f"docker run -d --name r{n} {RUN} sleep 600 & " for n in range(COUNT))
    host.sh(f"({starts} wait) > /run/starts 2>&1 & systemctl restart docker; wait", check=False)
    try:
        for name in running(host):
            assert host.sh(f"docker exec {name} {MEMORY}").stdout.split() == ["2048"]
        listed = json.loads(host.sh("nvc-cli vgpu ls --format json").stdout)["slices"]
        assert len(listed) == len(running(host))
    finally:
        host.sh("docker rm -f $(docker ps -aq)", check=False)
    assert json.loads(host.sh("nvc-cli vgpu ls --format json").stdout)["slices"] == []
    host.sh("nvc-cli vgpu rm --gone")
    places = "/run/nvc/vgpu /run/nvc/containers"
    assert host.sh(f"find {places} -mindepth 1 2>/dev/null || true").stdout == ""
    assert host.sh(f"docker run --rm {RUN} {MEMORY}").stdout.split() == ["2048"]


def test_what_runs_outlives_a_restart(host: Host) -> None:
    """With live-restore; without, what is to restart always gets its slice anew."""
    for live, options in ((True, ""), (False, "--restart always")):
        daemon(host, live)
        host.sh(f"docker run -d --name kept {options} {RUN} sleep 600; systemctl restart docker")
        assert host.sh(f"docker exec kept {MEMORY}").stdout.split() == ["2048"]
        host.sh("docker rm -f kept")

"""`nvc-cli doctor --container` by the names and ids that Docker and Podman show."""

from __future__ import annotations

import json

from support.engines import IMAGE, PODMAN, Host

GENERATIONS = ("debian", "sid", "newest")
SHORT_OF = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"


def well(host: Host, name: str) -> str:
    done = host.sh(f"nvc-cli doctor --container {name} --all", check=False)
    assert done.returncode == 0 and "11 checks: 11 ok" in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_docker(host: Host) -> None:
    host.sh("nvc-cli runtime configure --engine docker; systemctl start docker")
    host.image()
    run = f"docker run -d --network none --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all --name web {IMAGE} sleep 600"
    id = host.sh(run).stdout.strip()
    pid = host.sh("docker inspect -f '{{.State.Pid}}' web").stdout.strip()
    for name in ("web", id, id[:12], pid):
        assert f"process {pid} (sleep) of container {id}, bundle /" in well(host, name)
    said = host.sh("nvc-cli doctor engines.docker").stdout
    assert "engines.docker: runtimes for GPUs: nvc; docker run --gpus is not set up\n" in said
    document = json.loads(host.sh("nvc-cli doctor engines.docker --format json").stdout)
    assert "AMD CDI spec not found" in str(document["checks"][0]["findings"][0]["evidence"])
    host.sh("ln -s nvc-hook /usr/local/bin/nvidia-container-runtime-hook")
    assert "engines.docker: runtimes for GPUs: nvc\n" in host.sh("nvc-cli doctor engines.docker").stdout
    host.sh("rm /usr/local/bin/nvidia-container-runtime-hook")
    host.sh("nvc-cli runtime configure --engine docker --remove")
    said = host.sh("nvc-cli doctor engines.running", check=False).stdout
    assert "engines.running: docker: the container web runs with the runtime nvc, which is registered no" in said
    host.sh("nvc-cli runtime configure --engine docker --runtime-name nvc")
    assert host.sh("nvc-cli doctor engines.running").stdout.startswith("ok ")
    host.sh("docker rm -f web")
    plain = f"docker run -d --network none --name plain -e NVIDIA_VISIBLE_DEVICES=all {IMAGE} sleep 600"
    host.sh(plain)
    text = host.sh("nvc-cli doctor --container plain", check=False).stdout
    assert text.splitlines()[-1].startswith(
        "a GPU program in plain fails: nothing gives it GPUs"
    ), text
    host.sh("docker rm -f plain; systemctl stop docker")


def test_podman(host: Host) -> None:
    host.sh("nvc-cli runtime configure --engine podman")
    options = f"-d --name job {SHORT_OF} --network none -e NVIDIA_VISIBLE_DEVICES=0"
    run = f"podman --runtime nvc {PODMAN} run {options} --rootfs {host.rootfs()} sleep 600"
    id = host.sh(run).stdout.split()[-1]
    for name in ("job", id, id[:12]):
        assert f"of container {id}" in well(host, name)
    host.sh(f"podman {PODMAN} rm -f -t 0 job")

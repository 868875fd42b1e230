"""Slices are called as the engine calls their containers: Docker, Podman and containerd, started for this.

CRI-O is not here: its layout is in tests/unit/test_containers.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.engines import DRIVER, IMAGE, PODMAN, Host

GENERATIONS = ("debian", "sid", "newest")
ASK = "PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=0", "NVC_VGPU_MEMORY=2GiB"
VARIABLES = " ".join(f"-e {variable}" for variable in ASK)


@pytest.fixture(scope="module", autouse=True)
def engines(host: Host) -> Iterator[None]:
    host.sh("nvc-cli runtime configure --engine docker --hook-link /usr/local/bin")
    host.sh("systemctl start docker containerd")
    host.image()
    yield
    host.sh(f"podman {PODMAN} rm --all --force", check=False)


def slices(host: Host, *options: str) -> list[dict[str, Any]]:
    """What `vgpu ls` has."""
    found: list[dict[str, Any]] = json.loads(
        host.sh(f"nvc-cli vgpu ls {' '.join(options)} --format json").stdout
    )["slices"]
    return found


def shown(host: Host, name: str) -> dict[str, Any]:
    """The slice that `vgpu show` finds by a name."""
    found: dict[str, Any] = json.loads(host.sh(f"nvc-cli vgpu show {name} --format json").stdout)
    return found


def examined(host: Host, name: str) -> str:
    """The id of the container that doctor takes the name for."""
    text = host.sh(f"nvc-cli doctor --container {name} --format json", check=False).stdout
    id: str = json.loads(text)["container"]["id"]
    return id


def docker(host: Host, name: str, way: str = "--runtime nvc") -> str:
    """Run a container that stays; its id."""
    return host.sh(f"docker run -d --name {name} {way} {VARIABLES} {IMAGE} sleep 600").stdout.strip()


def test_docker(host: Host) -> None:
    ids = [docker(host, name) for name in ("web", "batch")]
    try:
        assert {one["name"]: one["container"]["id"] for one in slices(host)} == dict(
            zip(("web", "batch"), ids)
        )
        assert {one["container"]["engine"] for one in slices(host)} == {"docker"}
        for name in ("web", ids[0], ids[0][:12], ids[0][:5]):
            assert shown(host, name)["container"]["id"] == ids[0]
        listed = host.sh("nvc-cli vgpu ls").stdout.splitlines()
        assert [line for line in listed if line.startswith("web ")]
        text = host.sh("nvc-cli vgpu show web").stdout
        assert "slice      web\nengine     docker\n" in text and f"container  web {ids[0]}" in text
        assert "web" in host.sh("nvc-cli vgpu top --once").stdout
        assert examined(host, "web") == ids[0]
        host.sh("nvc-cli vgpu set web --memory 3GiB")
        assert shown(host, "web")["devices"][0]["limit"] == 3 << 30
        denied = host.sh("nvc-cli vgpu rm batch", check=False)
        assert denied.returncode == 1 and "end it first: `docker kill batch`" in denied.stderr
    finally:
        host.sh("docker rm -f web batch")
    assert slices(host) == []
    gone = slices(host, "--all")
    assert [one["state"] for one in gone] == ["gone", "gone"]
    assert {one["container"]["id"] for one in gone} == set(ids), "the id is kept where nothing else is"
    host.sh("nvc-cli vgpu rm --gone")


def podman(host: Host, options: str) -> str:
    """Run a container that stays; its id."""
    flags = f"--runtime /usr/local/bin/nvc-runtime --network host {VARIABLES} {options}"
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    return host.sh(f"podman {PODMAN} run -d {limits} {flags}").stdout.strip()


def test_podman(host: Host) -> None:
    host.sh(f"tar -C {host.rootfs()} -c . | podman {PODMAN} import - {IMAGE}")
    id = podman(host, f"--name train {IMAGE} sleep 600")
    try:
        found = shown(host, "train")
        assert found["container"] == {
            "engine": "podman", "id": id, "name": "train", "pod": None, "namespace": None, "realm": None,
        }  # fmt: skip
        assert found["name"] == "train" and examined(host, "train") == id
        assert "train" in host.sh("nvc-cli vgpu ls").stdout
    finally:
        host.sh(f"podman {PODMAN} rm -f -t 0 train")
        host.sh("nvc-cli vgpu rm --gone")


def ctr(host: Host, id: str, options: str) -> None:
    variables = " ".join(f"--env {variable}" for variable in ASK)
    host.sh(f"ctr {options} run -d --runc-binary /usr/local/bin/nvc-runtime {variables} --rootfs /run/rootfs {id}"
            " sleep 600")  # fmt: skip


def test_containerd(host: Host) -> None:
    """By `ctr`, in two of its namespaces, with one id in both."""
    for realm in ("default", "lab"):
        ctr(host, "c1", f"-n {realm}")
    try:
        names = {one["name"]: one["container"]["realm"] for one in slices(host)}
        assert set(names.values()) == {"default", "lab"}
        assert shown(host, "lab/c1")["container"]["realm"] == "lab"
        both = host.sh("nvc-cli vgpu show c1", check=False)
        assert both.returncode == 1 and "2 slices are meant: " in both.stderr
        for name in names:
            assert name in both.stderr and shown(host, name)["name"] == name
    finally:
        for realm in ("default", "lab"):
            host.sh(f"ctr -n {realm} task delete -f c1; "
                    f"ctr -n {realm} c rm c1", check=False)  # fmt: skip
        host.sh("nvc-cli vgpu rm --gone")


def test_configure_by_another_hook(host: Host) -> None:
    """NVIDIA's hook calls `nvc-cli configure --pid`, which says no id: the process's cgroup has it."""
    id = host.sh(f"docker run -d --name plain {IMAGE} sleep 600").stdout.strip()
    try:
        pid = host.sh("docker inspect -f '{{.State.Pid}}' plain").stdout.strip()
        config = host.sh(f"cat $(find /run -path '*/{id}/config.json' 2>/dev/null)").stdout
        rootfs = json.loads(config)["root"]["path"]
        wanted = f"--no-cgroups --pid {pid} --device 0 --compute --vgpu-memory 1g"
        host.sh(f"nvc-cli --root {DRIVER} configure {wanted} {rootfs}")
        assert shown(host, "plain")["container"]["id"] == id
    finally:
        host.sh("docker rm -f plain; nvc-cli vgpu rm --gone")


#: Prints nvcd's metrics.
METRICS = """python3 - <<'END'
import socket
made = socket.socket(socket.AF_UNIX)
made.connect("/run/nvc/nvcd/metrics.sock")
made.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n")
while part := made.recv(1 << 16):
    print(part.decode(), end="")
END
"""


def test_metrics(host: Host) -> None:
    """Their labels, and what nvcd tells of slices."""
    host.sh("nvc-cli config set nvcd.metrics unix:/run/nvc/nvcd/metrics.sock")
    host.sh(
        "(nvcd > /run/nvcd.log 2>&1 & echo $! > /run/nvcd.pid); until nvcd --state >/dev/null 2>&1; do :; done"
    )
    try:
        id = host.sh(f"docker run -d --name web --runtime nvc {VARIABLES} {IMAGE} sleep 600").stdout.strip()
        (one,) = json.loads(host.sh("nvcd --state").stdout)["slices"]
        assert one["container"]["name"] == "web" and one["container"]["id"] == id and one["program"] is None
        lines = host.sh(METRICS).stdout.splitlines()
        for name in ("nvc_slice_memory_limit_bytes", "hami_vgpu_memory_limit_bytes"):
            (line,) = [line for line in lines if line.startswith(f"{name}{{")]
            assert 'namespace="",pod="",' in line and 'container="web"' in line
    finally:
        host.sh("docker rm -f web; kill $(cat /run/nvcd.pid); nvc-cli config unset nvcd.metrics")

"""Each page's commands work as they are written, on a host with a simulated driver."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from runpy import run_path

import pytest
from support import REPO
from support.engines import DAEMON_JSON, DIRECT, PODMAN, Host

GENERATIONS = ("debian", "sid", "newest")
PAGES = ("cli", "docker", "podman", "containerd", "crio", "openshift", "runc", "simulated-driver")
#: What must be seen in a page's output, each at least that many times.
SEEN = {
    "cli": {'"version": ': 1, "slices": 1, "GPU-": 2, "libcuda.so.": 1, "NVC-1201": 1},
    "docker": {"GPU 0: ": 6, "runtimeArgs": 2},
    "podman": {"GPU 0: ": 3},
    "containerd": {"GPU 0: ": 1},
    "crio": {"runtime_path": 2, '"nvc-hook"': 1},
    "openshift": {"runtime_path": 2, '"nvc-hook"': 1},
    "runc": {"GPU 0: ": 2},
    "simulated-driver": {"(simulated)": 10, "nvidia-cap": 2},
}
#: This machine's limits: no systemd, and less room than podman's defaults take.
SHORT_OF = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"


def commands(page: str) -> list[str]:
    """The blocks that are marked as shell."""
    with open(os.path.join(REPO, "docs", f"{page}.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)


def quick_start() -> list[str]:
    """The commands of README.md for an engine."""
    with open(os.path.join(REPO, "README.md"), encoding="utf-8") as file:
        section = file.read().split("## With Docker\n")[1].split("\n##")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def image_without_a_registry() -> str:
    """How docs/docker.md makes the image of the examples."""
    with open(os.path.join(REPO, "docs/docker.md"), encoding="utf-8") as file:
        text = file.read().partition("Where no registry answers")[2]
    (block,) = re.findall(r"^(?:    .*\n)+", text, re.MULTILINE)[:1]
    return block


def prepare(host: Host, page: str) -> None:
    """What a reader has before the page begins: no root file system, and no image but those of the pages."""
    host.sh("rm -rf /run/kept; [ ! -e /run/rootfs ] || mv /run/rootfs /run/kept")
    host.sh("ln -sf nvc-cli /usr/local/bin/nvidia-ctk")  # as an installation has it
    if page == "docker":
        host.sh("systemctl start docker")
        host.sh(image_without_a_registry())
    if page == "podman":
        script = '#!/bin/sh\nfirst=; [ "$1" = --runtime ] && first="$1 $2" && shift 2\nshift\n'
        there = host.sh("command -v podman").stdout.strip()
        script += f'exec {there} {PODMAN} $first run {DIRECT} {SHORT_OF} "$@"\n'
        host.write("/usr/local/sbin/podman", script, 0o755)
    if page == "containerd":
        # ctr begins to read a container's output when it has started, and misses what has ended by then.
        there = host.sh("command -v ctr").stdout.strip()
        script = '#!/bin/sh\n[ "$1" != run ] || { shift; set -- run --log-uri file:///run/ctr.log "$@"; }\n'
        script += f'{there} "$@" || exit\n[ "$1" != run ] || exec cat /run/ctr.log\n'
        host.write("/usr/local/sbin/ctr", script, 0o755)


def restore(host: Host) -> None:
    """Give other tests their root file system back."""
    host.sh("rm -rf /run/rootfs /usr/local/bin/nvidia-ctk; [ ! -e /run/kept ] || mv /run/kept /run/rootfs")


def changed(host: Host) -> list[str]:
    """Files of /etc that were made or changed since the host was, but for those of Podman's networks."""
    found = host.sh(
        "find /etc -newer /usr/local/sbin/systemctl -type f ! -path '*/networks/*' ! -name cni.lock | sort"
    ).stdout
    return found.splitlines()


def test_podman_s_networks_are_no_change(host: Host) -> None:
    """Podman 5 leaves a lock there, whichever page ran first."""
    before = changed(host)
    host.sh("mkdir -p /etc/containers/networks; touch /etc/containers/networks/netavark.lock")
    assert changed(host) == before


def test_the_quick_start(host: Host) -> None:
    prepare(host, "docker")
    link = "/usr/local/bin/nvidia-container-runtime-hook"
    host.sh(f"ln -s nvc-hook {link}")  # as the package's alternative
    (block,) = quick_start()
    output = host.sh(block).stdout
    host.sh(f"rm {link}")
    restore(host)
    assert output.count("GPU 0: ") == output.count("GPU 1: ") == 1, output
    assert output.count("/ 40779MiB") == 1, output  # half of an H100's memory
    host.sh("systemctl stop docker containerd; rm -f /etc/docker/key.json")


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_a_page(host: Host, page: str) -> None:
    blocks = commands(page)
    assert blocks
    before = changed(host)
    prepare(host, page)
    output = "".join(host.sh(block).stdout for block in blocks)
    restore(host)
    for text, times in SEEN[page].items():
        assert output.count(text) >= times, output
    host.sh("systemctl stop docker containerd; cd /usr/local/sbin; rm -f podman ctr /etc/docker/key.json")
    assert changed(host) == before, "a page takes back what it did"


#: As NVIDIA's program leaves it.
NVIDIAS_JSON = {**json.loads(DAEMON_JSON), "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}


@pytest.fixture
def named(host: Host) -> Iterator[Host]:
    """The host with NVIDIA's names, as packages link them, its engines registered with NVIDIA's runtime."""
    for theirs, ours in run_path(os.path.join(REPO, "packaging/names.py"))["NVIDIAS"].items():
        host.sh(f"ln -s {ours} /usr/local/bin/{theirs}")
    host.write("/etc/docker/daemon.json", json.dumps(NVIDIAS_JSON, indent=4) + "\n")
    host.sh("systemctl start docker")
    host.image()
    for page in ("podman", "containerd"):
        prepare(host, page)
    host.sh("rm -f /run/ctr.log")
    yield host
    host.sh("systemctl stop docker containerd; cd /usr/local/sbin; rm -f podman ctr /usr/local/bin/nvidia-*")


def test_replacing_nvidia_s_toolkit(named: Host) -> None:
    files = "cat /etc/docker/daemon.json; [ ! -e /etc/containerd/config.toml ] || cat /etc/containerd/config.toml"
    before = named.sh(files).stdout
    install, docker, containerd, podman, back = commands("replace-nvidia")
    said = named.sh(install).stdout
    assert "Container Toolkit CLI version" in said and "GPU UUID:" in said and "[nvidia-container-cli]" in said
    said = named.sh(docker).stdout
    assert (said.count("GPU 0: "), said.count("GPU 1: ")) == (2, 1)
    runtimes = json.loads(named.read("/etc/docker/daemon.json"))["runtimes"]
    assert runtimes["nvidia"]["path"] == "/usr/local/bin/nvc-runtime"
    assert named.sh(containerd).stdout.count("GPU 0: ") == 1
    said = named.sh(podman).stdout
    assert said.count("UUID: GPU-") == 2 and "nvidia.com/gpu=all\n" in said
    named.sh(back)
    assert named.sh(files).stdout == before
    left = named.sh("ls -R /etc/docker /etc/cdi; [ ! -e /etc/containerd ] || ls -R /etc/containerd").stdout
    assert "nvc" not in left, left

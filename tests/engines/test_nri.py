"""nvc-nri with CRI-O 1.36: GPUs and slices by annotations. tests/kubernetes/test_nri.py has containerd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from support import PATIENCE
from support.engines import DRIVER, Host
from support.nri import until_ready
from support.pods import Pods

GENERATIONS = ("newest",)
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
DEVICES, SIZE = "nri.nvc.dev/devices", "nri.nvc.dev/memory"


def started(host: Host) -> subprocess.Popen[str]:
    """nvc-nri on the host, registered."""
    command = [*host.namespace, "/usr/local/bin/nvc-nri", f"--root={DRIVER}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until_ready(process)
    return process


@pytest.fixture(scope="module")
def pods(host: Host) -> Iterator[Pods]:
    with Pods(host, "crio") as made:
        yield made


@pytest.fixture
def plugin(pods: Pods) -> Iterator[subprocess.Popen[str]]:
    running = started(pods.host)
    yield running
    running.terminate()
    running.communicate(timeout=PATIENCE)


def test_what_pods_get(pods: Pods, plugin: subprocess.Popen[str]) -> None:
    wanted = {
        "slice": ({DEVICES: "0", SIZE: "10GiB"}, ["nvidia0"], "10240"),
        "whole": ({DEVICES: "1"}, ["nvidia1"], "81559"),
    }
    for name, (asked, nodes, memory) in wanted.items():
        pods.start(name, annotations=asked)
        assert pods.exec(name, "ls /dev | grep nvidia[0-9]").split() == nodes
        assert pods.exec(name, MEMORY).strip() == memory
    assert "lab/slice/main" in pods.host.sh("nvc-cli vgpu ls").stdout
    pods.start("nothing")
    assert pods.exec("nothing", "ls /dev | grep nvidia || echo none") == "none\n"
    for name in (*wanted, "nothing"):
        pods.end(name)


def test_what_cannot_be_met_is_refused(pods: Pods, plugin: subprocess.Popen[str]) -> None:
    done = pods.try_start("absurd", annotations={DEVICES: "0", SIZE: "900000TiB"})
    assert done.returncode != 0 and "annotation nri.nvc.dev/memory" in done.stderr, done
    pods.end("absurd")


def test_a_restart_of_the_runtime(pods: Pods) -> None:
    """The plugin ends with the runtime, and pods keep what they have; the next plugin serves the next runtime."""
    plugin = started(pods.host)
    pods.start("kept", annotations={DEVICES: "0", SIZE: "10GiB"})
    pods.host.sh("systemctl restart crio")
    assert "the runtime has closed the socket" in plugin.communicate(timeout=PATIENCE)[1] and plugin.returncode == 1
    assert pods.exec("kept", MEMORY).strip() == "10240"
    again = started(pods.host)
    pods.start("next", annotations={DEVICES: "1"})
    assert pods.exec("next", "ls /dev | grep nvidia[0-9]").split() == ["nvidia1"]
    again.terminate()
    again.communicate(timeout=PATIENCE)
    for name in ("kept", "next"):
        pods.end(name)

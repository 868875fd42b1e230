"""Pods of containerd 2.3 and CRI-O 1.36: by CDI devices as kubelet names them, by the runtime, and by the hook."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import until
from support.cluster import processes
from support.engines import CONFIG_TOML, Host
from support.pods import Pods

GENERATIONS = ("newest",)
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
SIZES = '[[nvc.vgpu]]\nname = "small"\nmemory = "10GiB"\n'


@pytest.fixture(scope="module", params=["containerd", "crio"])
def pods(host: Host, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """An engine that knows the runtime, with specifications of whole GPUs and of slices."""
    engine = request.param
    host.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)
    host.sh("nvc-cli --root /srv/sim cdi refresh")
    with Pods(host, engine) as made:
        host.sh(f"nvc-cli runtime configure --engine {engine}; systemctl restart {engine}")
        yield made
    host.sh(f"nvc-cli runtime configure --engine {engine} --remove; nvc-cli vgpu rm --gone")


@pytest.fixture
def pod(pods: Pods) -> Iterator[Callable[..., str]]:
    """Factory: the name of a pod that has started."""
    names: list[str] = []

    def make(**wanted: Any) -> str:
        names.append(f"pod{len(names)}")
        pods.start(names[-1], **wanted)
        return names[-1]

    yield make
    for name in names:
        pods.end(name)


def slices(pods: Pods) -> list[Any]:
    found: list[Any] = json.loads(pods.host.sh("nvc-cli vgpu ls --format json").stdout)["slices"]
    return found


def nodes(pods: Pods, name: str) -> list[str]:
    return pods.exec(name, "ls /dev | grep nvidia[0-9] || true").split()


@pytest.mark.parametrize(
    ("wanted", "seen", "memory"),
    [
        ({"devices": ("nvidia.com/gpu=1",)}, ["nvidia1"], ["81559"]),
        ({"devices": ("nvidia.com/vgpu=0:small",)}, ["nvidia0"], ["10240"]),
        ({"devices": ("nvidia.com/gpu=0",), "env": {"NVC_VGPU_MEMORY": "4GiB"}}, ["nvidia0"], ["4096"]),
        (
            {"handler": "nvc", "env": {"NVIDIA_VISIBLE_DEVICES": "1", "NVC_VGPU_MEMORY": "6GiB"}},
            ["nvidia1"],
            ["6144"],
        ),
    ],
)
def test_what_a_pod_gets(
    pods: Pods, pod: Callable[..., str], wanted: dict[str, Any], seen: list[str], memory: list[str]
) -> None:
    name = pod(**wanted)
    assert nodes(pods, name) == seen and pods.exec(name, MEMORY).split() == memory


@pytest.mark.parametrize(
    "wanted",
    [
        {"handler": "nvc"},
        {"annotations": {"cdi.k8s.io/lab": "nvidia.com/gpu=0"}},
        {"handler": "nvc", "annotations": {"cdi.k8s.io/lab": "nvidia.com/gpu=0"}},
    ],
)
def test_pods_that_ask_for_nothing(pods: Pods, pod: Callable[..., str], wanted: dict[str, Any]) -> None:
    """Nor does an annotation of a pod ask: the pages say so."""
    assert nodes(pods, pod(**wanted)) == []


def test_a_gpu_that_is_not_there(pods: Pods) -> None:
    done = pods.try_start("none", handler="nvc", env={"NVIDIA_VISIBLE_DEVICES": "7"})
    try:
        assert done.returncode != 0 and "device error: 7: unknown device" in done.stderr
        assert "[NVC-1501: nvc-cli doctor driver nodes]" in done.stderr
    finally:
        pods.end("none")


def test_its_name(pods: Pods, pod: Callable[..., str]) -> None:
    name = pod(handler="nvc", env={"NVIDIA_VISIBLE_DEVICES": "1", "NVC_VGPU_MEMORY": "6GiB"})
    assert f"\nlab/{name}/main " in pods.host.sh("nvc-cli vgpu ls").stdout
    assert "6 GiB" in pods.host.sh(f"nvc-cli vgpu show {name}").stdout
    # A container whose id only begins like that name is another one.
    pods.host.write(f"/run/runc/{name}-other/state.json", '{"init_process_pid": 1}')
    try:
        assert pods.host.sh(f"nvc-cli doctor --container {name}", check=False).returncode == 0
    finally:
        pods.host.sh(f"rm -r /run/runc/{name}-other")


def test_pods_outlive_a_restart(pods: Pods, pod: Callable[..., str]) -> None:
    name = pod(handler="nvc", env={"NVIDIA_VISIBLE_DEVICES": "0", "NVC_VGPU_MEMORY": "6GiB"})
    pods.host.sh(f"systemctl restart {pods.engine}")
    assert nodes(pods, name) == ["nvidia0"] and pods.exec(name, MEMORY).split() == ["6144"]


def test_a_restart_while_pods_start(pods: Pods) -> None:
    """Each has its slice or was not started, the next one starts, and nothing is left of any."""
    names = [f"begun{number}" for number in range(5)]
    wanted: dict[str, Any] = {
        "handler": "nvc", "env": {"NVIDIA_VISIBLE_DEVICES": "0", "NVC_VGPU_MEMORY": "6GiB"},
    }  # fmt: skip
    with ThreadPoolExecutor(len(names)) as executor:
        begun = [executor.submit(pods.try_start, name, **wanted) for name in names[1:]]
        until(lambda: pods.host.sh(f"{pods.crictl} ps -aq").stdout)  # the first has been created
        pods.host.sh(f"systemctl restart {pods.engine}")
        started = [name for name, done in zip(names[1:], begun, strict=True) if done.result().returncode == 0]
    pods.start(names[0], **wanted)
    for name in (names[0], *started):
        assert nodes(pods, name) == ["nvidia0"] and pods.exec(name, MEMORY).split() == ["6144"]
    # One that was created when the engine ended has a slice, too.
    assert {f"lab/{name}/main" for name in (names[0], *started)} <= {one["name"] for one in slices(pods)}
    running = pods.host.sh(f"{pods.crictl} ps -q").stdout.split()
    pods.host.sh(f"{pods.crictl} stop --timeout 0 {' '.join(running)}; {pods.crictl} rmp -a -f; rm -r /run/pods")
    # A process that the engine has forgotten, as it was creating the container when it ended, keeps its slice.
    processes.end({pid: processes.started(pid) for one in slices(pods) for pid in one["pids"]})
    until(lambda: slices(pods) == [], lambda: str(slices(pods)))
    pods.host.sh("nvc-cli vgpu rm --gone")
    left = "find /run/nvc/vgpu /run/nvc/containers -mindepth 1 ! -path /run/nvc/vgpu/empty 2>/dev/null || true"
    assert pods.host.sh(left).stdout == ""


def test_crictl_info(pods: Pods) -> None:
    """The runtime by its name, and where devices of CDI are looked for; devices themselves are not shown."""
    config = pods.info()["config"]
    if pods.engine == "containerd":
        assert config["containerd"]["runtimes"]["nvc"]["options"]["BinaryName"].endswith("/nvc-runtime")
        assert config["enableCDI"] and "/var/run/cdi" in config["cdiSpecDirs"]
    else:
        runtime = config["crio"]["Runtimes"]["nvc"]
        assert runtime["RuntimePath"].endswith("/nvc-runtime")
        assert "/var/run/cdi" in config["crio"]["CDISpecDirs"]

"""Docker, started for this: `--gpus` by the hook, `--runtime nvc` by the runtime, both, and neither."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.clients import client_ran
from support.engines import CONFIG_TOML, IMAGE, Host

GENERATIONS = ("debian", "sid", "newest")
BOTH = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
OPENED = "No such device or address"  # no driver answers behind a simulated node
DENIED = "Operation not permitted"


@pytest.fixture(scope="module", autouse=True)
def docker(host: Host) -> None:
    """The daemon, which knows nvc."""
    host.sh("nvc-cli runtime configure --engine docker --hook-link /usr/local/bin; systemctl start docker")
    host.image()


def test_version(host: Host) -> None:
    client_ran("Docker", host.sh("dockerd --version").stdout, "root", "`--gpus`, `--runtime`, CDI names, slices")


def docker_run(host: Host, options: str, script: str) -> list[str]:
    """The lines that a shell script in a container prints."""
    return host.sh(f"docker run --rm {options} {IMAGE} sh -c '{script}'").stdout.splitlines()


LOOK = "nvidia-smi -L; ls /dev | grep nvidia"


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ("--gpus all", []),
        ("--runtime nvc -e NVIDIA_VISIBLE_DEVICES=all", []),
        ("--runtime nvc -e NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all", ["nvidia-modeset"]),  # all capabilities
    ],
)
def test_all_gpus(host: Host, options: str, more: list[str]) -> None:
    lines = docker_run(host, options, LOOK)
    assert [line[:6] for line in lines[:2]] == ["GPU 0:", "GPU 1:"] and sorted(lines[2:]) == sorted([*BOTH, *more])


@pytest.mark.parametrize("options", ["--gpus device=1", "--runtime nvc -e NVIDIA_VISIBLE_DEVICES=1"])
def test_one_gpu(host: Host, options: str) -> None:
    uuid = host.sh("nvc-cli --root /srv/sim info --csv | grep ,GPU- | tail -1").stdout
    lines = docker_run(host, options, LOOK)
    assert len([line for line in lines if line.startswith("GPU ")]) == 1
    assert lines[0].split("UUID: ")[1].rstrip(")") in uuid
    assert "nvidia1" in lines and "nvidia0" not in lines
    # Docker lets a container make any node, but not open it.
    script = "busybox mknod /dev/nvidia0 c 195 0; cat /dev/nvidia0; cat /dev/nvidia1; true"
    errors = host.sh(f"docker run --rm {options} {IMAGE} sh -c '{script}'").stderr.splitlines()
    assert DENIED in errors[0] and OPENED in errors[1], errors


SIZES = '[[nvc.vgpu]]\nname = "small"\nmemory = "4GiB"\n'


@pytest.mark.parametrize(
    ("variables", "memory"),
    [
        ("NVIDIA_VISIBLE_DEVICES=nvidia.com/vgpu=all:small", "4096 4096"),
        ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1 NVC_VGPU_MEMORY=3g", "3072"),
    ],
)
def test_slices(host: Host, variables: str, memory: str) -> None:
    """As CDI devices by their names, and by variables: with devices that CDI's edits give, and by the hook."""
    host.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)
    try:
        host.sh("nvc-cli --root /srv/sim cdi refresh")
        options = "--runtime nvc " + " ".join(f"-e {variable}" for variable in variables.split())
        query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
        assert docker_run(host, options, query) == memory.split()
    finally:
        host.write("/etc/nvc/config.toml", CONFIG_TOML)
        host.sh("rm -r /var/run/cdi")


@pytest.fixture(scope="module")
def image(docker: None, host: Host) -> str:
    """An image that sets a limit of 3 GiB."""
    host.sh(f"docker create --name limited {IMAGE} true")
    host.sh("docker commit --change 'ENV NVIDIA_GPU_MEMORY_LIMIT=3072' limited limited:1; docker rm limited")
    return "limited:1"


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ("", "", "3072"),
        ("", "-e NVIDIA_GPU_MEMORY_LIMIT=2048", "2048"),
        ('vgpu-memory-max = "2GiB"', "", "NVIDIA_GPU_MEMORY_LIMIT: 3072: the operator grants 2GiB"),
    ],
)
@pytest.mark.parametrize("way", ["--gpus device=0", "--runtime nvc -e NVIDIA_VISIBLE_DEVICES=0"])
def test_an_image_that_limits_memory(
    host: Host, image: str, way: str, settings: str, options: str, said: str
) -> None:
    """A user may replace what it says; it is bounded as a user is. More: tests/kernel/test_vgpu_hook.py."""
    host.write("/etc/nvc/config.toml", f"{CONFIG_TOML}[nvc]\n{settings}\n")
    try:
        query = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
        done = host.sh(f"docker run --rm {way} {options} {image} {query}", check=False)
        if said.isdigit():
            assert done.returncode == 0 and done.stdout.split() == [said], done.stderr
        else:
            assert done.returncode != 0 and said in done.stderr, done.stderr
    finally:
        host.write("/etc/nvc/config.toml", CONFIG_TOML)
    assert json.loads(host.sh("nvc-cli vgpu ls --format json").stdout)["slices"] == []


def test_no_gpus_without_a_request(host: Host) -> None:
    assert docker_run(host, "--runtime nvc", "ls /dev") == docker_run(host, "", "ls /dev")


def test_hook_and_runtime_inject_once(host: Host) -> None:
    script = "grep -c libnvidia-ml.so /proc/self/mounts; grep -c /dev/nvidia0 /proc/self/mounts"
    assert docker_run(host, "--gpus all --runtime nvc", script) == ["1", "1"]


def test_docker_shows_the_cause(host: Host) -> None:
    done = host.sh(f"docker run --rm --runtime nvc -e NVIDIA_VISIBLE_DEVICES=7 {IMAGE} true", check=False)
    assert done.returncode == 125 and "nvc-runtime: device error: 7: unknown device" in done.stderr
    done = host.sh(f"docker run --rm --gpus device=7 {IMAGE} true", check=False)
    assert done.returncode != 0 and "device error: 7: unknown device" in done.stderr


@pytest.fixture
def running(host: Host) -> Iterator[str]:
    """The name of a container that keeps running."""
    host.sh(f"docker run -d --name kept --runtime nvc -e NVIDIA_VISIBLE_DEVICES=0 {IMAGE} sleep 600")
    yield "kept"
    host.sh("docker rm -f kept")


def test_devices_survive_an_update(host: Host, running: str) -> None:
    """The engine itself knows them: whenever it writes the device list again, they are in it."""
    host.sh(f"docker update --memory 256m --memory-swap 256m {running}")
    done = host.sh(f"docker exec {running} cat /dev/nvidia0", check=False)
    assert OPENED in done.stderr
    identity = host.sh("docker inspect --format '{{.Id}}' kept").stdout.strip()
    config = host.read(
        f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{identity}/config.json"
    )
    assert '"path":"/dev/nvidia0"' in config and '"major":195,"minor":0,"access":"rw"' in config


def test_the_default_runtime(host: Host) -> None:
    """As the default it passes every container on, with and without GPUs."""
    host.sh("nvc-cli runtime configure --engine docker --set-as-default; systemctl restart docker")
    assert docker_run(host, "-e NVIDIA_VISIBLE_DEVICES=0", "nvidia-smi -L | wc -l") == ["1"]
    assert docker_run(host, "", "ls /dev | grep -c nvidia || true") == ["0"]


def test_what_was_there_is_restored(host: Host) -> None:
    before = host.read("/etc/docker/daemon.json.nvc-backup")
    host.sh("nvc-cli runtime configure --engine docker --remove --hook-link /usr/local/bin")
    assert host.read("/etc/docker/daemon.json") == before
    assert "nvidia" not in host.sh("ls /etc/docker /usr/local/bin").stdout
    host.sh("systemctl restart docker")
    done = host.sh(f"docker run --rm --runtime nvc {IMAGE} true", check=False)
    assert done.returncode == 125 and "nvc" in done.stderr

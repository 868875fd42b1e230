"""The image in the place of NVIDIA's toolkit container: what the GPU operator deploys, mounts and waits for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator

import pytest
from support import until
from support.clients import client_ran
from support.engines import CONTAINERD_TOML, DAEMON_JSON, DRIVER, Host
from support.gpu_operator import ROOT, TOOLKIT, Node, image

#: The image is made of what is staged, which takes half a minute.
pytestmark = pytest.mark.nightly

#: As the operator has it; Debian's engines have no CDI themselves.
CDI = {"CDI_ENABLED": "true", "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false", "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
       "CRIO_CONFIG_MODE": "config", "RUNTIME_ENABLE_CDI": "false"}  # fmt: skip
FOREIGN = {"runtimes": {"nvidia": {"path": "/usr/bin/other-runtime"}}}


@pytest.fixture(scope="module")
def files(stage: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nvc-image-") as directory:
        yield image(stage, directory)


@pytest.fixture(scope="module")
def running(host: Host, files: str) -> Iterator[Node]:
    """A node whose dockerd runs, and has an image."""
    made = Node(host, files)
    made.docker()
    host.image()
    yield made
    made.sh("systemctl stop docker")
    made.close()


@pytest.fixture
def node(running: Node) -> Node:
    """The node, as it is before a toolkit container was on it."""
    running.sh(f"rm -rf /etc/nvc {TOOLKIT}/.restart /run/cdi /etc/containerd/conf.d /etc/crio; mkdir -p {ROOT}")
    running.sh("rm -f /etc/docker/*.nvc-* /etc/containerd/*.nvc-*")
    running.write("/etc/docker/daemon.json", DAEMON_JSON)
    running.write("/etc/containerd/config.toml", CONTAINERD_TOML)
    return running


def test_from_the_start_to_the_end(node: Node) -> None:
    """Docker: pods of the runtime have GPUs, and afterwards dockerd's file is as it was, byte for byte."""
    client_ran("GPU operator", "26.7", "root", "its mounts, variables and files for nvc's image; no cluster")
    with node.toolkit() as toolkit:
        toolkit.ready()
        assert node.read("/run/nvidia/toolkit/toolkit.pid").strip().isdecimal()
        for name in ("nvidia-cdi-hook", "nvidia-ctk", "nvidia-container-runtime-hook"):
            assert node.sh(f"{TOOLKIT}/{name} --help").stdout.startswith("Usage: ")
        until(lambda: {"nvidia", "nvidia-cdi", "nvidia-legacy"} <= node.runtimes())
        for runtime in ("nvidia", "nvidia-legacy"):
            words = f"--runtime {runtime} -e NVIDIA_VISIBLE_DEVICES=all nvc-test nvidia-smi -L"
            assert node.sh(f"docker run --rm --network none {words}").stdout.count("GPU ") == 2
        assert json.loads(node.read("/etc/docker/daemon.json"))["default-runtime"] == "nvidia"
        assert toolkit.end() == 0
    assert node.read("/etc/docker/daemon.json") == DAEMON_JSON
    assert node.sh("ls -A /run/nvidia/toolkit; ls -A /etc/docker | grep -v key.json").stdout == "daemon.json\n"
    node.sh(f"{TOOLKIT}/nvidia-container-runtime --version")  # running containers need it to stop


def test_pods_that_manage_gpus(node: Node) -> None:
    """With the operator's CDI, `all` is every node of the driver, by the specification that it waits for."""
    with node.toolkit(**CDI) as toolkit:
        toolkit.ready()
        until(lambda: "nvidia" in node.runtimes())
        assert "default-runtime" not in json.loads(node.read("/etc/docker/daemon.json"))
        names = node.sh(f"{TOOLKIT}/nvidia-ctk cdi list").stdout.split()
        assert names == ["management.nvidia.com/gpu=all"]
        asked = "-e NVIDIA_VISIBLE_DEVICES=all -e NVIDIA_MIG_CONFIG_DEVICES=all"
        words = f"--runtime nvidia --cap-add SYS_ADMIN {asked}"
        script = "nvidia-smi -L; ls /dev/nvidia-caps"
        said = node.sh(f"docker run --rm --network none {words} nvc-test sh -c '{script}'").stdout
        assert said.count("GPU ") == 2 and "nvidia-cap1\n" in said
        assert toolkit.end() == 0


def test_a_container_that_was_killed(node: Node) -> None:
    """The next one finds its work done, has no engine restarted, and takes back what the first has changed."""
    with node.toolkit() as toolkit:
        toolkit.ready()
        toolkit.kill()
    with node.toolkit() as toolkit:
        toolkit.ready()
        assert "nvc toolkit: docker has the runtime nvidia: its files were so before" in toolkit.said
        assert not [line for line in toolkit.said if "restarted" in line]
        assert toolkit.end() == 0
    assert node.read("/etc/docker/daemon.json") == DAEMON_JSON


def test_a_restart_that_was_cut_short_is_made_up_for(node: Node) -> None:
    with node.toolkit() as toolkit:
        toolkit.ready()
        toolkit.kill()
    node.write(f"{TOOLKIT}/.restart", "")
    with node.toolkit() as toolkit:
        toolkit.ready()
        assert "nvc toolkit: docker: files changed, restarted by: signal" in toolkit.said


def test_one_at_a_time(node: Node) -> None:
    with node.toolkit() as first:
        first.ready()
        with node.toolkit() as second:
            assert second.wait() == 1
            assert "another toolkit container runs" in second.said[-1]
        assert first.end() == 0
    assert node.read("/etc/docker/daemon.json") == DAEMON_JSON


def test_what_nvidia_s_container_has_left_goes(node: Node) -> None:
    """Its programs are shell scripts that start others; the directory is the operator's alone."""
    node.sh(f"mkdir -p {TOOLKIT}/.config; touch {TOOLKIT}/nvidia-container-runtime.real {TOOLKIT}/nvidia-ctk")
    with node.toolkit(RUNTIME_RESTART_MODE="none", NO_RUNTIME_CONFIG="true") as toolkit:
        toolkit.ready()
        version, *names = sorted(node.sh(f"ls -A {TOOLKIT}").stdout.split())
        assert version[0].isdecimal() and all(name.startswith("nvidia-") for name in names)
        assert "nvidia-container-runtime.real" not in names
        assert toolkit.end() == 0


def test_containerd(node: Node) -> None:
    """Its own view of the file has three runtimes that are as its default but for the program."""
    before = node.read("/etc/containerd/config.toml")
    more = {"CONTAINERD_RUNTIME_CLASS": "nvidia", "RUNTIME_RESTART_MODE": "none"}
    with node.toolkit(RUNTIME="containerd", **CDI, **more) as one:
        one.ready()
        dump = node.sh("containerd --config /etc/containerd/config.toml config dump").stdout
        for suffix in ("", ".cdi", ".legacy"):
            assert f'BinaryName = "{TOOLKIT}/nvidia-container-runtime{suffix}"' in dump
        assert 'default_runtime_name = "runc"' in dump
        assert one.end() == 0
    assert node.read("/etc/containerd/config.toml") == before
    assert "nvidia" not in node.sh("ls -AR /etc/containerd").stdout.replace("conf.d", "")


@pytest.mark.parametrize("way", ["config", "hook"])
def test_crio(node: Node, way: str) -> None:
    hooks = "/usr/share/containers/oci/hooks.d"
    with node.toolkit(RUNTIME="crio", CRIO_CONFIG_MODE=way, RUNTIME_RESTART_MODE="none") as toolkit:
        toolkit.ready()
        if way == "config":
            text = node.read("/etc/crio/crio.conf.d/99-nvc.conf")
            assert f'runtime_path = "{TOOLKIT}/nvidia-container-runtime"' in text
        else:
            path = json.loads(node.read(f"{hooks}/nvc.json"))["hook"]["path"]
            assert path.startswith(TOOLKIT) and node.sh(f"{path} -version").stdout
        assert toolkit.end() == 0
    assert node.sh(f"ls -A {hooks} /etc/crio/crio.conf.d").stdout.split() == [
        "/etc/crio/crio.conf.d:", f"{hooks}:"]  # fmt: skip


def test_a_systemd_host_s_engine_is_restarted(node: Node) -> None:
    """By the host's systemctl, which this host's stand-in is. Docker forgets runtimes only when it starts."""
    pid = node.read("/run/docker.main-pid")
    with node.toolkit(RUNTIME_RESTART_MODE="systemd") as toolkit:
        toolkit.ready()
        assert "nvidia" in node.runtimes() and node.read("/run/docker.main-pid") != pid
        assert toolkit.end() == 0
    assert "nvidia" not in node.runtimes()


def test_the_settings_that_variables_name(node: Node) -> None:
    more = {"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false", "NVC_KINDS": "gds,mofed",
            "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true", "NO_RUNTIME_CONFIG": "true",
            "NO_DAEMON": "true", "NVIDIA_CONTAINER_RUNTIME_RUNTIMES": "runc,/usr/bin/crun"}  # fmt: skip
    with node.toolkit(**CDI, **more) as toolkit:
        assert toolkit.wait() == 0
    for key, value in {
        "nvidia-container-cli.root": DRIVER, "nvidia-container-runtime.mode": "cdi", "nvc.kinds": "gds,mofed",
        "nvidia-container-runtime.runtimes": "runc,/usr/bin/crun",
        "nvidia-container-runtime.modes.cdi.default-kind": "management.nvidia.com/gpu",
        "accept-nvidia-visible-devices-envvar-when-unprivileged": "false",
        "accept-nvidia-visible-devices-as-volume-mounts": "true",
    }.items():
        got = node.sh(f"{TOOLKIT}/nvidia-container-cli config get {key}").stdout
        assert "".join(got.replace('"', "").split()).strip("[]") == value, key
    assert node.read("/etc/docker/daemon.json") == DAEMON_JSON


def test_a_node_s_own_settings_hold(node: Node) -> None:
    text = f'[nvidia-container-cli]\nroot = "{DRIVER}"\n[nvc]\nvgpu-memory-max = "10GiB"\n'
    node.write("/etc/nvc/config.toml", text)
    with node.toolkit(RUNTIME_RESTART_MODE="none") as toolkit:
        toolkit.ready()
        assert any("is the node's own: it holds" in line for line in toolkit.said)
        assert toolkit.end() == 0
    assert node.read("/etc/nvc/config.toml") == text
    node.write("/etc/nvc/config.toml", '[nvidia-container-cli]\nroot = "/elsewhere"\n')
    refused(node, "names the driver root /elsewhere")


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"RUNTIME": "podman"}, "RUNTIME: podman: want docker, containerd, crio"),
        ({"NVIDIA_RUNTIME_SET_AS_DEFAULT": "perhaps"}, "perhaps: want true or false"),
        ({"RUNTIME": "crio", "RUNTIME_RESTART_MODE": "signal"}, "want systemd, none"),
        ({"ENABLE_NRI_PLUGIN": "true"}, "set cdi.nriPluginEnabled"),
        ({"NVIDIA_CONTAINER_RUNTIME_MODE": "magic"}, "want one of auto, legacy"),
        ({"NVIDIA_RUNTIME_NAME": "a b"}, "--runtime-name"),
        ({"TOOLKIT_PID_FILE": "/etc/passwd"}, "want a file called toolkit.pid"),
        ({"RUNTIME_CONFIG": "/nowhere/daemon.json"}, "no directory of the host is mounted there"),
        ({"CDI_ENABLED": "true"}, "has no CDI, which needs 25.0"),
        ({"ROOT": "/opt/other"}, "/opt/other is not the host's"),
        ({"ROOT": "relative"}, "want an absolute path"),
    ],
)
def test_what_makes_no_sense(node: Node, variables: dict[str, str], why: str) -> None:
    refused(node, why, **variables)


def test_a_runtime_of_somebody_else(node: Node) -> None:
    node.write("/etc/docker/daemon.json", json.dumps(FOREIGN))
    refused(node, "nvidia already exists: /usr/bin/other-runtime")
    assert json.loads(node.read("/etc/docker/daemon.json")) == FOREIGN


def test_without_the_host_s_processes(node: Node) -> None:
    refused(node, "it needs hostPID", own_pids=True)


def refused(node: Node, why: str, **options: object) -> None:
    """One line says why, and no engine knows anything of it."""
    with node.toolkit(**options) as toolkit:  # type: ignore[arg-type]
        assert toolkit.wait() == 1
        assert toolkit.said[-1].startswith("nvc toolkit: ") and why in toolkit.said[-1], toolkit.said
    if node.read("/etc/docker/daemon.json") not in ("{", json.dumps(FOREIGN)):
        assert node.read("/etc/docker/daemon.json") == DAEMON_JSON
    assert node.sh("ls -A /run/nvidia/toolkit").stdout == ""

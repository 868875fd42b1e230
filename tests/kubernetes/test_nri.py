"""nvc-nri with a real containerd: GPUs and slices by annotations, without a runtime class, CDI or a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest
import yaml
from support import REPO
from support.cluster.images import BUSYBOX
from support.nri import DEFAULT_VALIDATOR, Containerd
from support.vgpu import ensure_shim

from nvc.frontends.nri.annotations import DOMAIN, NAMES
from nvc_cli.nri import OPTIONS

DEVICES, MEMORY, CORES = (f"nri.nvc.dev/{name}" for name in ("devices", "memory", "cores"))
SLICE = {DEVICES: "0", MEMORY: "10GiB"}
#: Of NRI's default validator: no container of the pod is created without the plugin.
REQUIRED = {"required-plugins.noderesource.dev/pod": "[nvc]"}
TAKE = "nvidia-smi; nvc-spin -m 9GiB -s 1; echo below $?; nvc-spin -m 11GiB -s 1; echo beyond $?"
#: Everything that nvc, NVIDIA's toolkit, HAMi and cGPU obey elsewhere.
HOSTILE = {
    "NVIDIA_VISIBLE_DEVICES": "all", "NVC_VGPU_MEMORY": "80GiB", "CUDA_DEVICE_MEMORY_LIMIT": "80g",
    "CUDA_DISABLE_CONTROL": "true", "ALIYUN_COM_GPU_MEM_CONTAINER": "80", "NVIDIA_GPU_MEMORY_LIMIT": "80000",
    "LD_PRELOAD": "/proc/self/cwd/evil.so",
}  # fmt: skip
LOOK = "nvidia-smi -L; ls /dev | grep '^nvidia[0-9]' || true"


@pytest.fixture(scope="module")
def containerd(stage: str) -> Iterator[Containerd]:
    """A running containerd with the images of pods."""
    directory = tempfile.mkdtemp(prefix="nvc-nri-", dir="/var/tmp")
    made = Containerd(f"{directory}/c", stage)
    try:
        with made.running() as running:
            running.load()
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def driver(sim_root: Callable[..., str], stage: str, scratch: str) -> str:
    ensure_shim(stage, scratch)
    return sim_root(gpus=2)


@pytest.fixture
def plugin(containerd: Containerd, driver: str) -> Iterator[subprocess.Popen[str]]:
    """nvc-nri for a driver of two GPUs."""
    with containerd.plugin(f"--root={driver}") as running:
        yield running


def test_a_whole_gpu(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    done = containerd.pod(LOOK, {DEVICES: "1"})
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0].startswith("GPU 0:") and lines[1] == "nvidia1", done


def test_the_page(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    """The pod of docs/nri.md; its annotations, options and the validator's setting are those that there are."""
    with open(os.path.join(REPO, "docs/nri.md"), encoding="utf-8") as file:
        text = file.read()
    manifest = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0])
    (main,) = manifest["spec"]["containers"]
    done = containerd.pod(" ".join(main["command"]), manifest["metadata"]["annotations"])
    assert main["image"] == BUSYBOX and "0MiB / 10240MiB" in done.stdout, done
    assert {f"{DOMAIN}{name}" for name in NAMES} <= set(re.findall(r"`(nri\.nvc\.dev/\w+)`", text))
    assert {f"--{name}" for name in OPTIONS} <= set(re.findall(r"--[a-z-]+", text))
    (required,) = REQUIRED.items()
    assert '{}: "{}"'.format(*required) in text and DEFAULT_VALIDATOR in text


def test_variables_of_a_container_change_nothing(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    envs = [{"key": name, "value": value} for name, value in HOSTILE.items()]
    script = f"unset LD_PRELOAD; {TAKE}; {LOOK}"
    done = containerd.pod(script, SLICE, envs=envs)
    assert "0MiB / 10240MiB" in done.stdout and "beyond 1" in done.stdout, done
    # The log has both streams, whose order is not that of the script.
    assert {"nvidia0", "nvidia1"} & set(done.stdout.splitlines()) == {"nvidia0"}, done
    whole = containerd.pod(f"unset LD_PRELOAD; nvidia-smi; {LOOK}", {DEVICES: "1"}, envs=envs)
    assert "0MiB / 81559MiB" in whole.stdout and whole.stdout.splitlines()[-1] == "nvidia1", whole


def test_two_gpus_and_time_alone(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    """A part of the time of each, and all of their memory."""
    done = containerd.pod(f"nvidia-smi; {LOOK}", {DEVICES: "all", CORES: "30"})
    assert done.stdout.count("0MiB / 81559MiB") == 2 and done.stdout.endswith("nvidia0\nnvidia1\n"), done


def test_annotations_of_one_container(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    """They take the place of the pod's; another container's say nothing of it."""
    own = {f"{DEVICES}.main": "1", f"{MEMORY}.other": "1GiB"}
    done = containerd.pod(f"nvidia-smi; {LOOK}", {**SLICE, **own})
    assert "10240MiB" not in done.stdout and done.stdout.endswith("nvidia1\n"), done


def test_who_asks_for_nothing_is_left_alone(containerd: Containerd, plugin: subprocess.Popen[str]) -> None:
    done = containerd.pod("ls /dev | grep nvidia; echo end", {"example.com/devices": "0"})
    assert done.stdout == "end\n"


@pytest.mark.parametrize(
    ("annotations", "cause"),
    [
        ({DEVICES: "0", MEMORY: "900000000TiB"}, "annotation nri.nvc.dev/memory"),
        ({DEVICES: "0", MEMORY: "100GiB"}, "annotation nri.nvc.dev/memory"),
        ({DEVICES: "0", MEMORY: "0"}, "annotation nri.nvc.dev/memory"),
        ({DEVICES: "0", MEMORY: "10gb"}, "a unit of 1000"),
        ({DEVICES: "0", CORES: "101"}, "annotation nri.nvc.dev/cores"),
        ({DEVICES: "7"}, "7: unknown device: there is no GPU 7"),
        ({DEVICES: "void"}, "names no device"),
        ({DEVICES: " "}, "want a value"),
        ({MEMORY: "1GiB"}, "nri.nvc.dev/devices: is missing"),
        ({DEVICES: "0", "nri.nvc.dev/memroy": "1GiB"}, "nri.nvc.dev/memroy: not known"),
        ({DEVICES: "0", "nri.nvc.dev/memory.": "1GiB"}, "not known"),
    ],
)
def test_what_cannot_be_met_is_refused(
    containerd: Containerd, plugin: subprocess.Popen[str], annotations: dict[str, str], cause: str
) -> None:
    """With the cause where kubelet shows it: the container is not created."""
    done = containerd.pod("echo started", annotations)
    assert done.returncode != 0 and "started" not in done.stdout
    assert cause in done.stderr, done


def test_namespaces_that_may_not_ask(containerd: Containerd, driver: str) -> None:
    with containerd.plugin(f"--root={driver}", "--namespaces=ml,batch"):
        assert containerd.pod(LOOK, {DEVICES: "0"}, namespace="ml").stdout.endswith("nvidia0\n")
        assert "default: pods of this namespace may not ask" in containerd.pod("true", {DEVICES: "0"}).stderr
        assert containerd.pod("echo started", {}).stdout == "started\n"


def test_without_a_driver_who_asks_is_refused(containerd: Containerd, scratch: str) -> None:
    os.mkdir(f"{scratch}/empty")
    with containerd.plugin(f"--root={scratch}/empty"):
        assert "initialization error" in containerd.pod("echo started", {DEVICES: "0"}).stderr
        assert containerd.pod("echo started", {}).stdout == "started\n"


def test_a_plugin_that_hangs(containerd: Containerd, driver: str) -> None:
    """The runtime goes on without it after a while: the container has no GPU. A late answer is not heard."""
    with containerd.plugin(f"--root={driver}") as plugin:
        plugin.send_signal(signal.SIGSTOP)
        assert containerd.pod("ls /dev | grep nvidia; echo end", SLICE).stdout == "end\n"
        plugin.send_signal(signal.SIGCONT)
        assert plugin.wait(30) == 1


def test_a_plugin_that_is_killed(containerd: Containerd, driver: str) -> None:
    """Containers keep what they have; the next one that asks has none, until it is there again."""
    with containerd.plugin(f"--root={driver}") as plugin:
        plugin.kill()
        plugin.wait(30)
        assert containerd.pod("ls /dev | grep nvidia; echo end", SLICE).stdout == "end\n"
    with containerd.plugin(f"--root={driver}"):
        assert "10240MiB" in containerd.pod("nvidia-smi", SLICE).stdout


def test_a_plugin_that_is_not_there(containerd: Containerd, driver: str) -> None:
    done = containerd.pod("echo started", {**SLICE, **REQUIRED})
    assert done.returncode != 0 and 'required plugin \\\"nvc\\\" not present' in done.stderr, done
    with containerd.plugin(f"--root={driver}"):
        assert "10240MiB" in containerd.pod("nvidia-smi", {**SLICE, **REQUIRED}).stdout


def test_the_runtime_ends(stage: str, driver: str) -> None:
    """The plugin ends with a line that says so; systemd starts it again."""
    with tempfile.TemporaryDirectory(prefix="nvc-nri-", dir="/var/tmp") as directory:
        made = Containerd(f"{directory}/c", stage)
        with made.running(), made.plugin(f"--root={driver}") as plugin:
            made.end()
            assert plugin.stderr is not None and "the runtime has closed the socket" in plugin.stderr.read()
            assert plugin.wait(30) == 1

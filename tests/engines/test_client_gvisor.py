"""gVisor: in the place of NVIDIA's hook it calls `nvidia-container-cli configure`, for plain bundles and Docker."""

from __future__ import annotations

import json

import pytest
from support.clientdebs import CLIENTS
from support.clients import as_the_page_says, named
from support.engines import CONFIG_TOML, DAEMON_JSON, DRIVER, IMAGE, Host

pytestmark = pytest.mark.engines
BUNDLE = "/srv/bundle"
#: A driver whose calls gVisor lets through. The simulated kernel is not in its procfs, so nvidia-smi finds no GPU.
VERSION = "550.54.15"
HOOK = "/usr/local/bin/nvidia-container-runtime-hook"
FLAGS = f"--network=none --ignore-cgroups --nvproxy --nvproxy-driver-version={VERSION}"
#: By a shell that starts nothing: on a busy host gVisor sometimes ends in a panic of its own at clone or execve.
LOOK = "cd /dev; echo nvidia*"


@pytest.fixture(scope="module", autouse=True)
def gvisor(host: Host) -> None:
    CLIENTS["gvisor"].put(host)
    named(host)
    host.sh(f"rm -rf {DRIVER}")
    host.simulate(**{"gpus": 2, "driver-version": VERSION, "cuda-version": "12.4"})


def test_version(host: Host) -> None:
    as_the_page_says("gVisor", host.sh("runsc --version | sed 's/.*~//'").stdout)


@pytest.mark.parametrize("devices", ["1", "none"])
def test_a_bundle_with_nvidia_s_hook(host: Host, devices: str) -> None:
    """The root file system is a directory."""
    host.sh(f"mkdir -p {BUNDLE}; rm -rf {BUNDLE}/rootfs; cp -a {host.rootfs()} {BUNDLE}/rootfs")
    spec = json.loads(host.sh(f"cd {BUNDLE}; rm -f config.json; runc spec; cat config.json").stdout)
    spec["process"]["terminal"] = False
    spec["process"]["args"] = ["sh", "-c", LOOK]
    wanted = {"VISIBLE_DEVICES": devices, "DRIVER_CAPABILITIES": "compute,utility"}
    spec["process"]["env"] += [f"NVIDIA_{name}={value}" for name, value in wanted.items()]
    spec["hooks"] = {"prestart": [{"path": HOOK, "args": [HOOK, "prestart"]}]}
    host.write(f"{BUNDLE}/config.json", json.dumps(spec))
    seen = host.sh(f"runsc --root /run/runsc {FLAGS} run --bundle {BUNDLE} nvc-{devices}").stdout.split()
    host.sh(f"grep -q libcuda.so.1 {BUNDLE}/rootfs/etc/ld.so.cache")
    gpus = {"all": ["nvidia0", "nvidia1"], "1": ["nvidia1"], "none": []}[devices]
    assert seen == ["nvidia-uvm", *gpus, "nvidiactl"]


#: Flags reach gVisor through nvc-runtime, too.
RUNTIMES = {
    "runsc": {"path": "/usr/local/bin/runsc", "runtimeArgs": FLAGS.split()},
    "nvidia": {"path": "/usr/local/bin/nvidia-container-runtime", "runtimeArgs": FLAGS.split()},
}
BY_VARIABLE = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES"
LIBRARY = "for at in /usr/lib*/libcuda.so.1 /usr/lib/*/libcuda.so.1; do [ ! -e $at ] || echo library; done"


@pytest.fixture(scope="module")
def docker(host: Host) -> None:
    host.write("/etc/docker/daemon.json", json.dumps({**json.loads(DAEMON_JSON), "runtimes": RUNTIMES}))
    host.write("/etc/nvc/config.toml", f'{CONFIG_TOML}[nvidia-container-runtime]\nruntimes = ["runsc"]\n')
    host.sh("systemctl start docker")
    host.image()


def docker_run(host: Host, options: str) -> str:
    return host.sh(f"docker run --rm --network none {options} {IMAGE} sh -c '{LOOK}; {LIBRARY}'").stdout


@pytest.mark.parametrize(
    "options, gpus",
    [
        ("--runtime runsc --gpus all", ["nvidia0", "nvidia1"]),
        ("--runtime runsc --gpus device=1", ["nvidia1"]),
        ("--runtime nvidia --gpus all", ["nvidia0", "nvidia1"]),
        (f"{BY_VARIABLE}=1", ["nvidia1"]),
        (f"{BY_VARIABLE}=nvidia.com/gpu=1", ["nvidia1"]),
        (f"{BY_VARIABLE}=none", []),
    ],
)
def test_docker(host: Host, docker: None, options: str, gpus: list[str]) -> None:
    """Alone, and with nvc-runtime before it."""
    *nodes, library = docker_run(host, options).split()
    assert library == "library"
    assert [node for node in nodes if node[6:].isdecimal()] == gpus
    assert {"nvidiactl", "nvidia-uvm"} <= {*nodes}


def test_docker_gives_no_slice(host: Host, docker: None) -> None:
    """gVisor would start the container without its limit."""
    with pytest.raises(AssertionError, match="nvc-runtime: input error: slice: gVisor runs no hook"):
        docker_run(host, f"{BY_VARIABLE}=1 -e NVC_VGPU_MEMORY=1g")

"""gVisor: in the place of NVIDIA's hook it calls `nvidia-container-cli configure`, for plain bundles and Docker.

Debian's sid has the one of 2024, which runs no hooks of CDI.
"""

from __future__ import annotations

import json

import pytest
from support.clientdebs import CLIENTS
from support.clients import client_ran, named
from support.engines import CONFIG_TOML, DAEMON_JSON, DRIVER, IMAGE, Host
from support.owndev import DEV

pytestmark = pytest.mark.engines
BUNDLE = "/srv/bundle"
GENERATIONS = ("sid", "newest")
#: A driver whose calls gVisor lets through. The simulated kernel is not in its procfs, so nvidia-smi finds no GPU.
DRIVERS = {"sid": ("550.54.15", "12.4"), "newest": ("580.159.04", "13.0")}
HOOK = "/usr/local/bin/nvidia-container-runtime-hook"
FLAGS = "--network=none --ignore-cgroups --nvproxy --nvproxy-driver-version="
#: By a shell that starts nothing: on a busy host gVisor sometimes ends in a panic of its own at clone or execve.
LOOK = "cd /dev; echo nvidia*"


@pytest.fixture(scope="module", autouse=True)
def flags(host: Host, generation: str) -> str:
    """Its options. There is a driver that it knows, whose nodes are in /dev: it opens them there."""
    if generation == "sid":
        CLIENTS["gvisor"].put(host)
    named(host)
    host.sh(f"rm -rf {DRIVER}")
    version, cuda = DRIVERS[generation]
    host.simulate(**{"gpus": 2, "driver-version": version, "cuda-version": cuda})
    host.sh(DEV)
    return FLAGS + version


def test_version(host: Host) -> None:
    what = "`--nvproxy`: plain bundles, Docker, below `nvc-runtime`, CDI since 2026. No slices: no hook runs"
    client_ran("gVisor", host.sh("runsc --version | sed -n '1s/.*[~-]//p'").stdout, "root", what)


@pytest.mark.parametrize("devices", ["1", "none"])
def test_a_bundle_with_nvidia_s_hook(host: Host, flags: str, devices: str) -> None:
    """The root file system is a directory."""
    host.sh(f"mkdir -p {BUNDLE}; rm -rf {BUNDLE}/rootfs; cp -a {host.rootfs()} {BUNDLE}/rootfs")
    spec = json.loads(host.sh(f"cd {BUNDLE}; rm -f config.json; runc spec; cat config.json").stdout)
    spec["process"]["terminal"] = False
    spec["process"]["args"] = ["sh", "-c", LOOK]
    wanted = {"VISIBLE_DEVICES": devices, "DRIVER_CAPABILITIES": "compute,utility"}
    spec["process"]["env"] += [f"NVIDIA_{name}={value}" for name, value in wanted.items()]
    spec["hooks"] = {"prestart": [{"path": HOOK, "args": [HOOK, "prestart"]}]}
    host.write(f"{BUNDLE}/config.json", json.dumps(spec))
    seen = host.sh(f"runsc --root /run/runsc {flags} run --bundle {BUNDLE} nvc-{devices}").stdout.split()
    host.sh(f"grep -q libcuda.so.1 {BUNDLE}/rootfs/etc/ld.so.cache")
    gpus = {"all": ["nvidia0", "nvidia1"], "1": ["nvidia1"], "none": []}[devices]
    assert seen == ["nvidia-uvm", *gpus, "nvidiactl"]


#: gVisor's flags reach it through nvc-runtime, too.
RUNTIMES = {"runsc": "runsc", "nvidia": "nvidia-container-runtime"}
BY_VARIABLE = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES"
LIBRARY = "for at in /usr/lib*/libcuda.so.1 /usr/lib/*/libcuda.so.1; do [ ! -e $at ] || echo library; done"


@pytest.fixture(scope="module")
def docker(host: Host, flags: str) -> None:
    runtimes = {name: {"path": f"/usr/local/bin/{program}", "runtimeArgs": flags.split()}
                for name, program in RUNTIMES.items()}  # fmt: skip
    host.write("/etc/docker/daemon.json", json.dumps({**json.loads(DAEMON_JSON), "runtimes": runtimes}))
    host.write("/etc/nvc/config.toml", f'{CONFIG_TOML}[nvidia-container-runtime]\nruntimes = ["runsc"]\n')
    host.sh("nvc-cli cdi refresh; systemctl start docker")
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


def test_docker_by_cdi(host: Host, docker: None, generation: str) -> None:
    """Docker's own edits. Their hooks make the names by which programs open libraries."""
    *nodes, library = docker_run(host, "--runtime runsc --device nvidia.com/gpu=1").split()
    assert "nvidia1" in nodes and "nvidia0" not in nodes
    assert (library == "library") == (generation == "newest")

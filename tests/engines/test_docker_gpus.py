"""Docker 29's `--gpus`: by CDI or by the hook, by what dockerd finds on its PATH; and what `docker info` shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from support.engines import CONFIG_TOML, IMAGE, Host

GENERATIONS = ("newest",)
HOOK, CDI_HOOK = "/usr/local/bin/nvidia-container-runtime-hook", "/usr/local/bin/nvidia-cdi-hook"
NO_VENDOR, UNRESOLVABLE = "AMD CDI spec not found", "unresolvable CDI devices nvidia.com/gpu="
#: What only a specification gives.
BY_CDI = "nvidia-modeset"


@pytest.fixture(scope="module", autouse=True)
def image(host: Host) -> None:
    host.sh("nvc-cli runtime configure --engine docker; systemctl start docker")
    host.image()


@pytest.fixture
def given(host: Host) -> Iterator[Callable[..., None]]:
    """Factory: which names a dockerd that is started anew finds, and whether there is a specification."""

    def make(hook: bool, cdi_hook: bool, spec: str = "") -> None:
        host.sh(f"rm -rf {HOOK} {CDI_HOOK} /var/run/cdi")
        if hook:
            host.sh(f"ln -s nvc-hook {HOOK}")
        if cdi_hook:
            host.sh(f"ln -s nvc-cdi-hook {CDI_HOOK}")
        if spec:
            host.sh(f"nvc-cli --root /srv/sim cdi refresh {spec}")
        host.sh("systemctl restart docker")

    yield make
    host.sh(f"rm -rf {HOOK} {CDI_HOOK} /var/run/cdi")


def gpus(host: Host, request: str, options: str = "") -> tuple[int, list[str]]:
    """How many GPUs a container gets, and its nodes."""
    script = "nvidia-smi -L | wc -l; ls /dev | grep nvidia"
    done = host.sh(f"docker run --rm --gpus {request} {options} {IMAGE} sh -c '{script}'")
    count, *nodes = done.stdout.splitlines()
    return int(count), nodes


REFRESH = "--device-name-strategy index --device-name-strategy uuid"


@pytest.mark.parametrize(
    ("hook", "cdi_hook", "spec", "way"),
    [
        (True, False, "", "hook"),
        (True, False, REFRESH, "hook"),
        (True, True, "", "hook"),
        (True, True, REFRESH, "cdi"),
        (False, True, REFRESH, "cdi"),
        (False, True, "", UNRESOLVABLE),
        (False, False, REFRESH, NO_VENDOR),
    ],
)
def test_the_table_of_the_page(
    host: Host, given: Callable[..., None], hook: bool, cdi_hook: bool, spec: str, way: str
) -> None:
    given(hook, cdi_hook, spec)
    if way not in ("hook", "cdi"):
        done = host.sh(f"docker run --rm --gpus all {IMAGE} true", check=False)
        assert done.returncode == 125 and way in done.stderr
        return
    uuid = re.findall("GPU-[-0-9a-f]{36}", host.sh("nvc-cli --root /srv/sim info --csv").stdout)[1]
    for request, count in (("all", 2), ("1", 1), ("device=1", 1), (f"device={uuid}", 1)):
        seen, nodes = gpus(host, request)
        assert seen == count and (BY_CDI in nodes) is (way == "cdi"), nodes
    size = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
    part = host.sh(f"docker run --rm --gpus device=0 -e NVC_VGPU_MEMORY=3g {IMAGE} {size}")
    assert part.stdout.split() == ["3072"]


def test_the_way_changes_while_dockerd_runs(host: Host, given: Callable[..., None]) -> None:
    """As the file comes and goes; both ways the same GPUs."""
    given(True, True)
    assert BY_CDI not in gpus(host, "all")[1]
    host.sh(f"nvc-cli --root /srv/sim cdi refresh {REFRESH}")
    assert BY_CDI in gpus(host, "all")[1]
    host.sh("rm -r /var/run/cdi")
    assert BY_CDI not in gpus(host, "all")[1]


def test_a_specification_without_all(host: Host, given: Callable[..., None]) -> None:
    given(False, True, f"{REFRESH} --no-all-device")
    assert gpus(host, "1")[0] == 1
    done = host.sh(f"docker run --rm --gpus all {IMAGE} true", check=False)
    assert f"{UNRESOLVABLE}all" in done.stderr


def test_a_gpu_that_is_not_there(host: Host, given: Callable[..., None]) -> None:
    """Where there is a hook, dockerd asks it for what CDI does not know."""
    for hook, cause in ((True, "device error: 7: unknown device"), (False, f"{UNRESOLVABLE}7")):
        given(hook, True, REFRESH)
        done = host.sh(f"docker run --rm --gpus device=7 {IMAGE} true", check=False)
        assert done.returncode == 125 and cause in done.stderr


def test_two_ways_for_one_container(host: Host, given: Callable[..., None]) -> None:
    """As the page says: the hook leaves the choice to the device that is named."""
    given(True, False, REFRESH)
    assert gpus(host, "all", "--device nvidia.com/gpu=0")[0] == 1


def test_docker_info(host: Host, given: Callable[..., None]) -> None:
    """The runtime by its name, and every device of the specifications with its full one."""
    given(True, True, REFRESH)
    info = json.loads(host.sh("docker info --format '{{json .}}'").stdout)
    assert info["Runtimes"]["nvc"]["path"] == "/usr/local/bin/nvc-runtime"
    names = {device["ID"] for device in info["DiscoveredDevices"]}
    assert {"nvidia.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=1"} <= names


def test_the_hook_of_a_second_container_waits_for_no_interpreter(
    host: Host, given: Callable[..., None]
) -> None:
    """It gets what the first one got; another one, without a way to Python, gets nothing."""
    given(True, False)
    conf = "/usr/local/lib/nvc/launch.conf"
    host.write("/etc/nvc/config.toml", f"{CONFIG_TOML}no-cgroups = true\n")
    try:
        first = gpus(host, "all")
        host.sh(f"mv {conf} {conf}.away")
        assert gpus(host, "all") == first and first[0] > 0
        refused = host.sh(f"docker run --rm --gpus device=0 {IMAGE} true", check=False)
        assert refused.returncode != 0 and "launch.conf" in refused.stderr
    finally:
        host.sh(f"mv {conf}.away {conf}", check=False)
        host.write("/etc/nvc/config.toml", CONFIG_TOML)

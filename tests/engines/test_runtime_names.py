"""nvc-runtime under NVIDIA's names: those with a mode in them go by it, whatever the configuration says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.bundle import default_config
from support.engines import CONFIG_TOML, Host

NAME = "/usr/local/bin/nvidia-container-runtime"
MODE_CDI = f'{CONFIG_TOML}\n[nvidia-container-runtime]\nmode = "cdi"\n'


@pytest.fixture
def edited(host: Host) -> Any:
    """Factory: what a runtime of a name makes of a bundle with these variables, and what it says."""

    def make(name: str, config: str, *variables: str, annotations: dict[str, str] | None = None) -> tuple[Any, str]:
        made = default_config(host.rootfs())
        made["process"]["env"] += variables
        made["annotations"] = annotations or {}
        host.sh("mkdir -p /run/b")
        host.write("/run/b/config.json", json.dumps(made))
        host.write("/etc/nvc/config.toml", config)
        host.sh(f"ln -sf nvc-runtime {name}")
        said = host.sh(f"{name} run --bundle /run/b c1", check=False).stderr
        return json.loads(host.read("/run/b/config.json")), said

    yield make
    host.write("/etc/nvc/config.toml", CONFIG_TOML)
    host.sh(f"rm -f {NAME}*")


def by_cdi(config: dict[str, Any]) -> bool:
    """Whether files are in the configuration, and not left to a hook."""
    return any("libcuda.so" in mount["destination"] for mount in config["mounts"])


def by_hook(config: dict[str, Any]) -> bool:
    return bool((config.get("hooks") or {}).get("prestart"))


def test_a_name_with_a_mode(edited: Any) -> None:
    ask = "NVIDIA_VISIBLE_DEVICES=0"
    for config in (CONFIG_TOML, MODE_CDI):
        made, _ = edited(f"{NAME}.cdi", config, ask)
        assert by_cdi(made) and not by_hook(made)
        made, _ = edited(f"{NAME}.legacy", config, ask)
        assert by_hook(made) and not by_cdi(made)
    assert by_cdi(edited(NAME, MODE_CDI, ask)[0]) and by_hook(edited(NAME, CONFIG_TOML, ask)[0])
    _, said = edited(f"{NAME}.legacy", CONFIG_TOML, "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0")
    assert "the mode is legacy" in said


def test_annotations_ask_by_the_name_alone(edited: Any) -> None:
    """The static program leaves a container alone whose words ask for nothing; here annotations may."""
    asks = {"cdi.k8s.io/gpus": "nvidia.com/gpu=0"}
    assert by_cdi(edited(f"{NAME}.cdi", CONFIG_TOML, annotations=asks)[0])
    assert not by_cdi(edited(NAME, CONFIG_TOML, annotations=asks)[0])

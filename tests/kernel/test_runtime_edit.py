"""What nvc-runtime writes into a bundle for settings that few use: groups, hooks, IMEX channels, no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from support import run, sources
from support.bundle import default_config

from nvc.base.errors import InputError
from nvc.frontends.runtime.edit import edit, is_gvisor
from nvc.request.config import Config, ConfigError

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
Edited = Callable[..., dict[str, Any]]
GVISOR = "/usr/local/bin/runsc-debug"


class Silent:
    """A log that nobody reads."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


@pytest.fixture
def edited(scratch: str, rootfs: Callable[[], str], driver: str, stage: str) -> Edited:
    """Factory: the configuration of a container that asks for GPUs, after nvc-runtime has had it."""

    def make(*variables: str, mode: str = "jit-cdi", runtime: str = "/bin/runc", **fields: Any) -> dict[str, Any]:
        document = default_config(rootfs())
        document["process"]["env"] += variables
        path = f"{scratch}/config.json"
        with open(path, "w", encoding="ascii") as out:
            json.dump(document, out)
        config = Config(root=driver, mode=mode, load_kmods=False, **fields)
        edit(config, scratch, path, f"{stage}/bin", Silent(), is_gvisor(runtime))
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found

    return make


def hooks(document: dict[str, Any]) -> list[str]:
    """The steps of its createContainer hooks."""
    words = [word for hook in document["hooks"].get("createContainer", ()) for word in hook["args"][1:]]
    return [word for word in words if not word.startswith("--")]


def nodes(document: dict[str, Any]) -> set[str]:
    """The paths of its device nodes."""
    return {node["path"] for node in document["linux"].get("devices", ())}


def test_hooks_that_the_configuration_leaves_out(edited: Edited) -> None:
    """By name or all; never the one that keeps limits."""
    asked = f"{VISIBLE}=0"
    every = hooks(edited(asked))
    assert "create-symlinks" in every and "enable-cuda-compat" in every
    fewer = hooks(edited(asked, jit_disabled_hooks=("create-symlinks",), disable_cuda_compat_lib_hook=True))
    assert fewer == [name for name in every if name not in ("create-symlinks", "enable-cuda-compat")]
    assert hooks(edited(asked, jit_disabled_hooks=("all",))) == ["simulate-proc", "slice-memory"]


@pytest.mark.parametrize("mode", ["jit-cdi", "auto"])
def test_groups_of_nodes_that_are_not_open_to_all(edited: Edited, driver: str, mode: str) -> None:
    """A program that is not root's may open them by its supplementary groups."""
    for name, mode_bits in (("nvidia0", 0o660), ("nvidiactl", 0o666)):
        os.chown(f"{driver}/dev/{name}", 0, 4711 if mode_bits == 0o660 else 4712)
        os.chmod(f"{driver}/dev/{name}", mode_bits)

    def groups(**fields: Any) -> list[int]:
        user = edited(f"{VISIBLE}=0", mode=mode, **fields)["process"]["user"]
        return user.get("additionalGids", [])

    assert groups() == [4711]
    assert groups(no_additional_gids=True) == []
    if mode == "jit-cdi":
        assert groups(jit_feature_flags=("no-additional-gids-for-device-nodes",)) == []


@pytest.mark.driver(imex_channels=(0, 3))
def test_imex_channels(edited: Edited) -> None:
    """A channel is a node; one that the host does not have is refused by its number."""
    made = edited(f"{VISIBLE}=0", "NVIDIA_IMEX_CHANNELS=3")
    path = "/dev/nvidia-caps-imex-channels/channel3"
    (node,) = [node for node in made["linux"]["devices"] if node["path"] == path]
    rules = [rule for rule in made["linux"]["resources"]["devices"] if rule.get("major") == node["major"]]
    assert [(rule["minor"], rule["access"]) for rule in rules] == [(3, "rw")]
    with pytest.raises(InputError, match="7: no such channel"):
        edited(f"{VISIBLE}=0", "NVIDIA_IMEX_CHANNELS=7")


@pytest.mark.parametrize(
    ("mode", "value"), [("jit-cdi", "none"), ("cdi", "nvidia.com/gpu=none"), ("auto", "none")]
)
def test_none_is_the_driver_without_a_gpu(edited: Edited, mode: str, value: str) -> None:
    made = edited(f"{VISIBLE}={value}", mode=mode)
    assert not {path for path in nodes(made) if path.removeprefix("/dev/nvidia").isdecimal()}
    assert made["hooks"], "the driver's files are given"


@pytest.mark.parametrize("mode", ["jit-cdi", "auto"])
def test_variables_of_a_swarm(edited: Edited, mode: str) -> None:
    made = edited("DOCKER_RESOURCE_GPU=1", mode=mode, swarm_resource=("DOCKER_RESOURCE_GPU",))
    assert "/dev/nvidia1" in nodes(made) and "/dev/nvidia0" not in nodes(made)


def test_the_refresh_units_see_modules_however_they_are_compressed() -> None:
    """depmod's list changes whatever the files are called; none of them is named."""
    texts = [sources.read(f"packaging/systemd/nvc-cdi-refresh.{kind}") for kind in ("path", "service")]
    assert "PathChanged=/lib/modules/%v/modules.dep\n" in texts[0]
    assert not [text for text in texts if ".ko" in text]


def test_flags_of_features_that_are_not_here(edited: Edited) -> None:
    """A configuration that names them is taken, and nothing changes."""
    flags = (
        *("enable-coherent-annotations", "disable-nvsandboxutils", "enable-explicit-driver-libraries"),
        *("disable-multiple-csv-devices", "disable-ipc-discoverer"),
    )
    found, plain = edited(f"{VISIBLE}=0", jit_feature_flags=flags), edited(f"{VISIBLE}=0")
    assert found.pop("root") != plain.pop("root") and found == plain


@pytest.mark.parametrize("mode", ["jit-cdi", "legacy"])
def test_hooks_have_the_names_by_which_runtimes_know_them(
    edited: Edited, stage: str, scratch: str, mode: str
) -> None:
    """gVisor does what NVIDIA's hook would do, and calls any other one, which cannot work there."""
    kind, name, program, field = {
        "legacy": ("prestart", "nvidia-container-runtime-hook", "nvc-hook", "hook_path"),
        "jit-cdi": ("createContainer", "nvidia-cdi-hook", "nvc-cdi-hook", "cdi_hook_path"),
    }[mode]
    for fields in ({}, {field: f"{scratch}/{name}"}):
        path = fields.get(field, f"{stage}/lib/nvc/bin/{name}")
        if fields:
            os.symlink(f"{stage}/bin/{program}", path)
        found = edited(f"{VISIBLE}=0", mode=mode, **fields)["hooks"][kind]
        assert {(hook["path"], hook["args"][0]) for hook in found} == {(path, program)}
        assert program in run(path, "--version" if mode == "jit-cdi" else "-version").stdout


def test_gvisor_runs_no_hooks_of_cdi(edited: Edited) -> None:
    """So libraries are mounted under the names by which programs open them."""
    made = edited(f"{VISIBLE}=0", runtime=GVISOR)
    assert not hooks(made) or hooks(made) == ["simulate-proc"]
    assert any(mount["destination"].endswith("/libcuda.so.1") for mount in made["mounts"])


@pytest.mark.parametrize(
    ("mode", "limited"), [("jit-cdi", ("NVC_VGPU_MEMORY=1GiB", {})), ("auto", ("A=b", {"vgpu_memory": "1GiB"}))]
)
def test_gvisor_has_no_slices(edited: Edited, mode: str, limited: tuple[str, dict[str, Any]]) -> None:
    """Nothing would keep the limit: the container would have the whole GPU."""
    variable, fields = limited
    with pytest.raises(InputError, match="slice: gVisor runs no hook that would keep its limits"):
        edited(f"{VISIBLE}=0", variable, mode=mode, runtime=GVISOR, **fields)
    edited(f"{VISIBLE}=0", variable, mode=mode, **fields)


def test_gvisor_has_no_slices_of_specifications(edited: Edited, scratch: str) -> None:
    edits: dict[str, Any] = {"deviceNodes": [{"path": "/dev/null"}]}
    sliced = {"hookName": "createContainer", "path": "/x", "args": ["nvc-cdi-hook", "slice-memory", "--slice=a"]}
    devices = [{"name": "whole", "containerEdits": edits},
               {"name": "part", "containerEdits": {**edits, "hooks": [sliced]}}]  # fmt: skip
    with open(f"{scratch}/other.json", "w", encoding="ascii") as out:
        json.dump({"cdiVersion": "0.5.0", "kind": "example.org/gpu", "devices": devices}, out)
    how = {"mode": "auto", "runtime": GVISOR, "cdi_spec_dirs": (scratch,)}
    assert "/dev/null" in nodes(edited(f"{VISIBLE}=example.org/gpu=whole", **how))
    with pytest.raises(InputError, match="example.org/gpu=part: gVisor runs no hook"):
        edited(f"{VISIBLE}=example.org/gpu=part", **how)


def test_gvisor_makes_its_nodes_itself(edited: Edited) -> None:
    """Those of the hook: newer ones do not start where the configuration has them, too."""
    assert nodes(edited(f"{VISIBLE}=0", mode="auto", runtime=GVISOR)) == set()


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"hook_path": "/bin/true"}, r"\[nvidia-container-runtime-hook\] path: .*: /bin/true is not nvc-hook"),
        ({"hook_path": "/nowhere/x"}, "/nowhere/x: no such file or directory; remove `path`"),
        ({"cdi_hook_path": "/bin/true"}, r"\[nvidia-ctk\] path: .*: /bin/true is not nvc-cdi-hook"),
    ],
)
def test_other_programs_are_no_hooks(edited: Edited, fields: dict[str, str], cause: str) -> None:
    """They would not keep limits."""
    with pytest.raises(ConfigError, match=cause):
        edited(f"{VISIBLE}=0", mode="legacy" if "hook_path" in fields else "jit-cdi", path="/c", **fields)


@pytest.mark.parametrize("device", ["nvidia.com/gpu=all", "runtime.nvidia.com/gpu=all"])
def test_a_device_of_cdi_gives_all_that_the_driver_has(edited: Edited, driver: str, device: str) -> None:
    """Video too, and links for those who build programs."""
    made = edited(f"{VISIBLE}={device}", mode="auto")
    words = [word for hook in made["hooks"]["createContainer"] for word in hook["args"]]
    for name in ("libcuda.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-ml.so"):
        assert any(word.startswith("--link=") and word.endswith(f"/{name}") for word in words), name
    assert not any("i386" in mount["destination"] for mount in made["mounts"])

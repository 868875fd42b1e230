"""Devices beside GPUs: specifications of their kinds, and containers that ask for them by NVIDIA's variables."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest
from support.bundle import default_config
from support.ctk import Ctk, refused

from nvc.frontends.cdi.validate import problems
from nvc.frontends.runtime.edit import edit
from nvc.request.config import Config

#: Where another driver has made its nodes: of each kind, and what does not belong to it.
NODES = {
    "gds": ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
    "mofed": ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"),
    "gdrcopy": ("/dev/gdrdrv",),
    "nvswitch": ("/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"),
}
OTHERS = ("/dev/infiniband/umad0", "/dev/nvidia-nvlink")
VARIABLES = [f"NVIDIA_{kind.upper()}=enabled" for kind in NODES]


@pytest.fixture
def nodes(driver: str) -> str:
    """The driver's root, which has the nodes of every kind; their numbers are those of /dev/zero."""
    for path in (*(path for paths in NODES.values() for path in paths), *OTHERS):
        os.makedirs(os.path.dirname(driver + path), exist_ok=True)
        os.mknod(driver + path, stat.S_IFCHR, os.makedev(1, 5))
        os.chmod(driver + path, 0o660)
    os.makedirs(f"{driver}/run/udev")
    with open(f"{driver}/etc/cufile.json", "w", encoding="ascii") as out:
        out.write("{}\n")
    return driver


def spec(ctk: Ctk, root: str, *words: str) -> dict[str, Any]:
    done = ctk("cdi", "generate", "--format=json", f"--driver-root={root}", *words)
    found: dict[str, Any] = json.loads(done.stdout)
    assert not problems(found)
    return found


def paths(edits: dict[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(node["path"] for node in edits.get("deviceNodes", ())))


@pytest.mark.parametrize("kind", NODES)
def test_a_specification_of_a_kind(ctk: Ctk, nodes: str, kind: str) -> None:
    found = spec(ctk, nodes, f"--mode={kind}")
    (device,) = found["devices"]
    assert found["kind"] == f"nvidia.com/{kind}" and device["name"] == "all"
    assert paths(device["containerEdits"]) == NODES[kind]
    for node in device["containerEdits"]["deviceNodes"]:
        assert node["hostPath"] == nodes + node["path"] and node["permissions"] == "rw"
        assert (node["major"], node["minor"], node["fileMode"]) == (1, 5, 0o660)
    mounts = {mount["containerPath"]: mount for mount in device["containerEdits"].get("mounts", ())}
    assert set(mounts) == ({"/run/udev", "/etc/cufile.json"} if kind == "gds" else set())
    assert all({"ro", "nosuid", "nodev", "noexec"} <= set(mount["options"]) for mount in mounts.values())


def test_files_that_others_can_change_are_left_out(ctk: Ctk, nodes: str) -> None:
    os.chown(f"{nodes}/etc/cufile.json", 1001, 1001)
    os.chmod(f"{nodes}/run/udev", 0o777)
    (device,) = spec(ctk, nodes, "--mode=gds")["devices"]
    assert "mounts" not in device["containerEdits"]


@pytest.mark.parametrize("kind", [*NODES, "imex"])
def test_a_host_without_them(ctk: Ctk, driver: str, scratch: str, kind: str) -> None:
    """No file is written: engines refuse one that names no device."""
    path = f"{scratch}/spec.yaml"
    done = ctk("cdi", "generate", f"--driver-root={driver}", f"--mode={kind}", f"--output={path}", check=False)
    refused(done, "load the driver that makes them")
    assert not os.path.exists(path)


@pytest.mark.driver(imex_channels=(0, 3))
def test_channels_of_imex(ctk: Ctk, driver: str) -> None:
    found = spec(ctk, driver, "--mode=imex")
    assert found["kind"] == "nvidia.com/imex-channel"
    assert [device["name"] for device in found["devices"]] == ["0", "3", "all"]
    assert paths(found["devices"][1]["containerEdits"]) == ("/dev/nvidia-caps-imex-channels/channel3",)
    assert len(found["devices"][2]["containerEdits"]["deviceNodes"]) == 2
    for word in ("3", "channel3"):
        one = spec(ctk, driver, "--mode=imex", f"--device-id={word}", "--no-all-device")
        assert [device["name"] for device in one["devices"]] == ["3"]
    words = ["cdi", "generate", f"--driver-root={driver}", "--mode=imex", "--device-id=7"]
    refused(ctk(*words, check=False), "7: no such channel")


@pytest.mark.driver(imex_channels=(0,), mig=("1g.10gb",))
def test_management_has_every_node(ctk: Ctk, nodes: str) -> None:
    """Those of MIG's rights and of IMEX too, not those of other drivers. No hook makes slices of it."""
    found = spec(ctk, nodes, "--mode=management")
    (device,) = found["devices"]
    assert (found["kind"], device["name"]) == ("management.nvidia.com/gpu", "all")
    given = paths(device["containerEdits"])
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(given)
    assert {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps-imex-channels/channel0"} <= set(given)
    assert not set(given) & {path for kind in NODES.values() for path in kind} and not set(given) & set(OTHERS)
    assert len(given) == len(set(given)) and "deviceNodes" not in found["containerEdits"]
    assert any("libnvidia-ml" in mount["containerPath"] for mount in found["containerEdits"]["mounts"])
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["containerEdits"]["env"]
    assert not [hook for hook in found["containerEdits"]["hooks"] if "slice-memory" in hook["args"]]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mode=gds", "--device-id=0"], "gds is one device, all"),
        (["--mode=management", "--device-id=0"], "management is one device, all"),
        (["--mode=mofed", "--disable-hook=all"], "--disable-hook: is only for specifications of GPUs"),
        (["--mode=imex", "--device-name-strategy=uuid"], "--device-name-strategy: is only for"),
    ],
)
def test_options_that_say_something_of_gpus(ctk: Ctk, nodes: str, words: list[str], why: str) -> None:
    refused(ctk("cdi", "generate", f"--driver-root={nodes}", *words, check=False), why)


class Steps:
    """A log whose lines are kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_: None


@pytest.fixture
def edited(scratch: str, rootfs: Callable[[], str], stage: str) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Factory: what nvc-runtime makes of a container that asks for GPU 0 with variables, and its log."""

    def make(root: str, *variables: str, mode: str = "auto", **fields: Any) -> tuple[dict[str, Any], list[str]]:
        document = default_config(rootfs())
        document["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", *variables]
        path, log = f"{scratch}/config.json", Steps()
        with open(path, "w", encoding="ascii") as out:
            json.dump(document, out)
        edit(Config(root=root, mode=mode, load_kmods=False, **fields), scratch, path, f"{stage}/bin", log)
        with open(path, encoding="utf-8") as file:
            return json.load(file), log.lines

    return make


def given(document: dict[str, Any]) -> set[str]:
    return {node["path"] for node in document["linux"]["devices"]}


@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_the_operator_switches_kinds_on(edited: Any, nodes: str, mode: str) -> None:
    document, log = edited(nodes, *VARIABLES, mode=mode, kinds=("gds", "mofed"))
    assert set(NODES["gds"]) | set(NODES["mofed"]) <= given(document)
    assert not given(document) & {*NODES["gdrcopy"], *NODES["nvswitch"]}
    assert "/etc/cufile.json" in {mount["destination"] for mount in document["mounts"]}
    rules = document["linux"]["resources"]["devices"]
    assert {"allow": True, "type": "c", "major": 1, "minor": 5, "access": "rw"} in rules
    assert "NVIDIA_GDRCOPY is ignored: `kinds` in [nvc] does not name gdrcopy" in log


@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_an_image_alone_gets_none(edited: Any, nodes: str, mode: str) -> None:
    document, _ = edited(nodes, *VARIABLES, mode=mode)
    assert not given(document) & {path for kind in NODES.values() for path in kind}


def test_a_container_starts_without_what_the_host_has_not(edited: Any, driver: str) -> None:
    document, log = edited(driver, "NVIDIA_GDRCOPY=enabled", kinds=("gdrcopy",))
    assert "/dev/nvidia0" in given(document) and "gdrcopy: none on this host" in log

"""Steps of nvc-cdi-hook for programs with graphics, in real containers: they go by the nodes that are there."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.bundle import Bundle
from support.cdi import add_hook, mount

PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
PCI = "/dev/dri/by-path/pci-0000:3b:00.0"
LINKS = [f"--link=../card1::{PCI}-card", f"--link=../renderD128::{PCI}-render"]


def add_node(bundle: Bundle, path: str, major: int, minor: int) -> None:
    """A character device of the container, as a specification has it."""
    node = {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
    bundle.config["linux"].setdefault("devices", []).append(node)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_links_to_nodes_that_are_there(runc_bundle: Any, stage: str, runtime: str) -> None:
    """The card is this container's, the render node is not."""
    bundle = runc_bundle()
    add_node(bundle, "/dev/dri/card1", 226, 1)
    add_hook(bundle, stage, "create-device-links", *LINKS)
    done = bundle.run(runtime, f"ls {os.path.dirname(PCI)}; readlink {PCI}-card; ls {PCI}-card")
    assert done.stdout.split() == [os.path.basename(PCI) + "-card", "../card1", f"{PCI}-card"]


def test_no_links_without_nodes(runc_bundle: Any, stage: str) -> None:
    bundle = runc_bundle()
    add_hook(bundle, stage, "create-device-links", *LINKS)
    assert bundle.run("runc", "ls -d /dev/dri || echo none").stdout == "none\n"


def test_the_hosts_dev_is_left_alone(runc_bundle: Any, stage: str) -> None:
    """As with `--volume /dev:/dev`."""
    before = os.listdir("/dev")
    bundle = runc_bundle()
    bundle.config["mounts"] = [one for one in bundle.config["mounts"] if not one["destination"].startswith("/dev")]
    mount(bundle, "/dev", "/dev")
    bundle.config["mounts"][-1]["options"] = ["rbind", "rprivate"]
    add_hook(bundle, stage, "create-device-links", f"--link=../null::{PCI}-card")
    bundle.run("runc", "true")
    assert os.listdir("/dev") == before


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_the_profile_names_the_gpus_that_are_there(runc_bundle: Any, stage: str, runtime: str) -> None:
    """A bit for each minor; control nodes, other numbers and files with such a name do not count."""
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = True
    for path, major, minor in (
        ("/dev/nvidia1", 195, 1), ("/dev/nvidia3", 195, 3), ("/dev/nvidiactl", 195, 255), ("/dev/nvidia5", 195, 6),
    ):  # fmt: skip
        add_node(bundle, path, major, minor)
    add_hook(bundle, stage, "update-application-profile")
    assert '["EGLVisibleDGPUDevices",10]' in bundle.run(runtime, f"cat {PROFILE}").stdout


def test_no_profile_without_a_gpu(runc_bundle: Any, stage: str) -> None:
    bundle = runc_bundle()
    add_hook(bundle, stage, "update-application-profile")
    assert bundle.run("runc", "ls /etc/nvidia || echo none").stdout == "none\n"

"""nvc-nri and a driver that answers late, or whose settings change: the runtime waits for 2 s and no longer."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from support import PATIENCE
from support.drivertree import DriverTree
from support.nvml import NvmlTree, built, nvml_tree  # noqa: F401

from nvc.base.errors import InitializationError, InputError
from nvc.frontends.nri import main
from nvc.frontends.nri.main import Giver, Settings
from nvc.request.config import Config

CONTAINER = SimpleNamespace(name="c", env=(), linux=SimpleNamespace(namespaces=()))
SETTINGS = Settings(hook_path="/usr/bin/nvc-cdi-hook")


def pod(**annotations: str) -> SimpleNamespace:
    return SimpleNamespace(
        name="p", namespace="n", annotations={f"nri.nvc.dev/{name}": value for name, value in annotations.items()}
    )


def with_a_gpu(tree: DriverTree) -> str:
    """The root of a driver with one GPU, whose NVML is the tree's."""
    tree.simulated()
    tree.kernel_side()
    tree.gpu("0000:1b:00.0", 0)
    tree.library("libcuda")
    tree.cache()
    tree.node("/dev/nvidiactl", 195, 255)
    tree.node("/dev/nvidia0", 195, 0)
    return tree.path


def test_a_driver_that_answers_late(
    nvml_tree: NvmlTree, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """Refused in time, while one child looks on; what that has found serves the next container."""
    monkeypatch.setattr(main, "ANSWER", 0.2)
    tree = nvml_tree("LATE", 'NAME="Test GPU (simulated)"')
    config = Config(root=with_a_gpu(tree), load_kmods=False, timeout=PATIENCE)
    os.mkfifo(tree.full("/gate"))
    os.chmod(tree.full("/gate"), 0o644)
    read, write = os.pipe()
    giver = Giver(SETTINGS, lambda: config, lambda: os.close(write))
    children = set()
    for _ in range(2):
        with pytest.raises(InitializationError, match="timed out"):
            giver.adjust(pod(devices="none"), CONTAINER)
        children.add(giver._child)
    os.close(write)
    assert os.read(read, 1) == b"", "the child has let go of the runtime's socket"
    os.close(read)
    (child,) = children
    with open(tree.full("/gate"), "wb"):
        assert os.waitpid(child, 0)[1] == 0
    assert giver.adjust(pod(devices="none"), CONTAINER).mounts


def test_settings_of_now(nvml_tree: NvmlTree) -> None:  # noqa: F811
    """Bounds that the operator sets hold for the next container."""
    root = with_a_gpu(nvml_tree("NONE", 'NAME="Test GPU (simulated)"'))
    found = [Config(root=root, load_kmods=False)]
    giver = Giver(SETTINGS, lambda: found[0], lambda: None)
    assert giver.adjust(pod(devices="none"), CONTAINER).mounts
    found[0] = found[0].replace(vgpu_memory_max="1GiB")
    with pytest.raises(InputError, match="annotation nri.nvc.dev/memory"):
        giver.adjust(pod(devices="0", memory="2GiB"), CONTAINER)

"""Which of two ways a container is given its GPUs, and what it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.frontends.runtime.choice import CLAIM_KINDS, MANAGEMENT, Choice, choose
from nvc.kubernetes import names
from nvc.request.config import Config
from nvc.request.oci import Container, Mount


def chosen(visible: str | None = None, mode: str = "auto", **more: Any) -> Choice | None:
    """The choice for a container with this NVIDIA_VISIBLE_DEVICES."""
    environment = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    settings = {name: more.pop(name) for name in list(more) if name in Config._fields}
    return choose(Container("/r", environment, **more), Config(mode=mode, **settings), [])


def devices(found: Choice | None) -> tuple[str, ...]:
    assert found is not None and found.request is not None
    return found.request.devices


@pytest.mark.parametrize(
    ("mode", "way"),
    [("auto", "hook"), ("hook", "hook"), ("legacy", "hook"), ("cdi", "cdi"), ("jit-cdi", "cdi")],
)
def test_plain_selectors(mode: str, way: str) -> None:
    found = chosen("0,1", mode)
    assert found is not None and found.mode == way and devices(found) == ("0", "1")


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("nvidia.com/gpu=all", "all"), ("nvidia.com/gpu=0:1", "0:1"), ("nvidia.com/gpu=gpu1", "1"),
        ("nvidia.com/gpu=mig0:1", "0:1"), ("runtime.nvidia.com/gpu=GPU-1-2", "GPU-1-2"),
        ("nvidia.com/gpu=gpux", "gpux"),
    ],
)  # fmt: skip
def test_qualified_names_of_gpus(name: str, selector: str) -> None:
    found = chosen(name)
    assert found is not None and found.mode == "cdi" and devices(found) == (selector,) and found.names == ()


@pytest.mark.parametrize(
    ("variables", "capabilities"),
    [
        ({}, {"compute", "display", "graphics", "ngx", "utility", "video"}),
        ({"NVIDIA_DRIVER_CAPABILITIES": ""}, {"compute", "display", "graphics", "ngx", "utility", "video"}),
        ({"NVIDIA_DRIVER_CAPABILITIES": "video"}, {"video"}),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_a_device_of_cdi_has_all_capabilities(
    variables: dict[str, str], capabilities: set[str], mode: str
) -> None:
    """Unless the container says which; a plain selector has the two of the hook."""
    for visible, expected in (("nvidia.com/gpu=0", capabilities), ("0", {"compute", "utility"})):
        environment = {"NVIDIA_VISIBLE_DEVICES": visible, **variables}
        found = choose(Container("/r", environment), Config(mode=mode), [])
        assert found is not None and found.request is not None
        if visible != "0" or not any(variables.values()):
            assert set(found.request.capabilities) == expected


@pytest.mark.parametrize("kind", ["claim", "slice"])
@pytest.mark.parametrize("mode", ["auto", "cdi", "jit-cdi"])
def test_devices_of_claims_are_refused(mode: str, kind: str) -> None:
    """Who knows the UID of another pod's claim could join its slice."""
    name = f"{names.CDI_VENDOR}/{kind}=1b6e-0"
    beside = f"nvidia.com/gpu=0,{name}"
    mount = Mount("/dev/null", f"/var/run/nvidia-container-devices/cdi/{names.CDI_VENDOR}/{kind}/1b6e-0")
    asked: list[dict[str, Any]] = [{"visible": name}, {"visible": beside, "privileged": True}]
    asked.append({"mounts": (mount,), "accept_volume_mounts": True})
    if mode != "auto":
        asked.append({"annotations": {"cdi.k8s.io/a": name}})
    for one in asked:
        with pytest.raises(InputError, match="belongs to a claim"):
            chosen(mode=mode, **one)


def test_classes_of_claims() -> None:
    wanted = {f"{names.CDI_VENDOR}/{kind}" for kind in (names.CDI_CLASS, names.CDI_SLICE_CLASS)}
    assert set(CLAIM_KINDS) == wanted


def test_a_configured_kind() -> None:
    assert devices(chosen("a.com/b=0", cdi_default_kind="a.com/b")) == ("0",)


def test_all_where_the_operator_manages_gpus() -> None:
    """NVIDIA's GPU operator has pods that manage GPUs ask for `all`, with the right to configure MIG."""
    kind = {"mode": "cdi", "cdi_default_kind": MANAGEMENT}
    assert chosen("all", **kind) == Choice("cdi", None, (f"{MANAGEMENT}=all",))
    assert devices(chosen("0", **kind)) == ("0",) and devices(chosen("nvidia.com/gpu=0", **kind)) == ("0",)
    for unlike in ({**kind, "mode": "jit-cdi"}, {**kind, "vgpu_memory": "1GiB"}):
        assert devices(chosen("all", **unlike)) == ("all",), "a part of each GPU stays a part"


@pytest.mark.parametrize(
    "visible", ["nvidia.com/gpu=0,1", "nvidia.com/gpu=0,void", "a.com/b=", "a.com/b=-x", "9/b=1"]
)
def test_names_that_are_wrong(visible: str) -> None:
    with pytest.raises(InputError):
        chosen(visible)


@pytest.mark.parametrize("mode", ["hook", "legacy"])
def test_a_mode_that_has_no_cdi(mode: str) -> None:
    with pytest.raises(InputError, match=f"the mode is {mode}"):
        chosen("nvidia.com/gpu=0", mode)


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="not supported"):
        chosen("0", "csv")


def test_annotations_count_in_the_modes_of_cdi() -> None:
    annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=1,a.com/b=c", "other": "nvidia.com/gpu=0"}
    found = chosen("0", "cdi", annotations=annotations)
    assert found is not None and devices(found) == ("1",) and found.names == ("a.com/b=c",)
    assert devices(chosen("0", "auto", annotations=annotations)) == ("0",)


def test_annotations_are_not_the_images() -> None:
    """A cluster that ignores images' variables still gives what its own components wrote."""
    annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=1"}
    found = chosen(None, "cdi", annotations=annotations, accept_environment_unprivileged=False)
    assert devices(found) == ("1",)


@pytest.mark.parametrize("tail", ["cdi/nvidia.com/gpu/1", "cdi/nvidia.com/gpu=1"])
def test_volume_mounts(tail: str) -> None:
    mounts = (Mount("/dev/null", f"/var/run/nvidia-container-devices/{tail}"), Mount("/a", "/b"))
    found = chosen("0", accept_volume_mounts=True, mounts=mounts, accept_environment_unprivileged=False)
    assert found is not None and found.mode == "cdi" and devices(found) == ("1",)
    assert chosen(None, mounts=mounts) is None
    other = (mounts[0].replace(bind=False),)
    assert chosen(None, accept_volume_mounts=True, mounts=other) is None


def test_variables_that_do_not_count() -> None:
    for name in ("nvidia.com/gpu=0", "a.com/b=0"):
        assert chosen(name, accept_environment_unprivileged=False) is None
        assert chosen(name, accept_environment_unprivileged=False, privileged=True) is not None


def test_a_value_without_end() -> None:
    with pytest.raises(InputError, match="items, at most"):
        chosen(",".join(f"a.com/b={n}" for n in range(5000)))

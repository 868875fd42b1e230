"""What NVML reports of a simulated GPU becomes a taint and health of pods, and goes away again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import until
from support.apiserver import ApiServer
from support.kubelet import Kubelet, Plugin, forget
from support.vgpu import ensure_shim

from nvc.kubernetes.protocol import health_pb2


class Faults:
    """The faults of the GPUs of a simulated driver; written at once or not at all."""

    def __init__(self, root: str) -> None:
        self.path = f"{root}/proc/driver/nvidia/sim/faults"
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        self.lines = list(lines)
        with open(f"{self.path}.new", "w", encoding="ascii") as file:
            file.write("".join(f"{line}\n" for line in lines))
        os.rename(f"{self.path}.new", self.path)


@pytest.fixture
def faults(driver: str) -> Faults:
    return Faults(driver)


@pytest.fixture
def quick(stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet) -> Iterator[Plugin]:
    """A plugin for which a GPU is well again at once."""
    ensure_shim(stage, scratch)
    found = Plugin(stage, scratch, driver, kubelet, api)
    found.start("--mode=dra,device-plugin", "--health-quiet=2", "--health-interval=0.2")
    kubelet.register()
    yield found
    found.close()
    forget()


def taints(api: ApiServer) -> dict[str, list[dict[str, Any]]]:
    """Of each published device."""
    return {one["name"]: one.get("taints", []) for slice in api.slices() for one in slice["spec"]["devices"]}


def uuid_of(api: ApiServer, name: str) -> str:
    devices = [one for slice in api.slices() for one in slice["spec"]["devices"] if one["name"] == name]
    return str(devices[0]["attributes"]["uuid"]["string"])


def test_faults_come_and_go(quick: Plugin, kubelet: Kubelet, api: ApiServer, faults: Faults) -> None:
    kubelet.serve()
    gpu = kubelet.resources(1)["nvidia.com/gpu"]
    health = kubelet.health()
    healthy, unhealthy = health_pb2.HEALTHY, health_pb2.UNHEALTHY

    def until_health(name: str, wanted: int) -> Any:
        for devices in health:
            if devices[name].health == wanted:
                return devices[name]
        raise AssertionError("the stream ended")

    until_health("gpu-1", healthy)
    api.wait(api.slices)
    assert set(taints(api)) == {"gpu-0", "gpu-1"} and not any(taints(api).values())
    uuid = uuid_of(api, "gpu-1")
    quick.said(f"{uuid} is healthy")
    for line, key, value, effect, text in (
        ("remapping 1", "remapping", "pending", "NoSchedule", "remapping of its memory waits for a reset"),
        ("lost 1", "lost", None, "NoExecute", "NVML has lost the GPU"),
        ("xid 94", "xid", "94", "NoSchedule", "Xid 94"),
    ):
        faults.say(f"{uuid} {line}")
        told = until_health("gpu-1", unhealthy)
        assert told.message == text and told.device.pool_name == "node-a"
        assert gpu.until(1) and api.wait(lambda: taints(api)["gpu-1"])
        (taint,) = taints(api)["gpu-1"]
        assert (taint["key"], taint.get("value"), taint["effect"]) == (f"gpu.nvc.dev/{key}", value, effect)
        assert taints(api)["gpu-0"] == []
        faults.say()
        until_health("gpu-1", healthy)
        api.wait(lambda: not taints(api)["gpu-1"])
        assert len(gpu.until(2)) == 2


def test_a_program_s_mistake_is_nobody_s_fault(quick: Plugin, api: ApiServer, faults: Faults) -> None:
    """Beside one that counts: both are told at once, and one of them makes a taint."""
    api.wait(api.slices)
    uuid = uuid_of(api, "gpu-0")
    quick.said(f"{uuid} is healthy")
    faults.say(f"{uuid} xid 31", f"{uuid} xid 94")
    api.wait(lambda: taints(api)["gpu-0"])
    assert [taint["value"] for taint in taints(api)["gpu-0"]] == ["94"]


@pytest.mark.driver(gpus=1, mig=("2x1g.10gb",))
def test_a_mig_device_is_as_ill_as_its_gpu(quick: Plugin, api: ApiServer, faults: Faults) -> None:
    api.wait(api.slices)
    parent = next(iter(api.slices()))["spec"]["devices"][0]["attributes"]["parentUUID"]["string"]
    quick.said(f"{parent} is healthy")
    faults.say(f"{parent} remapping 2")
    api.wait(lambda: all(taints(api).values()))
    assert len(taints(api)) == 2
    profiles = [one["attributes"]["profile"] for one in api.slices()[0]["spec"]["devices"]]
    assert profiles == [{"string": "1g.10gb"}] * 2


def test_nvml_that_ends_is_asked_again(quick: Plugin, api: ApiServer) -> None:
    """The process that runs the vendor's code may be killed by it at any time."""
    api.wait(api.slices)
    uuid = uuid_of(api, "gpu-0")
    quick.said(f"{uuid} is healthy")
    worker = quick.asker()
    with open(f"/proc/{worker}/status", encoding="ascii") as file:
        assert "\nUid:\t65534\t65534\t65534\t65534\n" in file.read()
    os.kill(worker, 9)
    quick.said(f"{uuid} is unknown: NVML: the process that asks NVML has ended")

    def times() -> int:
        with open(quick.log, encoding="utf-8") as file:
            return file.read().count(f"{uuid} is healthy")

    until(lambda: times() > 1)


@pytest.mark.driver(gpus=8)
def test_the_first_round_is_told(
    stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet
) -> None:
    """NVML answers before the plugin has gone through its sizes, and then not for 99 seconds."""
    ensure_shim(stage, scratch)
    plugin = Plugin(stage, scratch, driver, kubelet, api)
    plugin.config = f"{scratch}/config.toml"
    with open(plugin.config, "w", encoding="ascii") as file:
        file.write("".join(f'[[nvc.vgpu]]\nname = "s{n}"\nmemory = "{n}GiB"\n' for n in range(1, 65)))
    try:
        plugin.start("--mode=dra,device-plugin", "--health-interval=99")
        began = time.monotonic()
        plugin.said(": ready")
        kubelet.register()
        for devices in kubelet.health():
            if all(one.health == health_pb2.HEALTHY for one in devices.values()):
                break
        said = plugin.said(" is healthy")
        # Sooner than the second round, however busy the machine is.
        assert len(devices) == 8 and "unknown" not in said and time.monotonic() - began < 99
    finally:
        plugin.close()

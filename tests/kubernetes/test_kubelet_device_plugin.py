"""The device plugin of nvc-kubelet-plugin: kubelet's real protocol, a simulated driver, no API server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import grpc
import pytest
from support.apiserver import ApiServer, claim, result
from support.kubelet import NODE, Kubelet, Plugin, Resource, forget
from support.vgpu import ensure_shim

SIZES = """
[[nvc.vgpu]]
name = "small"
memory = "20GiB"
cores = 20
[[nvc.vgpu]]
name = "large"
memory = "40GiB"
policy = "weight"
"""


@pytest.fixture
def api(scratch: str) -> Iterator[ApiServer]:
    server = ApiServer(f"{scratch}/api", served=False)
    server.node(NODE)
    yield server
    server.close()


@pytest.fixture
def kubelet(scratch: str) -> Iterator[Kubelet]:
    found = Kubelet(f"{scratch}/kubelet")
    found.serve()
    yield found
    found.close()


@pytest.fixture
def plugin(stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet) -> Iterator[Plugin]:
    """A plugin with two sizes that has not been started."""
    ensure_shim(stage, scratch)
    found = Plugin(stage, scratch, driver, kubelet, api)
    found.config = f"{scratch}/config.toml"
    with open(found.config, "w", encoding="ascii") as file:
        file.write(SIZES)
    yield found
    found.close()
    forget()


def healthy(resource: Resource) -> list[str]:
    return [device.ID for device in resource.listed() if device.health == "Healthy"]


def test_sizes_share_the_memory_of_a_gpu(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """What no longer fits is unhealthy; what somebody gives back can be had again."""
    plugin.start()  # the API server has no DRA
    found = kubelet.resources(3)
    gpu, small, large = (found[f"nvidia.com/{name}"] for name in ("gpu", "vgpu-small", "vgpu-large"))
    gpus, smalls, larges = healthy(gpu), healthy(small), healthy(large)
    # 81,559 MiB each: three times 20 GiB, once 40 GiB.
    assert (len(gpus), len(smalls), len(larges)) == (2, 6, 2)
    names = small.allocate(smalls[0])
    assert names == [f"k8s.gpu.nvc.dev/vgpu={gpus[0]}:small"]
    assert gpu.until(1) == gpus[1:]
    # One of 40 GiB still fits beside it; two more of 20 GiB do not fit beside both.
    assert large.allocate(larges[0]) == [f"k8s.gpu.nvc.dev/vgpu={gpus[0]}:large"]
    assert len(small.until(4)) == 4
    with pytest.raises(grpc.RpcError) as refused:
        small.allocate(smalls[2])
    said = str(refused.value)
    assert "small does not fit on gpu-0" in said and "are free" in said and "NVC-2401" in said
    with pytest.raises(grpc.RpcError, match="a whole GPU does not fit on gpu-0"):
        gpu.allocate(gpus[0])
    # kubelet says who has what: the slices are gone, somebody has a whole GPU.
    kubelet.uses(gpu=(gpus[1],), vgpu_large=(larges[0],), vgpu_small=(smalls[0],))
    gpu.allocate(gpus[1])
    kubelet.uses(gpu=(gpus[1],))
    assert gpu.until(2) == gpus
    assert large.until(1) == larges[:1] and small.until(3) == smalls[:3]


def test_preferred_ids(plugin: Plugin, kubelet: Kubelet) -> None:
    """Packed: the GPU that has least left. Several for one container: of different GPUs."""
    plugin.start("--mode=device-plugin")
    found = kubelet.resources(3)
    small, large = found["nvidia.com/vgpu-small"], found["nvidia.com/vgpu-large"]
    larges, smalls = healthy(large), healthy(small)
    large.allocate(larges[1])
    assert small.prefer(smalls, 1) == [smalls[3]]
    assert small.prefer(smalls, 2) == [smalls[3], smalls[0]]
    assert small.prefer(smalls, 2, (smalls[1],)) == [smalls[1], smalls[3]]
    with pytest.raises(grpc.RpcError, match="one slice of a device"):
        small.allocate(smalls[0], smalls[1])
    plugin.close()
    plugin.start("--mode=device-plugin", "--placement=distributed")
    found = kubelet.resources(3)
    found["nvidia.com/vgpu-large"].allocate(larges[1])
    assert found["nvidia.com/vgpu-small"].prefer(smalls, 1) == [smalls[0]]


def test_kubelet_starts_again(plugin: Plugin, kubelet: Kubelet) -> None:
    """It removes all sockets of plugins; each is there again and registered."""
    plugin.start("--mode=device-plugin")
    first = kubelet.resources(3)
    kubelet.serve()
    again = kubelet.resources(3)
    assert sorted(again) == sorted(first)
    assert len(healthy(again["nvidia.com/gpu"])) == 2
    assert plugin.close() == 0
    assert os.listdir(kubelet.device_plugins) == ["kubelet.sock"]


def test_nothing_is_given_while_kubelet_does_not_say_who_has_what(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start("--mode=device-plugin")
    small = kubelet.resources(3)["nvidia.com/vgpu-small"]
    ids = healthy(small)
    # Its socket stays: calls at one time share a connection, so one beside the plugin's own look would be answered.
    kubelet.silent = True
    with pytest.raises(grpc.RpcError, match="ask kubelet who has devices"):
        small.allocate(ids[0])
    kubelet.silent = False
    assert small.allocate(ids[0])


@pytest.mark.driver(gpus=1, mig=("7x1g.10gb",))
def test_mig_devices(plugin: Plugin, kubelet: Kubelet, driver: str) -> None:
    """Their one resource has the name of the profile: before NVML has told it, and after NVML has died, too."""
    faults = f"{driver}/proc/driver/nvidia/sim/faults"
    os.mkfifo(faults)
    os.chmod(faults, 0o644)
    plugin.start("--mode=device-plugin", "--health-interval=0.2")
    plugin.said(": ready")
    with open(faults, "wb"):  # NVML is being asked, and waits for what this says
        os.unlink(faults)
    (mig,) = kubelet.resources(1).values()
    assert mig.name == "nvidia.com/mig-1g.10gb"
    ids = mig.until(7)
    assert all(id.startswith("MIG-") for id in ids)
    assert mig.allocate(ids[2]) == [f"k8s.gpu.nvc.dev/gpu={ids[2]}"]
    said = plugin.said("size large is not offered")
    assert "size small is not offered: input error: [[nvc.vgpu]] small: 20GiB" in said
    os.kill(plugin.asker(), signal.SIGKILL)
    plugin.said("the process that asks NVML has ended")
    kubelet.serve()
    (again,) = kubelet.resources(1).values()
    assert again.name == mig.name and again.until(7) == ids


def test_both_modes_on_one_gpu(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """What pods have by one is not given away by the other."""
    api.served = True
    plugin.start("--mode=dra,device-plugin")
    found = kubelet.resources(3)
    kubelet.register()
    larges = healthy(found["nvidia.com/vgpu-large"])
    found["nvidia.com/vgpu-large"].allocate(larges[0])
    claims = [
        claim("a", [result("r", "gpu-0", "60Gi", "10")]),
        claim("b", [result("r", "gpu-1", "60Gi", "10")]),
        claim("c", [result("r", "gpu-0", "30Gi", "10")]),
        claim("d", [result("r", "gpu-0", "30Gi", "10")]),
    ]
    for made in claims:
        api.put(f"/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/{made['metadata']['name']}", made)
    reply = kubelet.prepare(*claims)
    assert "pods have gpu-0 by the device plugin" in reply[claims[0]["metadata"]["uid"]].error
    assert reply[claims[1]["metadata"]["uid"]].error == ""
    # With the pod alone either would fit. They are prepared at the same time.
    one, other = sorted(reply[made["metadata"]["uid"]].error for made in claims[2:])
    assert one == "" and "pods have gpu-0 by the device plugin" in other
    with pytest.raises(grpc.RpcError, match="large does not fit on gpu-1"):
        found["nvidia.com/vgpu-large"].allocate(larges[1])

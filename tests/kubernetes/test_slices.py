"""Slices of GPUs by claims: what pods see, what they may take, and what the scheduler counts."""

from __future__ import annotations

import json

import pytest
from support.cluster import Cluster
from support.cluster.pods import NVC, WAIT, Space, pod, template, until_nothing_is_left

IDLE = "exec sleep infinity"
ONE_GPU = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.nvc.dev"].index == 0'}}]}
#: Everything that nvc, NVIDIA's toolkit, HAMi and cGPU obey elsewhere.
VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "all",
    "NVC_VGPU_MEMORY": "80GiB",
    "NVC_VGPU_CORES": "100",
    "NVC_VGPU_POLICY": "native",
    "CUDA_DEVICE_MEMORY_LIMIT": "80g",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "80g",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "CUDA_DISABLE_CONTROL": "true",
    "GPU_CORE_UTILIZATION_POLICY": "disable",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "80",
    "ALIYUN_COM_GPU_MEM_DEV": "80",
}


def uuids(space: Space, *names: str) -> set[str]:
    """The devices that running pods see."""
    return {space.run(name, "nvidia-smi -L").split("UUID: ")[1].strip(") \n") for name in names}


def test_a_pod_has_the_memory_of_its_claim(nvc: Cluster, space: Space) -> None:
    """nvidia-smi shows it, an allocation beyond it fails, and one below it does not."""
    space.apply(template("small", {"memory": "10Gi", "cores": "30"}))
    script = "nvidia-smi -L; nvidia-smi; nvc-spin -m 9GiB -s 1; echo below $?; "
    script += "nvc-spin -m 11GiB -s 1; echo beyond $?"
    printed = space.output(pod("slice", script, {"gpu": "small"}))
    assert "0MiB / 10240MiB" in printed and printed.count("UUID: ") == 1
    assert "below 0" in printed and "beyond 1" in printed


def test_the_node_shows_what_was_allocated(nvc: Cluster, space: Space) -> None:
    """Memory, cores, policy and weight of the slice are those of the claim."""
    parameters = {"policy": "weight", "weight": 3}
    space.apply(template("weighted", {"memory": "4Gi", "cores": "40"}, parameters=parameters))
    space.apply(pod("weighted", IDLE, {"gpu": "weighted"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
    space.phase("weighted", "Running")
    (found,) = json.loads(nvc.inside("node1", NVC, "vgpu", "ls", "--format", "json").stdout)["slices"]
    (device,) = found["devices"]
    names = ("limit", "cores", "weight", "policy")
    assert tuple(device[name] for name in names) == (4 << 30, 40, 3, "weight")
    assert found["name"] == f"{space.name}/weighted/main"
    space.delete("weighted")


def test_two_pods_share_a_gpu_and_a_third_waits(nvc: Cluster, space: Space) -> None:
    """Until one of the two is gone."""
    space.apply(template("half", {"memory": "39Gi", "cores": "50"}, **ONE_GPU))
    for name in ("one", "two"):
        space.apply(pod(name, IDLE, {"gpu": "half"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
        space.phase(name, "Running")
    assert len(uuids(space, "one", "two")) == 1
    space.apply(pod("three", IDLE, {"gpu": "half"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
    space.kubectl("wait", "pod/three", "--for=condition=PodScheduled=false", WAIT)
    (condition,) = [each for each in space.get("pod", "three")["status"]["conditions"] if each["status"] == "False"]
    assert condition["reason"] == "Unschedulable" and "cannot allocate all claims" in condition["message"]
    space.delete("one")
    space.phase("three", "Running")
    space.delete("two", "three")


@pytest.mark.parametrize("privileged", [False, True])
def test_variables_of_a_pod_change_nothing(nvc: Cluster, space: Space, privileged: bool) -> None:
    space.apply(template("small", {"memory": "2Gi"}))
    document = pod("hostile", "nvidia-smi; nvc-spin -m 3GiB -s 1 || echo refused", {"gpu": "small"})
    (main,) = document["spec"]["containers"]
    main["env"] = [{"name": name, "value": value} for name, value in VARIABLES.items()]
    main["securityContext"] = {"privileged": privileged}
    printed = space.output(document)
    assert "0MiB / 2048MiB" in printed and "refused" in printed


def test_wrong_parameters_are_an_event_of_the_pod(nvc: Cluster, space: Space) -> None:
    """That names the field; and the pod does not start. More: test_kubelet_plugin.py."""
    space.apply(template("wrong", {"memory": "1Gi"}, parameters={"polcy": "fair"}))
    space.apply(pod("wrong", "true", {"gpu": "wrong"}))
    space.until_event("wrong", "FailedPrepareDynamicResources")
    assert "polcy" in space.event_messages("wrong")
    space.delete("wrong")


def test_nothing_is_left(nvc: Cluster, space: Space) -> None:
    """Neither CDI files nor claims or slices, after pods that ended and pods that were deleted."""
    space.apply(template("small", {"memory": "1Gi"}))
    space.output(pod("ended", "nvidia-smi -L", {"gpu": "small"}))
    space.apply(pod("running", IDLE, {"gpu": "small"}))
    space.phase("running", "Running")
    space.delete("running")
    until_nothing_is_left(nvc)

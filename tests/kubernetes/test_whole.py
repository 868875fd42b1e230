"""Whole GPUs: by an extended resource, as pods for NVIDIA's device plugin ask for them, and by a claim."""

from __future__ import annotations

from support.cluster import Cluster
from support.cluster.pods import WAIT, Space, pod, template, until_nothing_is_left

WHOLE = "gpu.nvc.dev"


def test_pods_written_for_the_device_plugin_run(nvc: Cluster, space: Space) -> None:
    document = pod("two", "nvidia-smi -L; nvidia-smi; grep -c /nvc/ /proc/mounts || true")
    document["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    printed = space.output(document)
    assert printed.count("UUID: GPU-") == 2
    assert printed.endswith("\n0\n"), "a whole GPU has no shim"


def test_a_claim_without_an_amount_has_the_gpu_for_itself(nvc: Cluster, space: Space) -> None:
    """Four pods fill four GPUs; a slice has no room then."""
    space.apply(template("whole", {}, WHOLE), template("slice", {"memory": "1Gi"}))
    names = ["a", "b", "c", "d"]
    for name in names:
        space.apply(pod(name, "nvidia-smi -L; exec sleep infinity", {"gpu": "whole"}))
    for name in names:
        space.phase(name, "Running")
    seen = {space.run(name, "nvidia-smi -L").split("UUID: ")[1] for name in names}
    assert len(seen) == 4
    space.apply(pod("late", "true", {"gpu": "slice"}))
    space.kubectl("wait", "pod/late", "--for=condition=PodScheduled=false", WAIT)
    space.delete(*names)
    space.phase("late", "Succeeded")
    until_nothing_is_left(nvc)

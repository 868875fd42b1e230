"""Documents of slices, and what the hook that makes them reads in a bundle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GIB
from support.cdi import device, schema_problems
from support.facts import IDENTITY, LIBS, MIG_UUID_0, UUID_0, VERSION, facts, gpus

from nvc.base.errors import ContainerError, DeviceError, InputError
from nvc.frontends.cdi.document import DocumentOptions, build_document
from nvc.frontends.cdi.hooks.bundle import slices_of
from nvc.frontends.cdi.sliced import SliceSize, Slicing, parsed, sliced, written
from nvc.frontends.cdi.validate import problems
from nvc.model.facts import HostFacts
from nvc.model.request import Part, Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.slice import SliceDevice, bounded

SHIMS = tuple(
    (f"{name}.so.1", f"/opt/nvc/vgpu/current/{name}.so", IDENTITY) for name in ("libcuda", "libnvidia-ml")
)


def host() -> HostFacts:
    """A GPU of 80 GiB, and one with two MIG devices of 10 and 20 GiB."""
    whole, cut = gpus()
    mig = tuple(part.replace(memory=10240 * (part.index + 1)) for part in cut.mig)
    return facts(gpus=(whole.replace(memory=81920), cut.replace(memory=81920, mig=mig)))


def size(name: str, memory: str, *devices: str, **more: Any) -> SliceSize:
    return SliceSize(name, parse_size(name, memory), devices or ("all",), **more)


def document(
    *sizes: SliceSize, uncounted: bool = False, of: HostFacts | None = None, **options: Any
) -> dict[str, Any]:
    request = Request(devices=("all",), capabilities=("utility", "compute", "video"))
    how = DocumentOptions(
        "/usr/bin/nvc-cdi-hook", device_class="vgpu", stamp="1,2,/", driver_arguments=("--driver-root=/",),
        strategies=("index",), **options,
    )  # fmt: skip
    made = of or host()
    return build_document(made, select(made, request), request, how, {}, Slicing(sizes, SHIMS, uncounted))


def test_one_device_for_each_device_and_size() -> None:
    made = document(size("small", "5GiB"), size("big", "15GiB"), size("half", "50%", "0"))
    assert [item["name"] for item in made["devices"]] == [
        "0:small", "0:big", "0:half", "1:0:small", "1:1:small", "1:1:big", "all:small", "all:big", "all:half",
    ]  # fmt: skip
    assert schema_problems(made) == [] and problems(made) == [] and made["kind"] == "nvidia.com/vgpu"
    (hook,) = device(made, "0:half")["hooks"]
    assert hook["args"] == [
        "nvc-cdi-hook", "slice-memory", "--driver-root=/", f"--slice={UUID_0}={40 * GIB},0,1,5",
    ]  # fmt: skip


def test_isolation_by_the_kernel_is_a_hook_outside_of_the_container() -> None:
    with pytest.raises(DeviceError, match="has no memory limits by cgroup: driver 615 is the first"):
        document(size("held", "5GiB", isolation="kernel"))
    new = host().replace(driver_version="615.71.09")
    made = document(size("held", "5GiB", isolation="kernel"), size("open", "5GiB"), of=new)
    assert [item["name"] for item in made["devices"] if "held" in item["name"]] == ["0:held", "all:held"]
    assert schema_problems(made) == [] and problems(made) == []
    for name in ("0:held", "all:held"):
        inside, outside = device(made, name)["hooks"]
        argument = f"--slice={UUID_0}={5 * GIB},0,1,5,kernel"
        assert inside["hookName"] == "createContainer" and inside["args"][-1] == argument
        assert outside["hookName"] == "createRuntime"
        assert outside["args"] == ["nvc-cdi-hook", "limit-memory", "--driver-root=/", argument]
        assert outside["env"] == inside["env"]
    assert [hook["hookName"] for hook in device(made, "0:open")["hooks"]] == ["createContainer"]
    with pytest.raises(InputError, match="a MIG device: the driver limits whole GPUs"):
        document(size("held", "5GiB", "1:0", isolation="kernel"), of=new)


@pytest.mark.parametrize("uncounted", [False, True])
def test_the_shim_is_mounted_and_what_it_stands_for_beside_it(uncounted: bool) -> None:
    made = document(size("small", "5GiB"), uncounted=uncounted)
    mounts = {item["containerPath"]: item["hostPath"] for item in made["containerEdits"]["mounts"]}
    assert mounts[f"{LIBS}/libcuda.so.{VERSION}"] == "/opt/nvc/vgpu/current/libcuda.so"
    assert mounts[f"{LIBS}/nvc/real-libcuda.so.1"] == f"/run/driver{LIBS}/libcuda.so.{VERSION}"
    assert mounts[f"{LIBS}/nvc/real-libnvidia-ml.so.1"] == f"/run/driver{LIBS}/libnvidia-ml.so.{VERSION}"
    assert not [path for path in mounts if "quota" in path or "ledger" in path]
    (hook,) = made["containerEdits"]["hooks"]
    assert "enable-cuda-compat" not in hook["args"]


def test_sizes_that_no_device_or_not_the_named_one_has() -> None:
    with pytest.raises(InputError, match="big"):
        sliced(host(), Slicing((size("big", "15GiB", "1:0"),), SHIMS))
    with pytest.raises(InputError, match="huge"):
        sliced(host(), Slicing((size("huge", "100GiB"),), SHIMS))
    with pytest.raises(DeviceError, match="7"):
        sliced(host(), Slicing((size("a", "1g", "7"),), SHIMS))
    bounds = SliceRequest(largest=parse_size("max", "2g"), most_cores=40)
    with pytest.raises(InputError, match="3 GiB is asked for, the operator grants 2g"):
        sliced(host(), Slicing((size("a", "3g"),), SHIMS, bounds=bounds))
    with pytest.raises(InputError, match="50% of its time is asked for, the operator grants 40%"):
        sliced(host(), Slicing((size("a", "1g", cores=50, policy=3),), SHIMS, bounds=bounds))
    found = sliced(host(), Slicing((size("a", "1g"),), SHIMS, bounds=bounds))
    assert {(part.cores, part.policy) for parts in found.values() for _, part in parts} == {(40, 3)}


def test_a_size_that_reserves_memory() -> None:
    kept = size("kept", "5GiB", request=parse_size("request", "10%"))
    with pytest.raises(InputError, match=f"request: 10%: more than the limit of {UUID_0}, 5 GiB"):
        document(kept)
    made = document(kept.replace(request=parse_size("request", "5%")))
    words = device(made, "all:kept")["hooks"][0]["args"]
    found = {
        part.uuid: part.reserved
        for part in (parsed(word[8:]) for word in words if word.startswith("--slice="))
    }
    assert found[UUID_0] == 4 * GIB and found[MIG_UUID_0] == GIB // 2 and len(found) == 3
    some = Part(UUID_0, GIB, cores=0, weight=1, policy=5, reserved=2 * GIB)
    with pytest.raises(InputError, match="more is reserved than the limit"):
        bounded(SliceDevice(UUID_0, "0", "NVIDIA", 80 * GIB, GIB), some, SliceRequest())


def test_what_is_written_is_read() -> None:
    part = Part(UUID_0, GIB, cores=30, weight=7, policy=2)
    every = {"hold": "ab-1", "isolation": "kernel", "reserved": GIB, "period_us": 50_000}
    each = {"hold": "ab-1"}, {"isolation": "kernel"}, {"reserved": 1 << 20}, {"period_us": 1_000_000}
    for more in ({}, *each, every):
        assert parsed(written(part.replace(**more))) == part.replace(**more)
    assert parsed(written(SliceDevice(UUID_0, "0", "NVIDIA", 80 * GIB, GIB, cores=30))).cores == 30


@given(st.text(max_size=300))
def test_any_argument_is_read_or_refused(text: str) -> None:
    try:
        part = parsed(text)
    except InputError:
        return
    assert (
        part.uuid and part.limit >= 1 << 20 and part.cores <= 100 and part.weight >= 1 and part.policy <= 5
    )


def entry(*words: Any) -> dict[str, Any]:
    return {"path": "/x", "args": list(words)}


def test_slices_of_every_hook_are_found() -> None:
    hooks = [
        entry(
            "nvc-cdi-hook", "simulate-proc", "--slice=no", "slice-memory", "--driver-root=/", "--slice=a=1"
        ),
        entry("other", "slice-memory", "--slice=b=2", "update-ldcache", "--slice=no"),
        {"path": "/y"},
    ]
    assert slices_of({"hooks": {"createContainer": hooks, "prestart": [entry("x", "slice-memory")]}}) == [
        "a=1", "b=2",
    ]  # fmt: skip
    assert slices_of({}) == slices_of({"hooks": None}) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.just("slice-memory"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["hooks", "createContainer", "args", "x"]), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.just("hooks"), JSON))
def test_any_bundle_is_understood_or_refused(document: dict[str, Any]) -> None:
    json.dumps(document)
    try:
        found = slices_of(document)
    except ContainerError:
        return
    assert all(type(text) is str for text in found)

"""Sizes of slices that share GPUs: what is said to be free can be had together, and never more than there is."""

from __future__ import annotations

import asyncio
import ssl
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GIB
from support.facts import UUID_0, UUID_1, facts

from nvc.kernel import LinuxKernel
from nvc.kubernetes.api.client import Api, Server
from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.claims.devices import Device, document, oversubscribed
from nvc.kubernetes.claims.give import Outlet
from nvc.kubernetes.claims.holdings import (
    IDS_MAX,
    Free,
    Held,
    Size,
    free_of,
    held_by,
    ids_of,
    lacking,
    preferred,
    usable,
    uuid_of,
)
from nvc.kubernetes.claims.prepare import Host, Preparer
from nvc.kubernetes.health.board import Board
from nvc.kubernetes.health.metrics import Counts
from nvc.kubernetes.plugin.deviceplugin import DevicePlugin, Offer
from nvc.model.request import DriverOptions, SliceRequest

DEVICES = tuple(
    Device(f"gpu-{place}", "gpu", uuid, str(place), 80 * GIB, (), "")
    for place, uuid in enumerate((UUID_0, UUID_1))
)


def size(name: str, gib: int, cores: int = 0) -> Size:
    limits = tuple((device.uuid, (gib or 80) * GIB) for device in DEVICES)
    return Size(f"nvidia.com/{name or 'gpu'}", name, limits, cores)


SIZES = (size("", 0), size("small", 10, 30), size("large", 40))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=40))
def test_whatever_is_taken_fits(wishes: list[tuple[int, int]]) -> None:
    used: dict[str, set[str]] = {one.resource: set() for one in SIZES}
    for kind, place in wishes:
        held = [one for own in SIZES for one in held_by(own, used[own.resource])]
        can = usable(SIZES[kind], DEVICES, used[SIZES[kind].resource], free_of(DEVICES, held))
        free = [id for id, may in can.items() if may and id not in used[SIZES[kind].resource]]
        if free:
            used[SIZES[kind].resource].add(free[place % len(free)])
    for device in DEVICES:
        mine = [one for own in SIZES for one in held_by(own, used[own.resource]) if one.uuid == device.uuid]
        whole = [one for one in mine if one.whole]
        assert len(whole) <= 1 and (not whole or len(mine) == 1)
        assert sum(one.memory for one in mine) <= device.memory
        assert sum(one.cores for one in mine) <= 100


def test_sizes_of_a_gpu_whose_slices_leave_when_idle() -> None:
    """More of them fit; a whole GPU is still one that nobody has a slice of."""
    (device,) = many = (oversubscribed(DEVICES[0], 250, ""),)
    assert len(ids_of(SIZES[2], many)) == 5 and len(ids_of(SIZES[2], DEVICES[:1])) == 2
    large = held_by(SIZES[2], {f"{UUID_0}::{number}" for number in range(4)})
    left = free_of(many, large)
    assert left[UUID_0] == Free(40 * GIB, 100, False) and left[UUID_0].fits(SIZES[2], UUID_0) == 1
    assert left[UUID_0].fits(SIZES[0], UUID_0) == 0 and free_of(many, [])[UUID_0].fits(SIZES[0], UUID_0) == 1
    assert document(device)["capacity"] == {
        "memory": {"value": "200Gi", "requestPolicy": {
            "default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"},
        }},
        "cores": {"value": "100", "requestPolicy": {
            "default": "100", "validRange": {"min": "1", "max": "100", "step": "1"},
        }},
    }  # fmt: skip


def test_a_claim_fits_beside_pods_and_other_claims() -> None:
    pods = [Held(UUID_0, 40 * GIB, 30)]
    slice_, half = Held(UUID_0, 20 * GIB, 35), Held(UUID_0, 20 * GIB, 36)
    assert lacking(DEVICES, [slice_, slice_], pods, []) is None
    assert lacking(DEVICES, [slice_, half], pods, []) is not None  # of its time
    assert lacking(DEVICES, [slice_], pods, [Held(UUID_0, 21 * GIB, 1)]) == (UUID_0, Free(19 * GIB, 69, False))
    assert lacking(DEVICES, [Held(UUID_0, 0, 100, whole=True)], pods, []) is not None
    # The scheduler has counted these.
    assert lacking(DEVICES, [Held(UUID_1, 80 * GIB, 100)], pods, [Held(UUID_1, 80 * GIB, 100)]) is None


def test_nothing_is_given_between_a_look_and_what_it_decides(scratch: str) -> None:
    """A claim and a pod of the device plugin would each find the same device free."""
    giving, told = threading.Lock(), []

    def names(size: Size, ids: list[str]) -> list[str]:
        told.append(giving.locked())
        return ids

    plugin = DevicePlugin(
        scratch, Board(), Counts(), print, list, names, lambda resources: None, True, giving
    )
    plugin.grants.look = lambda: False  # type: ignore[method-assign]
    plugin.want(Offer(DEVICES, SIZES))
    plugin.allocate(SIZES[0], [UUID_0])
    assert told == [True] and not giving.locked()


def test_a_claim_is_kept_before_anything_else_is_given(
    scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, told = LinuxKernel(), []
    host = Host(kernel, DriverOptions(), lambda *_: facts(), lambda _: DEVICES)
    api = Api(lambda: Server("127.0.0.1", 9, ssl.create_default_context(), str), "test")
    preparer = Preparer(
        host, api, "gpu.nvc.dev", scratch, Outlet(f"{scratch}/cdi", "/hook"), SliceRequest(),
        lambda _: told.append(preparer.giving.locked()),
    )  # fmt: skip
    # The API server does not answer: what holds is what was prepared before.
    preparer.checkpoint.write(Allocation("abc", "ml", "one", ()))
    write = preparer.checkpoint.write
    monkeypatch.setattr(
        preparer.checkpoint, "write", lambda one: (told.append(preparer.giving.locked()), write(one))
    )
    asyncio.run(preparer.prepare("ml", "one", "abc"))
    assert told == [True, True] and not preparer.giving.locked()


def test_ids_are_few_and_stay_the_same() -> None:
    tiny = Size("nvidia.com/vgpu-tiny", "tiny", tuple((one.uuid, 1 << 20) for one in DEVICES))
    ids = [id for id, _ in ids_of(tiny, DEVICES)]
    assert len(ids) == IDS_MAX and len(set(ids)) == IDS_MAX and all(len(id) <= 63 for id in ids)
    assert [id for id, _ in ids_of(tiny, DEVICES[:1])][: IDS_MAX // 2] == ids[: IDS_MAX // 2]


@given(st.integers(1, 12), st.booleans(), st.data())
def test_preferred_ids_are_as_many_as_wanted(count: int, packed: bool, data: st.DataObject) -> None:
    ids = [id for id, _ in ids_of(SIZES[1], DEVICES)]
    available = data.draw(st.lists(st.sampled_from(ids), unique=True))
    must = available[: data.draw(st.integers(0, min(len(available), count)))]
    found = preferred(available, must, count, free_of(DEVICES, []), packed)
    assert len(found) == len(set(found)) == min(count, len(available))
    assert set(must) <= set(found) <= set(available)
    if len(must) < 2 and {uuid_of(id) for id in available} == {UUID_0, UUID_1} and count > 1:
        assert {uuid_of(id) for id in found} == {UUID_0, UUID_1}

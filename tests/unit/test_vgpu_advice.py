"""`nvc-cli vgpu advise`: which policy is advised, and of what."""

from __future__ import annotations

from typing import Any

import pytest
from support import GIB

from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import Account
from nvc.model.slices.policy import MS, POLICIES
from nvc.slices.client.nvcd import SHIM
from nvc.slices.policy.advice import Load, Situation, advise
from nvc.slices.policy.utilization import Received
from nvc.slices.show.advice import document, situations, text
from nvc.slices.show.view import Picture
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

CHAT = Load("chat", 0.5, 0.4, 0.002, used=GIB, processes=1)
TRAIN = Load("train", 0.5, 0.4, None, used=GIB, processes=1)
FIRST = "nvc-cli vgpu set chat --policy first"
IDLE = Load("idle", 0.0, 0.0, processes=1)
UNKNOWN = Load("any", processes=1)


ENTRY = Entry("f1", "/run/nvc/vgpu/f1", 1, 1, "/rootfs", "/usr/lib", 1000, ())
WEIGHT, NATIVE = (POLICIES.index(name) for name in ("weight", "native"))
DEVICE = SliceDeviceStatus("GPU-A", "0", "NVIDIA X1", 80 * GIB, GIB, 5, policy=WEIGHT)


def situation(*loads: Load, policy: str = "weight", **more: Any) -> Situation:
    return Situation(more.pop("uuid", "GPU-0"), "0", "NVIDIA X1", POLICIES.index(policy), loads, **more)


@pytest.mark.parametrize(
    ("loads", "policy", "trusted", "advised", "commands"),
    [
        ((), "native", True, "native", ()),
        ((IDLE, IDLE), "weight", True, "weight", ()),
        ((CHAT, IDLE), "weight", True, "weight", ()),
        ((CHAT, CHAT), "weight", False, "weight", ()),
        ((CHAT, CHAT), "first", False, "weight", ("nvc-cli vgpu policy 0 weight",)),
        ((CHAT, CHAT), "weight", True, "concurrent", ("nvc-cli vgpu policy 0 concurrent",)),
        ((CHAT, CHAT.replace(weight=2)), "weight", True, "concurrent", ("nvc-cli vgpu policy 0 concurrent",)),
        (
            (CHAT, TRAIN),
            "weight",
            False,
            "first",
            ("nvc-cli vgpu policy 0 first", "nvc-cli vgpu set chat --policy first"),
        ),
        ((CHAT.replace(weight=8), TRAIN), "weight", False, "first", ("nvc-cli vgpu policy 0 first", FIRST)),
        ((CHAT.replace(first=True), TRAIN), "first", False, "first", ()),
        ((CHAT, TRAIN, TRAIN.replace(weight=3)), "first", False, "weight", ("nvc-cli vgpu policy 0 weight",)),
        ((TRAIN, TRAIN.replace(weight=3)), "first", False, "weight", ("nvc-cli vgpu policy 0 weight",)),
        ((TRAIN, TRAIN), "weight", True, "weight", ()),
        ((UNKNOWN, UNKNOWN), "native", True, "weight", ("nvc-cli vgpu policy 0 weight",)),
        ((CHAT.replace(cores=40), TRAIN.replace(cores=60)), "fixed", True, "fixed", ()),
        ((CHAT.replace(cores=40), CHAT), "weight", False, "weight", ()),
    ],
)
def test_what_is_advised(
    loads: tuple[Load, ...], policy: str, trusted: bool, advised: str, commands: tuple[str, ...]
) -> None:
    found = advise(situation(*loads, policy=policy), trusted)
    assert (found.policy, found.commands) == (advised, commands), found.why


def test_side_by_side() -> None:
    assert "every slice that works has a cap" in advise(situation(CHAT.replace(cores=40), IDLE), False).why
    assert "stop them, set the policy" in advise(situation(CHAT, CHAT), True).why
    again = CHAT.replace(server=True)
    assert "stop them" not in advise(situation(again, again), True).why
    assert "the lighter ones pause" in advise(situation(CHAT, CHAT.replace(weight=2)), True).why
    assert advise(situation(CHAT, CHAT, uuid="MIG-0"), True).policy == "weight"
    assert advise(situation(*[CHAT] * 61), True).policy == "weight"


def test_situations_are_what_slices_and_nvcd_say() -> None:
    device = DEVICE.replace(index="1", weight=4, kept=True)
    one = SliceStatus(ENTRY, "f1", (7,), (device,), (), name="chat")
    other = one.replace(entry=ENTRY.replace(key="f2"), name="free")
    other = other.replace(devices=(device.replace(uuid="GPU-B", index="0", policy=NATIVE),))
    gone = one.replace(entry=ENTRY.replace(key="f3"), pids=(), name="gone")
    had = {("f1", "GPU-A"): Received(0.5, 0.2, 9), ("f2", "GPU-B"): Received(0.5, 0.2, 9)}
    state = {"devices": [{"uuid": "gpu-a", "busyPercent": 90, "used": GIB}, None]}
    first, second = situations(Picture((one, other, gone), had, {}, 0.0, 1.0), state, {})
    assert (first.index, first.loads[0].share, first.busy) == ("0", None, None)
    assert (second.busy, second.memory) == (90, GIB)
    assert second.loads == (Load("chat", 0.5, 0.2, None, 0, 4, 5, 0),)
    (plain,) = situations(
        Picture((one,), {}, {}, 0.0, 1.0), {"devices": [{"uuid": "GPU-A", "busyPercent": "x"}]}, {}
    )
    assert (plain.busy, plain.loads[0].share) == (None, 0.0)


@pytest.mark.parametrize(
    ("had", "switches", "timeslice", "step"),
    [
        (200 * MS, 100, 4000, 0.002),
        (396 * MS, 100, 4000, None),  # until its timeslice ends
        (200 * MS, 100, 2048, None),
        (20 * MS, 10, 4000, None),  # too few to say
        (200 * MS, 100, None, None),
        (200 * MS, "x", 4000, None),
    ],
)
def test_who_leaves_the_gpu_before_its_timeslice_ends_waits_for_each_step(
    had: int, switches: object, timeslice: int | None, step: float | None
) -> None:
    def state(now: int) -> dict[str, Any]:
        amount = switches if not isinstance(switches, int) else 50 + now * switches
        mine = {"pid": 7, "hadNs": 10**9 + now * had, "switches": amount}
        other = {"pid": 8, "hadNs": now * 10**9, "switches": now}
        mine_had = {"key": "f1", "timesliceUs": timeslice}
        return {"devices": [{"uuid": "GPU-A", "processes": [mine, other, None], "had": [mine_had]}]}

    one = SliceStatus(ENTRY, "f1", (7,), (DEVICE.replace(weight=4),), (), name="chat")
    (found,) = situations(Picture((one,), {}, {}, 0.0, 1.0), state(1), state(0))
    assert found.loads[0].step == step


def test_without_nvcd_nothing_is_taken_for_idle() -> None:
    """No figures and no nvcd: the slice may have worked. The advice says what is missing."""
    device, account = DEVICE.replace(weight=4, not_enforced="nvcd does not run"), Account(0, 7, "python3", (GIB,))
    one = SliceStatus(ENTRY, "f1", (7,), (device,), (account,), name="a")
    other = one.replace(entry=ENTRY.replace(key="f2"), name="b")
    (found,) = situations(Picture((one, other), {}, {}, 0.0, 1.0), {}, {})
    assert [load.kind for load in found.loads] == ["not measured"] * 2
    made = advise(found, False)
    assert made.policy == "weight" and made.why.endswith("it is not enforced now: nvcd does not run")
    assert "(not enforced: nvcd does not run)" in text((made,), 200)


def test_where_the_shim_keeps_time() -> None:
    """It measures slices with a cap alone, and a policy that needs nvcd would not be enforced."""
    device = DEVICE.replace(policy=POLICIES.index("fixed"))
    capped = SliceStatus(ENTRY, "f1", (7,), (device.replace(cores=20),), (Account(0, 7, "a", (GIB,)),), name="a")
    other = capped.replace(entry=ENTRY.replace(key="f2"), devices=(device,), name="b")
    state = {"devices": [{"uuid": "GPU-A", "time": "by the shim, because it is old"}]}
    (found,) = situations(Picture((capped, other), {}, {}, 0.0, 1.0), state, state)
    assert [load.kind for load in found.loads] == ["idle", "not measured"]
    assert found.not_enforced == SHIM and "policy fixed;" in text((advise(found, False),), 200)
    both = found.replace(loads=(found.loads[1], found.loads[1].replace(name="c")))
    assert advise(both, False).why.endswith(f"it is not enforced now: {SHIM}")


def test_the_document() -> None:
    made = document((advise(situation(CHAT, TRAIN), False),), 2.0)
    (device,) = made["devices"]
    assert device["slices"][0]["step"] == 0.002
    assert device["advice"]["commands"] == ["nvc-cli vgpu policy 0 first", FIRST]

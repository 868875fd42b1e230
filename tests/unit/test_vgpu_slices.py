"""From sizes to limits of devices."""

from __future__ import annotations

from typing import Any

import pytest
from support import GIB
from support.facts import MIG_UUID_0, UUID_0, UUID_1, facts, gpus

from nvc.base.errors import DeviceError, InputError
from nvc.model.request import Part, Request, Size, SliceRequest, TimeSetting
from nvc.model.selection import select
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.layout import POLICY_NATIVE as NATIVE
from nvc.model.slices.policy import POLICY_FIXED as FIXED
from nvc.model.slices.policy import POLICY_WEIGHT as WEIGHT
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.slice import resolve
from nvc.model.slices.time_settings import parse_cores, parse_period, parse_policy, parse_weight
from nvc.slices.store.admission import check_cap


def size(text: str) -> Size:
    return parse_size("SIZE", text)


def host() -> Any:
    first, second = gpus()
    mig = tuple(device.replace(memory=9984) for device in second.mig)
    return facts(gpus=(first.replace(memory=81559), second.replace(memory=81559, mig=mig)))


def limits(selectors: tuple[str, ...], found: Any = None, **wanted: Any) -> dict[str, int]:
    found = found or host()
    made = resolve(found, select(found, Request(devices=selectors)), SliceRequest(**wanted))
    return {device.uuid: device.limit for device in made}


def test_only_some_devices_are_sliced() -> None:
    found = facts(gpus=(host().gpus[0], host().gpus[1].replace(mig=(), mig_enabled=False)))
    assert limits(("all",), found, memory=(size("1g"),), devices=("1",)) == {UUID_0: NO_LIMIT, UUID_1: GIB}
    with pytest.raises(DeviceError, match="not a device of this container"):
        limits(("0",), found, memory=(size("1g"),), devices=("1",))


@pytest.mark.parametrize(
    ("text", "expected"), [("100%", 81559 << 20), ("25%", 81559 // 4 << 20), ("1%", 815 << 20)]
)
def test_parts_are_whole_mebibytes(text: str, expected: int) -> None:
    assert limits(("0",), memory=(size(text),)) == {UUID_0: expected}


def test_all_there_is_and_more() -> None:
    assert limits(("0",), memory=(size("81559m"),)) == {UUID_0: 81559 << 20}
    with pytest.raises(InputError, match=r"SIZE: 81560m: GPU-.* has 81559 MiB"):
        limits(("0",), memory=(size("81560m"),))
    with pytest.raises(InputError, match="9984"):
        limits(("1:0",), memory=(size("10g"),))


def test_numbers_that_do_not_match() -> None:
    with pytest.raises(InputError, match="2 sizes, but the number of devices is 1"):
        limits(("0",), memory=(size("1g"), size("1g")))
    with pytest.raises(InputError, match="the container has 1 devices, counted from 0"):
        limits(("0",), memory_at=((1, size("1g")),))


def test_a_device_that_does_not_tell_its_memory() -> None:
    assert limits(("0",), facts(), memory=(size("1g"),)) == {UUID_0: GIB}
    with pytest.raises(InputError, match="does not tell"):
        limits(("0",), facts(), memory=(size("10%"),))


def test_reservations_need_a_known_memory() -> None:
    wanted = SliceRequest(memory=(size("2g"),), reserved=size("1g"))
    made = resolve(host(), select(host(), Request(devices=("all",))), wanted)
    assert [device.reserved for device in made] == [GIB] * 3
    with pytest.raises(InputError, match="does not tell the memory of GPU-.*, so none can be reserved"):
        limits(("0",), facts(), memory=(size("2g"),), reserved=size("1g"))


def test_what_the_operator_grants() -> None:
    assert limits(("0",), memory=(size("4g"),), largest=size("4g")) == {UUID_0: 4 * GIB}
    for largest in ("4g", "5%"):
        with pytest.raises(InputError, match=f"SIZE: 5g: the operator grants {largest}"):
            limits(("0",), memory=(size("5g"),), largest=size(largest))
    assert limits(("0", "1:0"), memory_at=((0, size("1g")),), largest=size("2g")) == {
        UUID_0: GIB, MIG_UUID_0: 2 * GIB,
    }  # fmt: skip
    assert limits(("1:0",), memory_at=(), largest=size("40g")) == {MIG_UUID_0: NO_LIMIT}


def shares(selectors: tuple[str, ...], **wanted: Any) -> list[tuple[int, int, int]]:
    found = host()
    made = resolve(found, select(found, Request(devices=selectors)), SliceRequest(**wanted))
    return [(device.cores, device.weight, device.policy) for device in made]


def cores(text: str) -> TimeSetting:
    return parse_cores("CORES", text)


def test_the_policy_follows_from_what_is_asked_for() -> None:
    weight, soft = parse_weight("WEIGHT", "4"), parse_policy("POLICY", "soft")
    assert shares(("0",), memory=(size("1g"),)) == [(0, 1, NATIVE)]
    assert shares(("0",), weight=weight) == [(0, 4, WEIGHT)]
    assert shares(("0", "1:0"), cores=(cores("50"), cores("100"))) == [(50, 1, FIXED), (0, 1, NATIVE)]
    assert shares(("0", "1:0"), cores_at=((1, cores("30")),), weight=weight) == [
        (0, 4, WEIGHT),
        (30, 4, FIXED),
    ]
    assert shares(("0",), cores=(cores("50"),), policy=soft) == [(50, 1, 4)]


def test_a_policy_that_contradicts_the_cap_is_refused() -> None:
    for policy, caps, cause in (("native", (cores("50"),), "ignores caps"), ("fixed", (), "has no cap")):
        with pytest.raises(InputError, match=f"POLICY: {policy}: .*{cause}") as refused:
            shares(("0",), cores=caps, policy=parse_policy("POLICY", policy))
    with pytest.raises(InputError) as admission:
        check_cap(0, "GPU-A", FIXED)
    assert refused.value.hint == admission.value.hint and "such as cores 25" in str(refused.value)


def test_what_the_operator_grants_of_the_time() -> None:
    assert shares(("0", "1:0"), cores_at=((0, cores("20")),), most_cores=40) == [
        (20, 1, FIXED),
        (40, 1, FIXED),
    ]
    for text in ("41", "100"):
        with pytest.raises(InputError, match=f"CORES: {text}: the operator grants 40"):
            shares(("0",), cores=(cores(text),), most_cores=40)
    with pytest.raises(InputError, match="WEIGHT: 3: the operator grants 2"):
        shares(("0",), weight=parse_weight("WEIGHT", "3"), most_weight=2)


def periods(**wanted: Any) -> list[int]:
    found = host()
    made = resolve(found, select(found, Request(devices=("0", "1:0"))), SliceRequest(**wanted))
    return [device.period_us for device in made]


def test_the_usual_period_is_for_caps_that_name_none() -> None:
    assert periods(cores_at=((0, cores("20")),), usual_period=50_000) == [50_000, 0]
    own = parse_period("PERIOD", "20ms")
    assert periods(cores=(cores("20"),), period=own, usual_period=50_000) == [20_000, 20_000]
    assert periods(policy=parse_policy("POLICY", "fair"), usual_period=50_000) == [50_000, 50_000]
    parts = (part(cores=30, policy=FIXED), part(MIG_UUID_0, cores=30, policy=FIXED, period_us=20_000))
    assert periods(parts=parts, usual_period=50_000) == [50_000, 20_000]


def part(uuid: str = UUID_0, limit: int = GIB, **more: int) -> Part:
    return Part(uuid, limit, **{"cores": 0, "weight": 1, "policy": NATIVE, **more})


def test_a_part_wins_over_what_is_given_for_every_device() -> None:
    wanted = {"memory": (size("2g"),), "parts": (part(limit=GIB, cores=30, policy=FIXED),)}
    assert limits(("0", "1:0"), **wanted) == {UUID_0: GIB, MIG_UUID_0: 2 * GIB}
    assert shares(("0", "1:0"), **wanted) == [(30, 1, FIXED), (0, 1, NATIVE)]


@pytest.mark.parametrize(
    ("asked", "bounds", "cause"),
    [
        (part(limit=5 * GIB), {"largest": size("4g")}, "5 GiB is asked for, the operator grants 4g"),
        (part(limit=NO_LIMIT), {"largest": size("4g")}, "all of it is asked for, the operator grants 4g"),
        (part(cores=50, policy=FIXED), {"most_cores": 40}, "50% of its time is asked for, .* grants 40%"),
        (part(weight=3, policy=WEIGHT), {"most_weight": 2}, "a weight of 3 is asked for, .* grants 2"),
    ],
)
def test_a_part_that_the_operator_does_not_grant_is_refused(asked: Part, bounds: Any, cause: str) -> None:
    """As it is for options and variables: nothing is made smaller than what was asked for."""
    with pytest.raises(InputError, match=f"{UUID_0}: {cause}"):
        shares(("0",), parts=(asked,), **bounds)


def test_a_part_without_a_cap_gets_what_the_operator_grants() -> None:
    assert shares(("0",), parts=(part(),), most_cores=40) == [(40, 1, FIXED)]
    assert shares(("0",), parts=(part(weight=2, policy=WEIGHT),), most_cores=40) == [(40, 2, WEIGHT)]
    assert shares(("0",), parts=(part(),), most_cores=100) == [(0, 1, NATIVE)]


def test_a_part_of_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match=f"{MIG_UUID_0}: no such device any more"):
        limits(("0",), parts=(part(MIG_UUID_0),))

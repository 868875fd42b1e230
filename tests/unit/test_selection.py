"""Selectors against a host of two GPUs, the second with two MIG devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import MIG_UUID_0, MIG_UUID_1, UUID_0, UUID_1, facts, gpu

from nvc.base.errors import DeviceError, MigConfigError, MigMonitorError
from nvc.model.request import Request
from nvc.model.selection import Selection, select

HOST = facts()
EVERY_MIG = [MIG_UUID_0, MIG_UUID_1]


def chosen(*items: str, **request: object) -> tuple[list[str], list[str]]:
    """UUIDs of the selected GPUs and MIG devices."""
    found = select(HOST, Request(devices=items, **request))  # type: ignore[arg-type]
    for parent, _ in found.mig:
        assert parent in found.gpus
    return [g.uuid for g in found.gpus], [m.uuid for _, m in found.mig]


@pytest.mark.parametrize(
    ("items", "wanted", "mig"),
    [
        ((), [], []),
        (("",), [], []),
        (("0",), [UUID_0], []),
        (("1",), [UUID_1], []),  # the GPU and none of its MIG devices
        (("all",), [UUID_0, UUID_1], EVERY_MIG),
        (("ALL", "nonsense"), [UUID_0, UUID_1], EVERY_MIG),  # nothing after `all` is looked at
        (("1", "all"), [UUID_1, UUID_0], EVERY_MIG),
        (("1", "0", "1", "1"), [UUID_1, UUID_0], []),  # in the order asked for, each once
        ((UUID_0.upper(),), [UUID_0], []),
        ((UUID_1.lower(), "1"), [UUID_1], []),
        (("0:3B:0.0",), [UUID_0], []),
        (("0000:3c:00",), [UUID_1], []),
        ((MIG_UUID_1,), [UUID_1], [MIG_UUID_1]),
        (("1:0",), [UUID_1], [MIG_UUID_0]),
        (("1:1", "1:0", MIG_UUID_1), [UUID_1], [MIG_UUID_1, MIG_UUID_0]),
        (("0", "1:1"), [UUID_0, UUID_1], [MIG_UUID_1]),
    ],
)
def test_what_a_selector_means(items: tuple[str, ...], wanted: list[str], mig: list[str]) -> None:
    assert chosen(*items) == (wanted, mig)


@pytest.mark.parametrize(
    "item",
    [
        "2", "-1", "0x1",
        "١",  # a digit to int(), not to the peers
        "al", UUID_0[:-1], UUID_0 + "0", "MIG-" + UUID_0, "00000000:3b:00.1", "000000000:3b:00.0",
        "0:3bb:00.0", "3b:00.0",
        "0:0",  # GPU 0 has no MIG device
        "1:2", "1:-1", "none", "--help", "0\n", "0\0", "9" * 65536, "GPU-" + "a" * 65536, "\x1b[31m" * 100,
    ],
)  # fmt: skip
def test_unknown_devices(item: str) -> None:
    with pytest.raises(DeviceError) as error:
        chosen("0", item)
    text = str(error.value)
    assert text.startswith("device error: ")
    assert ": unknown device" in text
    assert text.isprintable()
    assert len(text) < 800
    if item.isprintable() and len(item) < 100:
        assert text.startswith(f"device error: {item}: unknown device")


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("2", "2: unknown device: there is no GPU 2, this driver has GPUs 0 and 1; "),
        ("GPU-5", "GPU-5: unknown device: this driver has GPUs 0 and 1; "),
        ("1:2", "1:2: unknown device: this driver has MIG devices 1:0 and 1:1; "),
        ("MIG-5", "MIG-5: unknown device: this driver has MIG devices 1:0 and 1:1; "),
    ],
)
def test_the_error_says_what_exists(item: str, said: str) -> None:
    with pytest.raises(DeviceError, match="unknown device") as error:
        chosen(item)
    assert f"device error: {said}" in str(error.value)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "has no GPU;"), (1, "has GPU 0;"), (3, "has GPUs 0, 1 and 2;"), (16, "has 16 GPUs, 0 to 15;")],
)
def test_the_error_counts_gpus(count: int, said: str) -> None:
    host = facts(gpus=tuple(gpu(index, f"GPU-{index}") for index in range(count)))
    for item, more in (("99", said), ("0:5", "no MIG device;" if count else said)):
        with pytest.raises(DeviceError) as error:
            select(host, Request(devices=(item,)))
        assert more in str(error.value)


def test_no_gpu_at_all() -> None:
    host = facts(gpus=())
    assert select(host, Request(devices=("all",))) == Selection()
    with pytest.raises(DeviceError):
        select(host, Request(devices=("0",)))


def test_too_many_selectors() -> None:
    with pytest.raises(DeviceError, match="too many selectors: 5000"):
        chosen(*["0"] * 5000)


@pytest.mark.parametrize("name", ["mig_config", "mig_monitor"])
def test_mig_rights(name: str) -> None:
    error = {"mig_config": MigConfigError, "mig_monitor": MigMonitorError}[name]
    stage = name.replace("_", "-")

    def right(devices: tuple[str, ...], text: str) -> bool:
        return bool(getattr(select(HOST, Request(devices=devices, **{name: text})), name))  # type: ignore[arg-type]

    assert not right(("all",), "")
    assert not right(("all",), ",,")
    assert right(("all",), "all")
    assert right(("1",), "ALL")
    assert right((), "all,0")
    with pytest.raises(error, match=f"^{stage} error: 0: only 'all' devices are currently supported"):
        right(("all",), "0")
    with pytest.raises(error, match=f"cannot enable {stage} with specific MIG devices selected"):
        right(("1:0",), "all")
    assert not right(("1:0",), "")


@given(st.lists(st.text() | st.sampled_from(["0", "1", "1:0", "all", UUID_0, "0:3b:0.0"]), max_size=8))
def test_any_list_selects_or_is_refused(items: list[str]) -> None:
    """Whatever was written: devices of this host, each once and with its parent, or one short line."""
    try:
        found = select(HOST, Request(devices=tuple(items)))
    except DeviceError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 800
        return
    assert len(set(found.gpus)) == len(found.gpus)
    assert set(found.gpus) <= set(HOST.gpus)
    assert len(set(found.mig)) == len(found.mig)
    assert all(parent in found.gpus and device in parent.mig for parent, device in found.mig)
    assert bool(found.gpus) == any(items)

"""What slices received of a device's time: figures, tables and drawings."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.columns import fitted
from nvc.kernel import LinuxKernel
from nvc.model.slices import layout
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import Budget, LedgerError, parse_budgets
from nvc.model.slices.policy import POLICIES
from nvc.slices.policy.utilization import MOST, Reading, Received, percent, reading, received, state
from nvc.slices.show import history
from nvc.slices.show.history import Track
from nvc.slices.show.plot import svg
from nvc.slices.show.tables import plain_top, received_text
from nvc.slices.store.liveness import LedgerReading
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

FAIR, PREEMPT, WEIGHT, FIXED, SOFT, NATIVE = range(6)
SECOND = 1_000_000_000
GPU = "GPU-0"


def tenant(key: str, policy: int = NATIVE, cores: int = 0, weight: int = 1, **more: Any) -> SliceStatus:
    rootfs = f"/var/lib/containers/storage/overlay/{key * 40}/merged"
    entry = Entry(key, "/run/nvc/vgpu/x", 1, 1, rootfs, "/usr/lib/x86_64-linux-gnu", 0, ())
    device = SliceDeviceStatus(GPU, "0", "H100", 80 << 30, more.pop("limit", 10 << 30), 518 << 20)
    pids, timing = more.pop("pids", (7, 8)), {"cores": cores, "weight": weight, "policy": policy}
    return SliceStatus(entry, key, pids, (device.replace(**timing, **more),), (), name=key)


def test_a_clock_that_was_set_back_after_it_was_made() -> None:
    (device,) = tenant("a", FIXED, 30).devices
    device = device.replace(budget=Budget(5 * SECOND, 0, 9))
    part = "50.0% of the time since its start"
    assert received_text(device, 10) == f"used 5.000 s, {part}; 9 launches, held back for 0.000 s"
    assert received_text(device.replace(kept=True), 10) == f"used 5.000 s, {part}; stopped for 0.000 s"
    for seconds in (-3600, 0, 4):
        assert received_text(device, seconds) == "used 5.000 s; 9 launches, held back for 0.000 s"


def test_what_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim counts for a cap, and nvcd for all where it keeps time. A slice may have had a cap before."""
    (device,) = tenant("a").devices
    device = device.replace(budget=Budget(SECOND, 0, 9))
    assert not reading((tenant("a", budget=device.budget),), 0).budgets
    assert reading((tenant("a", FIXED, 30, budget=device.budget),), 0).budgets
    monkeypatch.setattr(history, "_kept", lambda *_: (None,))
    monkeypatch.setattr(history, "budgets_of", lambda *_: LedgerReading((), (Budget(SECOND, 0, 9),)))
    reported = history._read(LinuxKernel(), (tenant("a"), tenant("b", FIXED, 30)))
    assert list(reported.budgets) == [("b", GPU)], "`report` shows no use of 0 % where nobody counts"
    assert received_text(device, 10).startswith("utilization is not measured: ")
    assert received_text(device.replace(kept=True), 10).startswith("used 1.000 s")
    assert received_text(device.replace(cores=30, policy=FIXED), 10).startswith("used 1.000 s")


def test_what_was_received() -> None:
    never = {("unmeasured", GPU): Budget()}
    old = Reading(0, {("a", GPU): Budget(5 * SECOND, SECOND, 10), ("gone", GPU): Budget(), **never})
    new = Reading(
        2 * SECOND, {("a", GPU): Budget(6 * SECOND, 2 * SECOND, 15), ("new", GPU): Budget(1), **never}
    )
    assert received(old, new) == {("a", GPU): Received(0.5, 0.5, 5)}


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**62))
def test_figures_of_a_liar_are_bounded(before: int, after: int, at: int) -> None:
    old, new = ({("a", GPU): Budget(n, n, n)} for n in (before, after))
    had = received(Reading(at, old), Reading(at, new)).get(("a", GPU))
    assert had is None and not after or had is not None
    if had is None:
        return
    assert 0 <= had.share <= MOST and 0 <= had.waited <= MOST and had.launches >= 0


def test_nothing_is_more_than_the_whole() -> None:
    """Time and its use are not read in the same moment, and threads wait at the same time."""
    assert [percent(part) for part in (0.999, 1.013, 1.105, None)] == ["99.9%", "100.0%", "100.0%", "-"]


def test_states() -> None:
    had = Received(0.3, 0.0, 5)
    assert (
        state(tenant("a", FIXED, 30), tenant("a", FIXED, 30).devices[0], had.replace(waited=0.1)) == "capped"
    )
    for wanted, more, seen in (
        ("busy", {}, had),
        ("idle", {}, Received(0.0, 0.0, 0)),
        ("waiting", {}, had.replace(waited=0.2)),
        ("paused", {"paused": True}, had),
        ("denied", {"denied": True, "paused": True}, had),
        ("gone", {"pids": ()}, had),
        ("-", {}, None),
        ("idle", {"kept": True}, None),  # the driver's log tells
        ("-", {"cores": 30}, None),  # no cap holds under `native`
        ("idle", {"cores": 30, "policy": FIXED}, None),
        ("-", {"cores": 30, "policy": POLICIES.index("concurrent")}, None),  # a part of the multiprocessors
    ):
        one = tenant("a", **more)
        assert state(one, one.devices[0], seen) == wanted


@given(st.binary(max_size=3 * layout.BUDGET.size), st.integers(0, 3))
def test_whatever_a_tenant_writes_there(data: bytes, devices: int) -> None:
    try:
        found = parse_budgets(data, devices)
    except LedgerError:
        assert len(data) < devices * layout.BUDGET.size
        return
    assert len(found) == devices


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200, 0])
def test_the_screen_is_as_wide_as_there_is_room(width: int) -> None:
    everybody = (tenant("f000015a", FIXED, 30), tenant("f000016b", WEIGHT, weight=4), tenant("f000017c"))
    figures = {(one.entry.key, GPU): Received(0.299, 0.7, 5) for one in everybody}
    shown = plain_top(everybody, 100.0, figures, width)
    assert all(len(line) <= width for line in shown.splitlines()) or not width
    for text in (
        "f000015a",
        "CORES",
        "30%",
        "UTILIZED",
        "29.9%",
        "WAITED",
        "70.0%",
        "STATE",
        "capped",
        "USED",
    ):
        assert text in shown or width < 80, shown
    assert ("merged" in shown) == (width == 0 or width >= 120)


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=5), st.integers(1, 60))
def test_any_table_fits(rows: list[tuple[str, str, str]], width: int) -> None:
    shown = fitted([("A", "B", "C"), *rows], width, ("B",), ("C",))
    assert len(shown.splitlines()) == len(rows) + 1 and all(
        len(line) <= width for line in shown.splitlines()
    )


Points = tuple[tuple[float, float], ...]
POINTS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, MOST)), max_size=20).map(tuple)


def track(name: str, points: Points, entitlement: Points) -> Track:
    return Track("key", name, "GPU-0", points, entitlement, 0.5)


@given(
    st.text(max_size=30),
    st.lists(st.builds(track, st.text(max_size=30), POINTS, POINTS), max_size=9),
    st.floats(0, 1e6),
)
def test_any_drawing_is_sound(title: str, tracks: list[Track], seconds: float) -> None:
    root = ElementTree.fromstring(svg(title, tuple(tracks), seconds))
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(names) > len(tracks)
    drawn = sum(len(one.points) > 0 for one in tracks) + sum(len(one.entitlement) > 0 for one in tracks)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == drawn


def test_a_drawing_has_what_it_is_of() -> None:
    one = track("a <b> & c", ((0.0, 0.0), (1.0, 1.0)), ((0.0, 0.3), (1.0, 0.3)))
    text = svg("Shares", (one,), 1.0)
    assert "a &lt;b&gt; &amp; c" in text and "100%" in text and "stroke-dasharray" in text
    assert 'points="56.0,372.0 876.0,44.0"' in text

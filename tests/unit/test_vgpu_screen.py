"""The interactive `top` without a terminal: bars, lines, orders and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GIB

from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import Account
from nvc.model.slices.slice import SliceDevice
from nvc.slices.policy.utilization import Received
from nvc.slices.show import tables
from nvc.slices.show.bars import ASCII, BLOCKS, bar, fitted_text, short_size, sparkline
from nvc.slices.show.screen import KEYS, body_length, frame
from nvc.slices.show.tables import plain_top
from nvc.slices.show.view import SORTS, Picture, View, pressed
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus


def tenant(number: int, gpu: int = 0, used: int = GIB, limit: int = 4 * GIB, **more: Any) -> SliceStatus:
    key = f"f{number:07x}"
    entry = Entry(key, f"/run/nvc/vgpu/{key}", 1, number, "/rootfs", "/usr/lib", 1000 + number, ())
    device = SliceDeviceStatus(f"GPU-{gpu}", str(gpu), "H100", 80 * GIB, limit, used, policy=3)
    entitlement = 0.25 if more.get("alive", True) else None
    device = device.replace(cores=more.pop("cores", 25), entitlement=entitlement)
    account = Account(0, 1, f"python{number}", (used,), 7)
    alive = more.pop("alive", True)
    pids, accounts = ((7,), (account,)) if alive else ((), ())
    return SliceStatus(entry, key, pids, (device,), accounts, name=key, **more)


def picture(*everybody: SliceStatus, received: tuple[float, ...] = (), **more: Any) -> Picture:
    places = [(one.entry.key, one.devices[0].uuid) for one in everybody]
    had = {place: Received(share, share / 2, 9) for place, share in zip(places, received)}
    past: dict[tuple[str, str], tuple[float, ...]] = {
        place: (0.0, share) for place, share in zip(places, received)
    }
    return Picture(everybody, had, past, 2000.0, 1.0, **more)


def text_of(line: Sequence[tuple[str, str]]) -> str:
    return "".join(text for text, _ in line)


def lines(shown: Picture, view: View | None = None, width: int = 80, height: int = 24) -> list[str]:
    return [text_of(line) for line in frame(shown, view or View(), width, height)]


def order(shown: Picture, view: View) -> list[str]:
    """The slices by number, as they are shown."""
    first = [line.split(" ")[0] for line in lines(shown, view, 100, 60)]
    return [str(int(word[1:], 16)) for word in first if len(word) == 8 and word.startswith("f000")]


@pytest.mark.parametrize(
    ("part", "mark", "shown"),
    [
        (0.5, None, "#####....."), (0.26, 0.25, "##|......."), (0.5, 0.25, "##|##....."),
        (9.99, 0.999, "#########|"), (-1.0, 1.0, ".........."), (None, None, ".........."),
        (0.0, 0.01, "|........."),
    ],
)  # fmt: skip
def test_bars(part: float | None, mark: float | None, shown: str) -> None:
    assert text_of(bar(part, mark, 10, "good", ASCII)) == shown


def test_a_bar_with_parts_of_a_cell() -> None:
    assert text_of(bar(0.55, None, 10, "good", BLOCKS)) == "█████▌····"
    assert bar(0.5, 0.75, 4, "good", BLOCKS) == (("██", "good"), ("·", "dim"), ("│", "mark"))


def test_lines_of_history() -> None:
    assert sparkline((9.0, 0.0, 0.5, 1.0), 3, BLOCKS) == "▁▅█"
    assert sparkline((0.0, 1.0), 5, ASCII) == "   _#"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0M"), (1, "<1M"), (518 << 20, "518M"), (1000 << 20, "1.0G"), (4 * GIB, "4.0G"),
     (81559 << 20, "79.6G"), (141 * GIB, "141G"), (1024 * GIB, "1.0T"), ((1 << 64) - 1, "16384P")],
)  # fmt: skip
def test_short_sizes(count: int, text: str) -> None:
    assert short_size(count) == text


@given(st.text(), st.integers(0, 30))
def test_text_of_a_tenant_takes_the_cells_that_it_may(text: str, width: int) -> None:
    found = fitted_text(text, width)
    assert len(found) == width and found.isprintable()


def test_wide_and_combining_characters_do_not_move_columns() -> None:
    assert fitted_text("a日\u0301\x1b[2Jb", 8) == "a???[2Jb"


TENANTS = st.lists(
    st.builds(
        tenant, st.integers(0, 99), st.integers(0, 9), st.integers(0, 1 << 60), st.integers(1, (1 << 64) - 1),
        alive=st.booleans(), cores=st.integers(0, 99),
    ),
    max_size=30, unique_by=lambda one: one.entry.key,
)  # fmt: skip
VIEWS = st.builds(
    View, st.sampled_from([name for name, _ in SORTS.values()]), st.booleans(), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 200), st.sampled_from([ASCII, BLOCKS]),
)  # fmt: skip


@given(TENANTS, VIEWS, st.integers(1, 250), st.integers(1, 80), st.lists(st.text(max_size=200), max_size=4))
def test_it_fits_whatever_there_is(
    everybody: list[SliceStatus], view: View, width: int, height: int, warnings: list[str]
) -> None:
    shown = picture(*everybody, received=(0.5, 9.99, 0.0), warnings=tuple(warnings))
    found = lines(shown, view, width, height)
    assert len(found) <= height and all(len(line) <= width for line in found)
    if width >= 40 and height >= 8:
        assert len(found) == height and found[-1] == fitted_text(KEYS, width)


@pytest.mark.parametrize("width", range(40, 60))
def test_the_narrowest_terminals_have_bars_with_marks(width: int) -> None:
    text = lines(picture(tenant(1), received=(0.25,)), width=width, height=40)
    assert text[1].startswith("GPU 0") and "time" in text[2] and text[2].count("|") == 2


def test_what_80_columns_show() -> None:
    shown = picture(tenant(1), tenant(2, used=3 * GIB, limit=16 * GIB), received=(0.25, 0.5))
    text = lines(shown)
    assert text[1] == "GPU 0  H100  80.0G, policy fixed, 2 slices"
    assert " 4.0G/80.0G " in text[2] and " 75.0% " in text[2] and text[2].count("|") == 2
    assert text[4].split() == "SLICE DEVICE MEMORY USED/LIMIT UTILIZED HISTORY STATE".split()
    assert text[5].split()[3:] == ["1.0G/4.0G", "###|........", "25.0%", "_-", "capped"]
    assert text[6].split()[2:4] == ["##..........", "3.0G/16.0G"]
    assert text[9].split() == ["7", "0", "1.0G", "f0000001", "python1"]
    assert all(line == "" for line in text[11:-1]) and text[-1].startswith("q quit")


def test_gpus_take_no_more_than_half_the_lines() -> None:
    shown = picture(*(tenant(number, number) for number in range(8)))
    tall, low, lowest = (lines(shown, height=height) for height in (50, 24, 12))
    assert sum(line.startswith("GPU ") for line in tall) == 8 and "  memory " in tall[2]
    assert sum(line.startswith("GPU ") for line in low) == 8 and "  memory " not in low[2]
    assert sum(line.startswith("GPU ") for line in lowest) == 4 and "... 4 GPUs more" in lowest


@pytest.mark.parametrize("width", range(40, 70))
def test_no_number_is_cut(width: int) -> None:
    """Of a line that is too long, whole parts are left out; the percentage stays longest."""
    shown = picture(tenant(1, used=79 * GIB, limit=80 * GIB), received=(0.999,))
    text = lines(shown, width=width, height=40)
    assert " 99.9%" in text[2] and len(text[2]) <= width, text[2]
    assert ("79.0G/80.0G" in text[2]) == (width >= 43), text[2]
    row = next(line for line in text if line.startswith("f0000001"))
    assert " 99.9%" in row and ("79.0G/80.0G" in row or "/" not in row), row


def host(*indices: str) -> tuple[SliceDevice, ...]:
    return tuple(SliceDevice(f"GPU-{index}", index, "H100", 80 * GIB, 0, 0, 0) for index in indices)


def test_gpus_without_slices_are_shown() -> None:
    text = lines(picture(devices=host("0", "1")))
    assert [line for line in text if line.startswith("GPU ")] == [
        f"GPU {index}  H100  80.0G, no slice" for index in "01"
    ]
    assert any("There are no slices." in line for line in text)
    limited = host("1")[0].replace(memory=4 * GIB)  # as NVML tells within a slice
    text = lines(picture(tenant(1, gpu=1), devices=(*host("0", "10", "2"), limited)))
    heads = [line for line in text if line.startswith("GPU ")]
    assert [line.split()[1] for line in heads] == ["0", "1", "2", "10"] and "1 slice" in heads[1]
    assert "80.0G" in heads[1], heads[1]
    shown = plain_top((), 1e9, {}, host=host("0", "1"))
    assert [line.split()[:3] for line in shown.splitlines()[-2:]] == [["0", "GPU-0", "0"], ["1", "GPU-1", "0"]]


def test_live_and_plain_tables_have_the_same_words() -> None:
    """Each title of a column is one of `ls`, `top` and their processes, but for the three that are drawn."""
    shown = lines(picture(tenant(1), received=(0.3,)), width=250, height=40)
    titles = [line.split() for line in shown if "SLICE" in line]
    plain = {*tables.LS, *tables.TOP, "PID", "NAME"}
    assert set(tables.TOP) - set(tables.LS) == {"UTILIZED", "ENTITLED", "STATE", "WAITED"}, "what a moment tells"
    assert {title for line in titles for title in line} - plain == {"MEMORY", "USED/LIMIT", "HISTORY"}
    assert "PID" not in plain_top((tenant(1, used=0),), 1e9, {}), "a slice that is suspended"
    assert "1.0G" in plain_top((tenant(1),), 1e9, {}) and "MiB" not in plain_top((tenant(1),), 1e9, {})


def test_orders() -> None:
    everybody = (
        tenant(1, 2, used=2 * GIB),
        tenant(2, 0, used=9 * GIB),
        tenant(3, 1, used=5 * GIB),
        tenant(0, 0, alive=False),
    )
    shown = picture(*everybody, received=(0.3, 0.1, 0.2))
    for key, wanted in (("o", "123"), ("n", "123"), ("g", "231"), ("m", "231"), ("t", "132"), ("w", "132")):
        view = pressed(View(processes=False), key, 9)
        assert view is not None and order(shown, view) == [*wanted], key
        view = pressed(view, "r", 9)
        assert view is not None and order(shown, view) == [*reversed(wanted)]
        view = pressed(view, "a", 9)
        assert view is not None and order(shown, view) == [*reversed(wanted), "0"], "the living come first"


def test_moving_stops_at_both_ends() -> None:
    shown = picture(*(tenant(number) for number in range(40)))
    view: View | None = View(processes=False)
    for key, first in (
        ("up", 0),
        ("down", 1),
        ("page down", 11),
        ("end", 39),
        ("down", 39),
        ("page up", 29),
    ):
        assert view is not None
        view = pressed(view, key, body_length(shown, view))
        assert view is not None and view.first == first
    assert view is not None and any(line.startswith("f000001d") for line in lines(shown, view))
    assert "... 23 lines more below" in lines(shown, View(processes=False))


def test_keys_that_do_nothing_and_keys_that_leave() -> None:
    assert pressed(View(), "x", 1) == View() == pressed(View(), "other", 1)
    for key in ("q", "Q", "escape"):
        assert pressed(View(), key, 1) is None and pressed(View(help=True), key, 1) is None
    assert pressed(View(help=True), "a", 1) == View()


def test_help_fits_a_small_terminal_and_names_every_key() -> None:
    text = lines(picture(), View(help=True))
    assert "more below" not in "".join(text) and not any(line.endswith("..") for line in text)
    for key in (*SORTS, "s", "r", "a", "p"):
        assert any(f"{key}  " in line for line in text), key
    for state in ("busy", "idle", "capped", "waiting", "paused", "denied", "gone"):
        assert any(f" {state} " in line for line in text), state


def test_nobody_is_there() -> None:
    assert any("There are no slices." in line for line in lines(picture()))
    assert any("`a` shows those that are gone" in line for line in lines(picture(tenant(1, alive=False))))


def test_what_cannot_be_read_is_said() -> None:
    text = lines(picture(tenant(1), warnings=("quota: damaged", "about: missing", "third")))
    assert (
        text[1].startswith("quota: damaged")
        and text[2].startswith("about: missing")
        and "third" not in text[3]
    )
    row = next(
        line for line in lines(picture(tenant(1, problem="ledger: damaged"))) if line.startswith("f00")
    )
    assert "?/4.0G" in row

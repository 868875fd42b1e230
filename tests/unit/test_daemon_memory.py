"""What nvcd makes of bytes that others write, and of its own measures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.daemon.audit.nvml_client import parse
from nvc.daemon.audit.nvml_process import SAMPLES_SINCE, samples_since

UUID = "GPU-00000000-1111-2222-3333-444444444440"


def device(*more: object, name: object = UUID, figures: tuple[object, ...] = (1, 2, 3, 4, 0)) -> bytes:
    """An answer of one device."""
    return json.dumps([[name, *figures, *(more or ([], -1, []))]]).encode()


def test_an_answer() -> None:
    (found,) = parse(device([[12, 30], [12, 20], [13, -1]], -1, [], figures=(100, 50, 7, -1, 0)))
    assert (found.uuid, found.memory, found.used, found.busy, found.memory_busy) == (UUID, 100, 50, 7, -1)
    assert found.processes == ((12, 30), (13, -1))
    assert parse(b"[]") == ()


@pytest.mark.parametrize(
    "data",
    [
        b'"nvmlInit: error 9"',
        device(figures=(1, 2, 3, 4)),
        device(figures=(1, 2, 3, 4, "x")),
        device(figures=(1, 2, 3, 4, 1 << 64)),
        device(figures=(-2, 2, 3, 4, 0)),
        device([[0, 1]], -1, []),
        device(name="x" * 200),
        device(name=""),
        device([], -2, []),
        device([], 0, [[1, 101]]),
        device([], 0, [[0, 1]]),
        b"{}",
        b"nonsense",
        b"",
        b"[" * 70000,
    ],
)
def test_answers_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


def test_utilization_is_told_or_not() -> None:
    (plain,) = parse(device())
    (told,) = parse(device([], 0, [[7, 40], [8, 100]]))
    (refused,) = parse(device([], 3, []))
    assert (plain.sampled, plain.use) == (-1, ())
    assert (told.sampled, told.use) == (0, ((7, 40), (8, 100)))
    assert (refused.sampled, refused.use) == (3, ())


def test_samples_after_the_wall_clock_was_set() -> None:
    """Those of before then are not waited for until that time has come again."""
    now = 1_800_000_000_000_000
    assert samples_since(0, now) == now - SAMPLES_SINCE
    assert samples_since(now - 2_000_000, now) == now - 2_000_000
    for hours in (-1, 1):
        assert samples_since(now + hours * 3_600_000_000, now) == now - SAMPLES_SINCE


@given(st.lists(st.sampled_from([UUID, "", -1, 0, 7, 1.5, None, [], [[7, 1]], [[0, 1]]]), min_size=8, max_size=10))
def test_any_answer_is_understood_or_refused(words: list[object]) -> None:
    try:
        found = parse(json.dumps([words]).encode())
    except ValueError:
        return
    assert all(device.uuid and all(pid > 0 for pid, _ in device.processes) for device in found)

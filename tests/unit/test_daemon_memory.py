"""What nvcd makes of bytes that others write, and of its own measures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.daemon.audit.nvml_client import parse
from nvc.daemon.audit.nvml_process import SAMPLES_SINCE, samples_since

UUID = "GPU-00000000-1111-2222-3333-444444444440"


def test_an_answer() -> None:
    (found,) = parse(
        f"device {UUID} 100 50 7 -1 0\nprocess {UUID} 12 30\nprocess {UUID} 12 20\nprocess {UUID} 13 -1"
    )
    assert (found.uuid, found.memory, found.used, found.busy, found.memory_busy) == (UUID, 100, 50, 7, -1)
    assert found.processes == ((12, 30), (13, -1))
    assert parse("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "problem nvmlInit: error 9",
        f"device {UUID} 1 2 3 4",
        f"device {UUID} 1 2 3 4 x",
        f"device {UUID} 1 2 3 4 {1 << 64}",
        f"device {UUID} -2 2 3 4 0",
        f"process {UUID} 1 1",
        f"device {UUID} 1 2 3 4 0\nprocess {UUID} 0 1",
        "device " + "x" * 200 + " 1 2 3 4 0",
        f"device {UUID} 1 2 3 4 0\nbusy {UUID} 1 1",
        f"device {UUID} 1 2 3 4 0\nsampled {UUID} -1",
        f"device {UUID} 1 2 3 4 0\nsampled {UUID} 0\nbusy {UUID} 1 101",
        f"device {UUID} 1 2 3 4 0\nsampled {UUID} 0\nbusy {UUID} 0 1",
        f"sampled {UUID} 0",
        "nonsense",
        "\n" * 70000,
    ],
)
def test_answers_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_utilization_is_told_or_not() -> None:
    device = f"device {UUID} 1 2 3 4 0"
    (plain,) = parse(device)
    (told,) = parse(f"{device}\nsampled {UUID} 0\nbusy {UUID} 7 40\nbusy {UUID} 8 100")
    (refused,) = parse(f"{device}\nsampled {UUID} 3")
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


@given(
    st.lists(
        st.sampled_from(
            ["device", "process", "sampled", "busy", "problem", UUID, "-1", "0", "7", "1e9", "x", ""]
        ),
        max_size=30,
    )
)
def test_any_answer_is_understood_or_refused(words: list[str]) -> None:
    text = " ".join(words).replace(" device", "\ndevice").replace(" process", "\nprocess")
    text = text.replace(" sampled", "\nsampled").replace(" busy", "\nbusy")
    try:
        found = parse(text)
    except ValueError:
        return
    assert all(device.uuid and all(pid > 0 for pid, _ in device.processes) for device in found)

"""Files of device policies."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.model.slices.time_settings import IDLE_US, PERIOD_US, parse_duration, parse_policy
from nvc.slices.policy.policies import (
    FLOOR_US,
    INSTANCES_MAX,
    NONE,
    QUANTUM_US,
    TOTAL_WEIGHT_MAX,
    DevicePolicy,
    PolicyError,
    parse,
    read,
    write,
)

POLICIES = st.builds(
    DevicePolicy,
    st.integers(NONE, 5),
    st.integers(0, INSTANCES_MAX),
    st.integers(0, TOTAL_WEIGHT_MAX),
    st.just(0) | st.integers(*QUANTUM_US),
    st.just(0) | st.integers(*FLOOR_US),
)


@given(POLICIES)
def test_what_is_written_is_read(policy: DevicePolicy) -> None:
    assert parse(policy.text()) == policy


@pytest.mark.parametrize("uuid", ["", "../x", "GPU-1/2", "GPU-\n", "x" * 81])
def test_what_is_no_uuid_is_no_path(uuid: str) -> None:
    with pytest.raises(PolicyError, match="not a UUID"):
        read(uuid)


@pytest.mark.parametrize(
    ("text", "bounds", "cause", "hint"),
    [
        ("50", PERIOD_US, "no unit; want 20ms to 1s", "did you mean 50ms?"),
        ("5", IDLE_US, "no unit; want 1s to 168h", "did you mean 5s?"),
        ("2s", PERIOD_US, "want 20ms to 1s", "write 1s"),
        ("30ms", FLOOR_US, "want 100us to 20ms", "write 20ms"),
        ("9us", QUANTUM_US, "want 1ms to 1s", "write 1ms"),
        ("soon", QUANTUM_US, "want 1ms to 1s", "write 10ms"),
    ],
)
def test_the_nearest_duration_is_named(text: str, bounds: tuple[int, int], cause: str, hint: str) -> None:
    with pytest.raises(InputError) as told:
        parse_duration("--period", text, *bounds)
    assert (told.value.cause, told.value.hint) == (cause, hint)


def test_the_nearest_policy_is_named() -> None:
    with pytest.raises(InputError, match="did you mean `fixed`"):
        parse_policy("--policy", "fiexd")


def test_a_full_disk_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the message tell anybody to."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nvc.base.files.replace_file", full)
    with pytest.raises(PolicyError, match="no space left on device; the policy stays as it was; `df ") as told:
        write("GPU-1", DevicePolicy(policy=0))
    assert "reset" not in str(told.value)

"""A bundle's device rules: what they mean, and that the program made of them says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.apply.cgroup.evaluate import answer_to
from nvc.apply.cgroup.program import reloadable
from nvc.apply.cgroup.rules import RUNTIME_RULES, DeviceRule, allow_all, decide, generate, parse

rules = st.lists(
    st.builds(
        DeviceRule,
        st.booleans(),
        st.integers(0, 2),
        st.integers(-1, 3),
        st.integers(-1, 3),
        st.integers(1, 7),
    ),
    max_size=10,
).map(tuple)


def by_hand(listed: tuple[DeviceRule, ...], kind: int, access: int, major: int, minor: int) -> bool:
    """Each of the three accesses by itself, rules from first to last."""
    for bit in (1, 2, 4):
        if not access & bit:
            continue
        allowed = False
        for rule in listed:
            if rule.type in (0, kind) and rule.major in (-1, major) and rule.minor in (-1, minor):
                allowed = rule.allow if rule.access & bit else allowed
        if not allowed:
            return False
    return True


@given(rules, st.integers(1, 2), st.integers(1, 7), st.integers(0, 4), st.integers(0, 4))
def test_program_says_what_the_rules_mean(
    listed: tuple[DeviceRule, ...], kind: int, access: int, major: int, minor: int
) -> None:
    expected = by_hand(listed, kind, access, major, minor)
    assert decide(listed, kind, access, major, minor) == expected
    code = generate(listed)
    assert answer_to(code, access << 16 | kind, major, minor)[0] == int(expected)
    assert reloadable(code)


def test_parse_fills_in_what_is_absent() -> None:
    assert parse([{"allow": False}]) == (DeviceRule(False, 0, -1, -1, 7),)
    assert parse([{}]) == (DeviceRule(False, 0, -1, -1, 7),)
    assert parse([{"allow": True, "type": "c", "major": 10, "minor": 200, "access": "rw"}]) == (
        DeviceRule(True, 2, 10, 200, 6),
    )
    assert parse([{"allow": True, "type": "b", "major": -1, "minor": None, "access": "m"}]) == (
        DeviceRule(True, 1, -1, -1, 1),
    )
    assert parse([{"allow": True, "type": "a", "access": ""}]) == (DeviceRule(True, 0, -1, -1, 7),)
    assert parse([]) == ()


@pytest.mark.parametrize(
    "devices",
    [
        {},
        "a",
        7,
        [[]],
        [{"allow": 1}],
        [{"type": "x"}],
        [{"type": "p"}],
        [{"type": ["c"]}],
        [{"access": "rx"}],
        [{"access": 7}],
        [{"access": ["r"]}],
        [{"major": "1"}],
        [{"major": True}],
        [{"minor": 1.0}],
        [{"minor": 1 << 31}],
        [{}] * 3000,
    ],
)
def test_malformed_rules_are_refused(devices: object) -> None:
    with pytest.raises(ValueError, match="linux.resources.devices"):
        parse(devices)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["allow", "type", "major", "minor", "access"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(json)
def test_any_document_is_survived(devices: object) -> None:
    try:
        listed = parse(devices)
    except ValueError:
        return
    assert len(generate(listed)) >= 9


def test_runtimes_allow_the_default_devices() -> None:
    deny = (DeviceRule(False, 0, -1, -1, 7), *RUNTIME_RULES)
    assert allow_all(deny, ((1, 3), (1, 5), (5, 2), (136, 3)))
    assert not allow_all(deny, ((1, 3), (195, 0)))
    assert decide(deny, 1, 1, 8, 0) and not decide(deny, 1, 2, 8, 0)

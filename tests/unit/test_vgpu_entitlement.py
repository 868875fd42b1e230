"""What is in force on a device, and who is entitled to what: computed, shown, and scheduled."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import REPO, examples
from support.host import GPU, host

from nvc.model.slices import layout
from nvc.model.slices.policy import POLICIES, TABLE, policy_of
from nvc.slices.policy import policies
from nvc.slices.policy.entitlement import Demand, entitlements, in_force
from nvc.slices.policy.policies import NONE, DevicePolicy

FAIR, PREEMPT, WEIGHT, FIXED, SOFT, NATIVE = map(
    POLICIES.index, ("fair", "first", "weight", "fixed", "soft", "native")
)


def claim(key: str, policy: int = NATIVE, cores: int = 0, weight: int = 1, **more: Any) -> Demand:
    """The slice `key`, and those with a lesser key are older."""
    return Demand(key, policy=policy, cores=cores, weight=weight, **more)


def parts(*claims: Demand, policy: int = NONE, maximum: int = 0, idle: str = "") -> list[float | None]:
    found = entitlements(in_force(DevicePolicy(policy, maximum), claims), frozenset(idle))
    return [round(found[one.key], 3) if one.key in found else None for one in claims]


def test_the_table_is_sound() -> None:
    assert [row.number for row in TABLE] == list(range(len(TABLE))) and len(set(POLICIES)) == len(TABLE)
    # The shim knows two policies from the others by their numbers.
    assert [row.number for row in TABLE if not row.timed] == [layout.POLICY_NATIVE, POLICIES.index("concurrent")]
    assert [row.number for row in TABLE if row.server] == [POLICIES.index("concurrent")]
    assert policy_of(77).name == "77" and policy_of(77).timed


def test_the_chart_knows_every_policy() -> None:
    with open(os.path.join(REPO, "packaging/kubernetes/chart/values.schema.json"), encoding="utf-8") as file:
        found = re.findall(r'"policy": \{\s*"enum": (\[[^]]*\])', file.read())
    claimed = [row.name for row in TABLE if not row.server]
    assert [json.loads(names) for names in found] == [claimed] * 2, "run packaging/tables.py"


def test_what_each_policy_entitles_to() -> None:
    assert parts(claim("a", FIXED, 30), claim("b", FIXED, 70)) == [0.3, 0.7]
    assert parts(*(claim(key, WEIGHT, weight=n) for key, n in zip("abc", (1, 2, 4)))) == [
        0.143,
        0.286,
        0.571,
    ]
    assert parts(claim("a", PREEMPT, weight=9), claim("b", PREEMPT)) == [0.5, 0.5]
    assert parts(claim("a", FAIR), maximum=4) == [0.25]
    assert parts(claim("a", SOFT, 20, 9), claim("b", SOFT)) == [0.2, 0.8]
    assert parts(claim("a"), claim("b")) == [None, None]


def test_the_device_has_one_policy() -> None:
    """The oldest slice's that takes leases, or the operator's."""
    three = claim("a", WEIGHT, weight=3), claim("b", FIXED, 30), claim("c", PREEMPT)
    assert parts(*three) == [0.6, 0.2, 0.2]
    assert parts(*three, policy=FIXED) == [0.35, 0.3, 0.35]
    assert parts(*three, policy=NATIVE) == [None, None, None]
    younger = (
        claim("a", WEIGHT, weight=3, age=(1, 0)),
        claim("b", FIXED, 30, age=(0, 2)),
        claim("c", age=(0, 1)),
    )
    assert parts(*younger) == [0.7, 0.3, None]


def test_idle_and_paused_slices() -> None:
    """Their part goes to the others, except under `fair`, where each has its own."""
    two = claim("a", WEIGHT, weight=3), claim("b", WEIGHT)
    assert parts(*two, idle="a") == [0, 1]
    assert parts(two[0].replace(paused=True), two[1]) == [0, 1]
    assert parts(*two, policy=FAIR, idle="a") == [0, 0.5]


SHARE = st.tuples(st.sampled_from(range(len(TABLE))), st.integers(0, 99), st.integers(1, 16))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), SHARE),
        st.tuples(st.just("set"), SHARE),
        st.tuples(st.just("pause"), SHARE),
        st.tuples(st.just("leave"), SHARE),
        st.tuples(
            st.just("lay down"), st.tuples(st.sampled_from((NONE, *range(len(TABLE)))), st.integers(0, 9))
        ),
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_top_and_nvcd_agree(events: list[tuple[str, tuple[int, ...]]], random: Any) -> None:
    """With mixed policies, arrivals and departures."""
    with host() as made:
        made.arrive(FIXED, 30, 1)
        made.arrive(WEIGHT, 0, 3)
        assert made.state() == {"1-1-1-1": ("weight", 0.3 / 1.2), "2-1-1-2": ("weight", 0.9 / 1.2)}
        for event, values in events:
            if event == "arrive":
                made.arrive(*values)
            elif event == "lay down":
                policies.write(GPU, DevicePolicy(values[0], max_instances=values[1]))
            elif made.keys:
                key = random.choice(made.keys)
                if event == "leave":
                    made.leave(key)
                else:
                    flags = layout.PAUSED if event == "pause" else 0
                    made.set(key, policy=values[0], cores=values[1], weight=values[2], flags=flags)
            assert made.top() == made.state()

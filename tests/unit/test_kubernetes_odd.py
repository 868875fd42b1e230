"""Claims whose author, or an API server, writes anything: an allocation or an error of the claim, never a bug."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import GIB
from support.apiserver import claim, parameters, result
from support.facts import UUID_0

from nvc.base.errors import InputError
from nvc.kubernetes.api.client import _checked
from nvc.kubernetes.claims.claim import allocation_of
from nvc.kubernetes.claims.devices import Device
from nvc.kubernetes.claims.parameters import KINDS, merged
from nvc.kubernetes.errors import ApiError, ClaimError

DEVICES = {"gpu-0": Device("gpu-0", "gpu", UUID_0, "0", 80 * GIB, (), "0000:3b:00.0")}
RIGHT = {"apiVersion": "gpu.nvc.dev/v1alpha1", "kind": "SliceParameters"}
FIELDS = (*KINDS["SliceParameters"], *RIGHT)
NAMES = st.sampled_from(
    ["devices", "results", "request", "driver", "requests", "name", "cores", "kind", *"xy"]
)
#: Words that are right somewhere, too.
WORDS = st.sampled_from(["gpu-0", "gpu.nvc.dev", "a", "50ms", "weight", "compute", "25", "1Gi", *KINDS])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
DEEP = json.loads("[" * 900 + "]" * 900)


@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([{}, RIGHT]),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
@example("SliceParameters", RIGHT, {"kind": []})
@example("SliceParameters", RIGHT, {"kind": {}})
def test_parameters_of_any_shape(kind: str, right: dict[str, Any], value: dict[str, Any]) -> None:
    try:
        merged(kind, (("here", {**right, **value}),))
    except InputError as error:
        assert error.step.startswith("here")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [DEEP, {"x": DEEP}], ids=["a list", "an object"])
def test_a_value_with_others_inside_is_not_quoted(field: str, value: object) -> None:
    """However deep they are."""
    with pytest.raises(InputError, match=f"here.{field}: {'a list' if value is DEEP else 'an object'}: "):
        merged("SliceParameters", (("here", {**RIGHT, field: value}),))


def made() -> dict[str, Any]:
    """A claim with one slice, and whatever a claim may say."""
    config = [parameters("FromClass", ("a",), weight=2), parameters(period="50ms", capabilities=["compute"])]
    found = claim("c", [result("a", "gpu-0", "2Gi", "25")], config=config)
    found["spec"]["devices"]["requests"].append({"name": "b", "firstAvailable": [{"name": "x"}]})
    return found


def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """The way to every value inside."""
    items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, inner in items:
        yield (key,)
        yield from ((key, *rest) for rest in places(inner))


@given(st.sampled_from([*places(made())]), JSON)
def test_claims_of_any_shape(place: tuple[str | int, ...], value: Any) -> None:
    broken = made()
    uid, inner = broken["metadata"]["uid"], broken
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = copy.deepcopy(value)
    try:
        allocation_of(broken, uid, "gpu.nvc.dev", DEVICES)
    except ClaimError as error:
        assert error.step == "prepare claim"


def test_an_answer_that_is_too_deep_to_be_read() -> None:
    """The API server keeps parameters of 10 KiB, whatever is in them."""
    with pytest.raises(ApiError, match="no JSON object"):
        _checked("get", "/claim", 200, b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}")

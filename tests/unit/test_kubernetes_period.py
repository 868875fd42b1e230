"""The period of a claim's cap: from its parameters to the slice."""

from __future__ import annotations

from typing import Any

import pytest
from support import GIB
from support.apiserver import claim, parameters, result
from support.facts import UUID_0

from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.claim import Allocation, Given, allocation_of
from nvc.kubernetes.claims.devices import Device
from nvc.kubernetes.errors import ClaimError


def given(*configs: dict[str, Any], cores: str = "25") -> Given:
    devices = {"gpu-0": Device("gpu-0", "gpu", UUID_0, "0", 80 * GIB, (), "0000:3b:00.0")}
    made = claim("c", [result("a", "gpu-0", "2Gi", cores)], config=list(configs))
    (one,) = allocation_of(made, made["metadata"]["uid"], "gpu.nvc.dev", devices).given
    return one


def test_a_claims_period_wins_over_its_classes() -> None:
    assert given().period_us == 0
    assert given(parameters("FromClass", period="1s")).period_us == 1_000_000
    one = given(parameters("FromClass", period="1s"), parameters(period="50ms"))
    assert one.period_us == 50_000
    part = give._part(Allocation("0b2e", "ml", "c", (one,)), 0)
    assert (part.uuid, part.cores, part.period_us) == (one.uuid, 25, 50_000)


@pytest.mark.parametrize(
    ("period", "cores", "cause"),
    [
        ("5ms", "25", "period: .*want 20ms to 1s"),
        (50, "25", 'period: .*want a text like "50ms"'),
        ("50ms", "100", "period: 50ms: .*policy native of gpu-0 has no periods"),
    ],
)
def test_what_is_no_period_of_a_claim(period: object, cores: str, cause: str) -> None:
    with pytest.raises(ClaimError, match=cause):
        given(parameters(period=period), cores=cores)

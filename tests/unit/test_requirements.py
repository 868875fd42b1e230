"""Requirement expressions: the peers' grammar with its oddities, and what a failure says."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import UUID_0, UUID_1, facts, gpu

from nvc.base.errors import RequirementError
from nvc.model.selection import Selection
from nvc.request.requirements import check

TESLA = gpu(0, UUID_0, brand="Tesla", architecture="7.5", name="Tesla T4")
GEFORCE = gpu(1, UUID_1, brand="GeForceRTX", architecture="8.9", name="GeForce RTX 4090")
HOST = facts(cuda_version="12.2", driver_version="535.104.05", gpus=(TESLA, GEFORCE))


def failure(*expressions: str, gpus: tuple[Any, ...] = (TESLA,), host: Any = HOST) -> str:
    """The text of the error, "" where every expression holds."""
    try:
        check(expressions, host, Selection(gpus=gpus))
    except RequirementError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "expression",
    [
        "", ",", "cuda>=12.2", "cuda>=12", "cuda=12.2.0.0", "CUDA>12.1", "cuda!=12",
        "cuda!12.3",  # the prefix quirk
        "cuda<12..10", "driver<535.104.6", "brand=tesla", "brand!=geforce",
        "cuda>=99,nonsense driver>=1",  # a false rule ends its group unread
        "cuda>=12 nonsense",  # a true group ends the predicate unread
        "cuda>=12, ,nonsense",  # a space ends the group, comma or not
        "  cuda>=99   cuda>=12  ", ",,cuda>=12,,",
        ", cuda>=99",  # a group of nothing holds
    ],
)  # fmt: skip
def test_holds(expression: str) -> None:
    assert failure(expression) == ""


@pytest.mark.parametrize(
    "expression",
    [
        "cuda>12.2", "cuda=12.2.0.1", "cuda!12.2", "cuda<12.2", "arch<7.5", "brand!=Tesla",
        "cuda>=99 ,",  # a group of nothing ends the predicate with what was found before
        "cuda>=99 brand=titan", "cuda>=12,brand=titan",
    ],
)  # fmt: skip
def test_does_not_hold(expression: str) -> None:
    group = expression.strip().split(" ")[0]
    assert failure(expression).startswith(f"requirement error: unsatisfied condition: {group}")


@pytest.mark.parametrize(
    "expression",
    [
        "cuda", ">=12", "cuda==12", "cuda>=12>1", "cuda >= 12", "cuda>=a", "cuda>=.", "cuda>=-1",
        "cuda>=" + "9" * 20, "cuda>=" + "9" * 5000, "cuda>=١٢", "gpu>=1", "brand>=tesla",
        "cuda>=99,cuda>=1 nonsense",
        "brand=" + "x" * 200,  # false, and too long for the peers' buffer
        "\0", "cuda>=12\n",
    ],
)  # fmt: skip
def test_invalid(expression: str) -> None:
    text = failure(expression)
    assert text.startswith("requirement error: invalid expression")
    assert text.isprintable()
    assert len(text) < 700


def test_a_true_rule_may_be_long() -> None:
    assert failure("brand!=" + "x" * 200) == ""


def test_what_is_not_known_holds() -> None:
    """Without a selected device nothing is known of its brand: not even the operator is looked at."""
    assert failure("brand=titan", "arch>=99", "brand<x", gpus=()) == ""
    assert failure("cuda>=99", "driver>=999", host=HOST.replace(cuda_version="", driver_version="")) == ""
    assert "invalid expression" in failure("brand=", gpus=())


def test_every_expression_must_hold_for_every_gpu() -> None:
    assert failure("brand=tesla", "arch>=7", gpus=(TESLA,)) == ""
    assert "brand=tesla" in failure("arch>=7", "brand=tesla", gpus=(TESLA, GEFORCE))
    assert "cuda>=99" in failure("arch>=7", "cuda>=99", gpus=())


def test_the_peers_text_and_a_hint() -> None:
    assert failure("cuda>=12.4 brand=titan,driver>=470") == (
        "requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version, "
        "or use an earlier cuda container; this host has driver 535.104.05 with CUDA 12.2 and CUDA 12.4 needs "
        "driver 550 or newer; NVIDIA_DISABLE_REQUIRE=1 skips this check"
    )
    assert "GPU 0 (Tesla T4) has brand Tesla" in failure("brand=titan")
    assert "GPU 1 (GeForce RTX 4090) has compute capability 8.9" in failure("arch>=9", gpus=(GEFORCE,))
    assert "this host has driver 535.104.05 with CUDA 12.2;" in failure("driver>=550")
    assert "needs driver" not in failure("cuda>=77.1")
    assert "needs driver" not in failure("cuda<12")
    assert "please update" not in failure("Cuda>=99")  # the peers compare this one by case


OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "!": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
versions = st.lists(st.integers(0, 30), min_size=1, max_size=4)
rules = st.tuples(st.sampled_from(["cuda", "driver", "arch"]), st.sampled_from(list(OPERATORS)), versions)
groups = st.lists(rules, min_size=1, max_size=3)


def padded(parts: list[int]) -> list[int]:
    return parts + [0] * (4 - len(parts))


@given(versions, versions, versions, st.lists(groups, min_size=1, max_size=3))
def test_a_predicate_is_a_disjunction_of_conjunctions(
    cuda: list[int], driver: list[int], arch: list[int], predicate: list[list[tuple[str, str, list[int]]]]
) -> None:
    def dotted(parts: list[int]) -> str:
        return ".".join(map(str, parts))

    known = {"cuda": cuda, "driver": driver, "arch": arch}
    host = HOST.replace(cuda_version=dotted(cuda), driver_version=dotted(driver))
    device = TESLA.replace(architecture=dotted(arch))
    words = [[f"{name}{op}{dotted(value)}" for name, op, value in group] for group in predicate]
    expression = " ".join(",".join(group) for group in words)
    wanted = any(
        all(OPERATORS[op](padded(known[name]), padded(value)) for name, op, value in group)
        for group in predicate
    )
    text = failure(expression, gpus=(device,), host=host)
    assert (text == "") == wanted
    if not wanted:
        assert text.startswith(f"requirement error: unsatisfied condition: {','.join(words[0])}")

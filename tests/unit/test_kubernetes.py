"""The pure parts of the kubelet plugin: quantities, parameters, devices, claims, and what is published."""

from __future__ import annotations

import os
from decimal import ROUND_CEILING, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GIB
from support.apiserver import claim, parameters, result
from support.facts import MIG_UUID_0, UUID_0, facts, gpu

from nvc.base.errors import InputError
from nvc.kubernetes.api.access import by_kubeconfig, in_cluster
from nvc.kubernetes.api.pool import NAME_MAX, Mark, Owner, changes, foreign, mark_of, name_of, parts_of
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.checkpoint import Checkpoint, is_uid
from nvc.kubernetes.claims.claim import Allocation, Consumer, Given, allocation_of
from nvc.kubernetes.claims.devices import Device, Place, architecture, devices_of, document, semantic
from nvc.kubernetes.claims.parameters import merged
from nvc.kubernetes.claims.quantity import BINARY, DECIMAL, parse_quantity
from nvc.kubernetes.errors import CheckpointError, ClaimError
from nvc.kubernetes.health.board import Problem
from nvc.model.request import SliceRequest, TimeSetting
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.policy import POLICIES

OWNER = Owner("gpu.nvc.dev", "node-a", "1")
VALUES = {**{name: Decimal(1000) ** power for name, power in DECIMAL.items()},
          **{name: Decimal(1024) ** power for name, power in BINARY.items()}}  # fmt: skip


@given(st.decimals(0, 10**9, places=3, allow_nan=False), st.sampled_from(sorted(VALUES)))
def test_quantities(number: Decimal, suffix: str) -> None:
    """A fraction is rounded up."""
    wanted = int((number * VALUES[suffix]).to_integral_value(ROUND_CEILING))
    assert parse_quantity("x", f"{number:f}{suffix}") == wanted


@given(st.integers(0, 10**6), st.integers(0, 9))
def test_exponents(number: int, power: int) -> None:
    assert parse_quantity("x", f"{number}e{power}") == number * 10**power
    assert parse_quantity("x", f"{number}E+{power}") == number * 10**power
    assert parse_quantity("x", number) == number


@given(st.text(max_size=12))
def test_quantities_of_any_text(text: str) -> None:
    """A number, or an error that names where it stands."""
    try:
        assert parse_quantity("here", text) >= 0
    except InputError as error:
        assert error.step == "here"


@pytest.mark.parametrize(
    "text", ["", "-1", "1GB", "1.2.3", "1e", "1e99", "Gi", ".", "0x10", " 1", "1 ", None, 1.5, True]
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(InputError):
        parse_quantity("x", text)


def test_a_claims_parameters_win_over_its_classes_field_by_field() -> None:
    kind = "SliceParameters"
    one = parameters(policy="weight", weight=2)["opaque"]["parameters"]
    other = parameters(weight=7)["opaque"]["parameters"]
    assert merged(kind, (("class", one), ("claim", other))) == (
        SliceRequest(policy=TimeSetting("policy", "weight", 2), weight=TimeSetting("weight", "7", 7)), ()
    )  # fmt: skip
    # Those of whole devices say nothing of a slice, but must be right all the same.
    whole = {**other, "kind": "GpuParameters"}
    with pytest.raises(InputError, match="weight: no such field of GpuParameters"):
        merged(kind, (("class", whole),))
    del whole["weight"]
    assert merged(kind, (("class", {**whole, "capabilities": ["compute"]}),)) == (SliceRequest(), ())


def test_devices() -> None:
    """A GPU in MIG mode is not offered whole; one whose memory is not known is not offered."""
    host = facts(gpus=(gpu(0, UUID_0, memory=81559), *facts().gpus[1:]))
    (only,) = devices_of(host, {host.gpus[0].bus_id: Place(1, "pci0000:3a")}, {})
    assert (only.name, only.uuid, only.memory, only.numa_node) == ("gpu-1", UUID_0, 81559 << 20, 1)
    made = document(only)
    assert made["capacity"]["memory"]["requestPolicy"] == {
        "default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"},
    }  # fmt: skip
    assert made["attributes"] == {
        "type": {"string": "gpu"}, "uuid": {"string": UUID_0}, "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "brand": {"string": "Nvidia"}, "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.159.4"}, "cudaDriverVersion": {"version": "13.0.0"}, "index": {"int": 0},
        "minor": {"int": 1}, "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"}, "resource.kubernetes.io/numaNode": {"int": 1},
    }  # fmt: skip
    assert len(made["attributes"]) + len(made["capacity"]) <= 32
    parts = tuple(part.replace(memory=9728) for part in host.gpus[1].mig)
    mig = devices_of(facts(gpus=(host.gpus[1].replace(mig=parts),)), {}, {MIG_UUID_0: "1g.10gb"})
    assert [one.name for one in mig] == ["gpu-2-mig-1-0", "gpu-2-mig-2-0"]
    assert document(mig[0])["attributes"]["profile"] == {"string": "1g.10gb"}
    assert "profile" not in document(mig[1])["attributes"]


def test_architectures() -> None:
    named = [architecture(text) for text in ("7.0", "7.5", "8.6", "8.9", "9.0", "12.0", "99.0", "")]
    assert named == ["Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "", ""]


def test_versions() -> None:
    assert [semantic(text) for text in ("13.0", "580", "580.159.04.1", "r580", "")] == [
        "13.0.0", "580.0.0", "580.159.4", "", "",
    ]  # fmt: skip


def many(count: int, **changes: Any) -> tuple[Device, ...]:
    one = Device("gpu-0", "gpu", UUID_0, "0", 80 * GIB, (), "0000:3b:00.0", **changes)
    return tuple(one.replace(name=f"gpu-{place}") for place in range(count))


def marks(there: list[dict[str, Any]]) -> dict[str, Mark]:
    """What a program remembers that has written all these."""
    return {one["metadata"]["name"]: mark_of(one) for one in there}


def applied(there: list[dict[str, Any]], devices: tuple[Device, ...]) -> list[dict[str, Any]]:
    """What the API server has after the changes."""
    found = changes(OWNER, devices, there, marks(there))
    objects = {one["metadata"]["name"]: one for one in (*there, *found.create, *found.update)}
    return [one for name, one in objects.items() if name not in found.delete]


def test_a_pool_is_changed_in_place_or_gets_a_new_generation() -> None:
    there = applied([], many(200))
    assert [len(one["spec"]["devices"]) for one in there] == [128, 72]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in there} == {2}
    assert not changes(OWNER, many(200), there, marks(there))
    # A taint means smaller objects, and so others.
    problem = Problem("xid", "79", "Xid 79")
    tainted = (many(1, problems=(problem,))[0], *many(200)[1:])
    there = applied(there, tainted)
    assert [len(one["spec"]["devices"]) for one in there] == [64, 64, 64, 8]
    assert {one["spec"]["pool"]["generation"] for one in there} == {2}
    assert there[0]["spec"]["devices"][0]["taints"] == [
        {"key": "gpu.nvc.dev/xid", "value": "79", "effect": "NoSchedule"}
    ]
    # One more taint changes one object only.
    more = (tainted[0], tainted[1].replace(problems=(problem,)), *tainted[2:])
    found = changes(OWNER, more, there, marks(there))
    assert (len(found.create), len(found.update), found.delete) == (0, 1, ())
    assert found.update[0]["spec"]["pool"]["generation"] == 2
    # Fewer devices: the objects that are too many go.
    found = changes(OWNER, many(3), there, marks(there))
    assert (len(found.create), len(found.update), len(found.delete)) == (0, 1, 3)
    assert found.update[0]["spec"]["pool"] == {"name": "node-a", "generation": 3, "resourceSliceCount": 1}
    # None at all is published as none.
    assert parts_of(()) == [()]


def test_whose_changes_are_foreign() -> None:
    """An event of what this program wrote is none, nor one of a state before that."""
    (one,) = applied([], many(1))
    one["metadata"].update(uid="a", generation=2)
    written = marks([one])

    def told(kind: str, **meta: Any) -> bool:
        return foreign(written, kind, {**one, "metadata": {**one["metadata"], **meta}})

    assert not told("ADDED") and not told("MODIFIED", labels={"a": "b"}) and not told("MODIFIED", generation=1)
    assert not told("DELETED", uid="b") and not told("DELETED", name="another")
    assert told("DELETED") and told("DELETED", generation=3)
    assert told("MODIFIED", generation=3) and told("MODIFIED", annotations={})
    assert told("MODIFIED", ownerReferences=[])
    assert told("ADDED", name="another") and told("ADDED", uid="b", generation=1)
    # What is there is written again whenever it is not what this program wrote.
    assert not changes(OWNER, many(1), [one], written)
    assert len(changes(OWNER, many(1), [one], {}).update) == 1
    one["metadata"]["generation"] = 3
    assert len(changes(OWNER, many(1), [one], written).update) == 1


def test_names_of_slices_keep_the_order_of_the_pool() -> None:
    owner = Owner("gpu.nvc.dev", "n" * 253, "1")
    names = [name_of(owner, place) for place in range(16)]
    assert sorted(names) == names and len(set(names)) == 16
    assert all(len(name) <= NAME_MAX and name[-1].isalnum() for name in names)
    assert name_of(Owner("gpu.nvc.dev", "n" * 252 + "m", "1"), 0) != names[0]


DEVICES = {one.name: one for one in many(2)}


def given_of(made: dict[str, Any]) -> tuple[Given, ...]:
    return allocation_of(made, made["metadata"]["uid"], "gpu.nvc.dev", DEVICES).given


def test_whole_or_a_slice() -> None:
    """The allocation decides; a claim that asks for all of a device by amounts is measured."""
    asked = result("a", "gpu-0", "80Gi", "100")
    (one,) = given_of(claim("c", [asked]))
    assert (one.whole, one.limit, one.cores, POLICIES[one.policy]) == (False, 80 * GIB, 0, "native")
    (one,) = given_of(claim("c", [asked], requests=[{"name": "a", "exactly": {}}]))
    assert one.whole
    # A device that has grown since its amounts were the default: what was counted holds.
    part = result("a", "gpu-0", "40Gi", "100")
    (one,) = given_of(claim("c", [part], requests=[{"name": "a", "exactly": {}}]))
    assert (one.whole, one.limit) == (False, 40 * GIB)
    admin = {**part, "adminAccess": True}
    (one,) = given_of(claim("c", [admin]))
    assert one.whole and one.limit == NO_LIMIT


def test_alternatives_and_whom_parameters_are_for() -> None:
    requests = [
        {
            "name": "a",
            "firstAvailable": [{"name": "big"}, {"name": "small", "capacity": {"requests": {"cores": "9"}}}],
        },
        {"name": "b", "exactly": {"capacity": {"requests": {"memory": "1Gi"}}}},
    ]
    results = [result("a/small", "gpu-0", "2Gi", "9"), result("b", "gpu-0", "1Gi")]
    config = [
        parameters(requests=("a",), policy="fair"),
        parameters(requests=("a/big",), weight=9),
        parameters("FromClass", policy="soft", weight=2),
        {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "Other"}}},
    ]
    first, second = given_of(claim("c", results, requests, config))
    assert (first.request, first.cores, POLICIES[first.policy], first.weight) == ("a", 9, "fair", 2)
    assert (second.request, second.cores, POLICIES[second.policy], second.weight) == ("b", 0, "soft", 2)


def with_period(*configs: dict[str, Any], cores: str = "25") -> Given:
    (one,) = given_of(claim("c", [result("a", "gpu-0", "2Gi", cores)], config=list(configs)))
    return one


def test_a_claims_period_wins_over_its_classes() -> None:
    """From its parameters to the slice."""
    assert with_period().period_us == 0
    assert with_period(parameters("FromClass", period="1s")).period_us == 1_000_000
    one = with_period(parameters("FromClass", period="1s"), parameters(period="50ms"))
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
        with_period(parameters(period=period), cores=cores)


@pytest.mark.parametrize("class_says", [None, False, True])
def test_a_claim_does_not_lift_its_own_limit(class_says: bool | None) -> None:
    """What is not counted is left out unless the operator wants it, whatever the author of a pod writes."""
    of_class = [] if class_says is None else [parameters("FromClass", uncounted=class_says)]
    made = claim("c", [result("a", "gpu-0", "2Gi")], config=[parameters(uncounted=True), *of_class])
    if not class_says:
        with pytest.raises(ClaimError, match="uncounted: a claim cannot lift its own limit"):
            given_of(made)
        return
    assert given_of(made)[0].uncounted
    made = claim("c", [result("a", "gpu-0", "2Gi")], config=of_class)
    assert given_of(made)[0].uncounted


@given(st.text(max_size=80))
def test_uids_stay_in_their_directory(text: str) -> None:
    if is_uid(text):
        assert "/" not in text and "." not in text and text


def test_checkpoints(scratch: str) -> None:
    one = Given(
        "a", "node-a", "gpu-0", "share", UUID_0, False, GIB, ("compute",), cores=25, weight=3, policy=2,
        uncounted=True, period_us=50_000,
    )  # fmt: skip
    kept = Allocation("0b2e", "ml", "part", (one,), (Consumer("train", "1"),))
    checkpoint = Checkpoint(scratch)
    checkpoint.write(kept)
    assert Checkpoint(scratch).read("0b2e") == kept and list(checkpoint.all()) == [kept]
    path = f"{scratch}/claims/0b2e.json"
    for text in (
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "uid": "0b2e"}',
        '{"version": 1, "uid": "0b2e", "given": [{}]}',
    ):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        with pytest.raises(CheckpointError, match=path):
            checkpoint.read("0b2e")
        (error,) = checkpoint.all()
        assert isinstance(error, CheckpointError)
    checkpoint.remove("0b2e")
    checkpoint.remove("0b2e")
    assert checkpoint.read("0b2e") is None and os.listdir(f"{scratch}/claims") == []


KUBECONFIG = """apiVersion: v1
clusters:
- name: c
  cluster: {"server": "SERVER", "insecure-skip-tls-verify": false}
contexts:
- name: x
  context: {"cluster": "c", "user": "u"}
users:
- name: u
  user: {"token": "t"}
current-context: x
"""


@pytest.mark.parametrize(
    "change, said",
    [
        (("https://h:6443", "http://h"), "want https://HOST:PORT"),
        (('skip-tls-verify": false', 'skip-tls-verify": true'), "insecure-skip-tls-verify is not obeyed"),
        (('{"token": "t"}', "{}"), "neither a certificate nor a token"),
        (("current-context: x", "current-context: y"), "contexts has no y"),
        (("clusters:", "culsters:"), "clusters has no c"),
        (("apiVersion", "\t{apiVersion"), "not YAML"),
    ],
)
def test_kubeconfigs_that_cannot_be_used(scratch: str, change: tuple[str, str], said: str) -> None:
    text = KUBECONFIG.replace("SERVER", "https://h:6443")
    path = f"{scratch}/kubeconfig"
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    server = by_kubeconfig(path)
    assert (server.host, server.port, server.token()) == ("h", 6443, "t")
    with open(path, "w", encoding="ascii") as file:
        file.write(text.replace(*change))
    with pytest.raises(InputError, match=said):
        by_kubeconfig(path)


def test_the_account_of_a_pod(scratch: str) -> None:
    with pytest.raises(InputError, match="no pod of Kubernetes"):
        in_cluster({}, scratch)
    with pytest.raises(InputError, match=f"{scratch}/ca.crt"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, scratch)

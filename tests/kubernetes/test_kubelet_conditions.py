"""Conditions of claims at an API server: what says that the slice of a device is suspended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from support.apiserver import CLAIMS, HANG, ApiServer, claim, result
from support.kubelet import DRIVER, NODE

from nvc.kubernetes.api import events
from nvc.kubernetes.api.access import by_kubeconfig
from nvc.kubernetes.api.client import Api
from nvc.kubernetes.claims.claim import Allocation, Given
from nvc.kubernetes.claims.prepare import Preparer
from nvc.model.slices.suspension import ASKED, FAILED, IDLE, ROOM, SUSPENDED, Saved, Suspension

GPUS = "GPU-a", "GPU-b"
PATH = f"{CLAIMS.format('ml')}/part"


class Node:
    """A node with one claim: a slice of each of two GPUs. Each look is a second after the one before."""

    def __init__(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        self.said: list[str] = []
        self.here: dict[str, Suspension] = {}
        self.client = Api(lambda: by_kubeconfig(api.kubeconfig()), "nvc-test")
        made = claim("part", [result("one", "gpu-0", "4Gi"), result("two", "gpu-1", "4Gi")])
        api.put(PATH, made)
        self.uid = str(made["metadata"]["uid"])
        self.results = made["status"]["allocation"]["devices"]["results"]
        given = tuple(
            Given(one["request"], one["pool"], one["device"], one["shareID"], uuid, False, 4 << 30)
            for one, uuid in zip(self.results, GPUS)
        )
        self.place = {name: self.results[0][name] for name in ("driver", "pool", "device", "shareID")}
        self.allocation = Allocation(self.uid, "ml", "part", given)
        clock = itertools.count()
        monkeypatch.setattr(events, "_now", lambda: f"2026-01-01T00:00:{next(clock):02}Z")
        monkeypatch.setattr(events, "suspensions", lambda: dict(self.here))
        holds = {"a": [f"{self.uid}-0"], "b": [f"{self.uid}-1"], "both": [f"{self.uid}-0", f"{self.uid}-1"]}
        monkeypatch.setattr(events.claims, "holds_by_slice", lambda: holds)
        self.restart()

    def restart(self) -> None:
        preparer: Any = type("Asks", (), {"api": self.client})()
        self.made = events.Events(
            self.client, DRIVER, NODE, "plugin", lambda: [self.allocation],
            lambda one: Preparer.claim(preparer, one), self.said.append,
        )  # fmt: skip

    def look(self, **states: tuple[str, str]) -> list[dict[str, Any]]:
        """The entries of the claim after a look at slices with these states and causes."""
        saved = (Saved(1, 1, "GPU-a", 3 << 20), Saved(2, 1, "GPU-b", 5 << 20))
        self.here = {
            key: Suspension(key, state, 0, saved, "it hangs", why) for key, (state, why) in states.items()
        }
        self.made.look()
        return list(self.api.objects[PATH]["status"].get("devices", []))

    def conditions(self, **states: tuple[str, str]) -> list[str]:
        """Status, reason and second of each condition, by device."""
        return [
            f"{entry['device']} {one['status']} {one['reason']} {one['lastTransitionTime'][-3:-1]}"
            for entry in self.look(**states)
            for one in entry["conditions"]
        ]

    def count(self, method: str) -> int:
        return sum(one.startswith(method) for one in self.api.requests)


@pytest.fixture
def node(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(api, monkeypatch)
    yield made
    made.client.close()


def test_a_slice_leaves_and_comes_back(node: Node) -> None:
    """The time is that of a change of the status; a device that was never suspended has no entry."""
    assert node.look() == [] and node.count("PATCH") == 0
    (entry,) = node.look(a=(SUSPENDED, IDLE))
    (one,) = entry["conditions"]
    assert entry == {**node.place, "conditions": [one]}
    assert one == {
        "type": "Suspended", "status": "True", "reason": "Idle", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "3 MiB of GPU memory are in the host's memory until they are needed",
    }  # fmt: skip
    asked = len(node.api.requests)
    assert node.conditions(a=(SUSPENDED, IDLE)) == ["gpu-0 True Idle 00"] and len(node.api.requests) == asked
    assert node.conditions(a=(FAILED, IDLE)) == ["gpu-0 Unknown Failed 01"]
    assert node.look(a=(FAILED, IDLE))[0]["conditions"][0]["message"].endswith("it hangs")
    assert node.conditions(b=(SUSPENDED, ROOM)) == ["gpu-0 False Resumed 02", "gpu-1 True Pressure 03"]
    assert node.conditions() == ["gpu-0 False Resumed 02", "gpu-1 False Resumed 04"]
    assert node.conditions(both=(SUSPENDED, "")) == ["gpu-0 True Suspended 05", "gpu-1 True Suspended 06"]
    assert node.said == []


def test_entries_and_conditions_of_others_stay(node: Node) -> None:
    network = {"driver": "net.example", "pool": "p", "device": "d", "conditions": []}
    ready = {"type": "Ready", "status": "True", "reason": "Is", "message": "", "lastTransitionTime": "x"}
    there = [network, {**node.place, "conditions": [ready]}]
    node.api.objects[PATH]["status"]["devices"] = there
    other, mine = node.look(a=(SUSPENDED, ASKED))
    assert other == network and mine["conditions"][0] == ready
    assert [one["status"] for one in node.look()[1]["conditions"]] == ["True", "False"]


def test_a_plugin_that_starts_again(node: Node) -> None:
    """What is so already is not written again; what has changed meanwhile is."""
    node.look(a=(SUSPENDED, ASKED), b=(SUSPENDED, IDLE))
    node.restart()
    version = node.api.version
    first = ["gpu-0 True Asked 00", "gpu-1 True Idle 01"]
    assert node.conditions(a=(SUSPENDED, ASKED), b=(SUSPENDED, IDLE)) == first and node.api.version == version
    node.restart()
    assert node.conditions(a=(SUSPENDED, ASKED)) == [first[0], "gpu-1 False Resumed 02"]


@pytest.mark.parametrize("method", ["GET", "PATCH"])
@pytest.mark.parametrize("status", [HANG, 403, 500])
def test_what_fails_is_tried_again_and_said_once(node: Node, method: str, status: int) -> None:
    node.look()
    node.client.timeout = 0.5 if status == HANG else node.client.timeout
    node.api.fail(method, status)
    for _ in range(3):
        assert node.look(a=(SUSPENDED, IDLE)) == []
    assert len(node.said) == 1
    node.api.fail(method, 0)
    assert node.conditions(a=(SUSPENDED, IDLE))[0].startswith("gpu-0 True Idle")
    asked = len(node.api.requests)
    node.look(a=(SUSPENDED, IDLE))
    assert len(node.api.requests) == asked and len(node.said) == 1


def test_a_server_that_keeps_no_conditions(node: Node) -> None:
    """The feature gate is off: that is said once, and nothing more is written."""
    node.api.keeps_devices = False
    assert node.look(a=(SUSPENDED, IDLE)) == node.look() == node.look(b=(SUSPENDED, IDLE)) == []
    assert node.count("PATCH") == 1 and len(node.said) == 1 and "DRAResourceClaimDeviceStatus" in node.said[0]


def test_a_claim_that_is_deallocated_or_gone(node: Node) -> None:
    """The API server removes the entries with the allocation, and refuses new ones: nothing is left to do."""
    node.look(a=(SUSPENDED, IDLE), b=(SUSPENDED, IDLE))
    status = node.api.objects[PATH]["status"]
    del status["allocation"]["devices"]["results"][0], status["devices"][0]
    assert node.conditions(a=(FAILED, IDLE)) == ["gpu-1 False Resumed 02"]
    del status["allocation"]
    node.api.objects[PATH]["status"]["allocation"] = {}
    node.api.objects[PATH]["status"]["devices"] = []
    patches = node.count("PATCH")
    assert node.look(a=(SUSPENDED, IDLE)) == []
    node.api.objects[PATH]["metadata"]["uid"] = "that of another claim of this name"
    assert node.look() == []
    del node.api.objects[PATH]
    node.here = {}
    node.made.look()
    assert node.count("PATCH") == patches and node.said == []

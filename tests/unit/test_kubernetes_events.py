"""What pods and claims are told of slices that are suspended."""

from __future__ import annotations

from typing import Any

import pytest

from nvc.kubernetes.api import events
from nvc.kubernetes.claims.claim import Allocation, Consumer
from nvc.kubernetes.errors import ApiError
from nvc.model.slices.suspension import FAILED, RESUMING, SUSPENDED, Saved, Suspension

POD = Consumer("train", "pod-uid")
ALLOCATION = Allocation("1f-2", "ml", "gpu", (), (POD,))


class Api:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refused: dict[str, int] = {}  # by name of the pod: the status

    def request(self, method: str, path: str, body: Any) -> None:
        name = body["involvedObject"]["name"]
        assert method == "POST"
        if name in self.refused:
            raise ApiError("post to the API server", path, "no", status=self.refused[name])
        self.sent.append((path, body))


class Node:
    """Slices, of which `a` is one of a claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allocation: Allocation = ALLOCATION) -> None:
        self.here: dict[str, Suspension] = {}
        self.problem = "it hangs"
        self.since = 0
        self.said: list[str] = []
        self.api: Any = Api()
        monkeypatch.setattr(events, "suspensions", lambda: dict(self.here))
        holds = {"a": ["1f-2-0", "1f-2-1", "of-another-plugin-0"]}
        monkeypatch.setattr(events.claims, "holds_by_slice", lambda: holds)
        self.made = events.Events(
            self.api, "gpu.nvc.dev", "node-1", "plugin", lambda: [allocation], lambda _: None, self.said.append
        )

    def told(self, **states: str) -> list[str]:
        """What is told once slices are in these states."""
        saved = (Saved(1, 1, "GPU-a", 3 << 20),)
        self.here = {
            key: Suspension(key, state, self.since, saved, self.problem) for key, state in states.items()
        }
        self.api.sent.clear()
        self.made.look()
        return [f"{body['type']} {body['reason']} {body['message']}" for _, body in self.api.sent]


def test_each_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    told = node.told
    assert told() == told(b=SUSPENDED) == told(a=RESUMING) == []
    (line,) = told(a=SUSPENDED)
    assert line == "Normal SliceSuspended 3 MiB of GPU memory are in the host's memory until they are needed"
    ((path, body),) = node.api.sent
    assert path == "/api/v1/namespaces/ml/events" and body["metadata"]["name"].startswith("train.")
    assert body["involvedObject"]["uid"] == "pod-uid" and body["source"]["host"] == "node-1"
    assert told(a=SUSPENDED) == []
    node.since = 5  # it ran between the looks
    assert told(a=SUSPENDED) == [line]
    assert told(a=FAILED) == ["Warning SliceSuspendFailed the slice is neither suspended nor running: it hangs"]
    node.api.refused = {"train": 403}
    assert told() == [] and len(node.said) == 1
    assert told(a=SUSPENDED) == [] and len(node.said) == 1, "it is said once"
    node.api.refused = {}
    assert told(a=SUSPENDED) == [], "who may not tell does not try again and again"
    assert told() == ["Normal SliceResumed the slice has its GPU memory back"]


LONG = "n" * 229 + ".train-" + "z" * 17
HOSTILE = "\x1b]0;x\x07\u202e<script>\n\udc9b" + "x" * 10_000


def test_hostile_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose event is refused keeps nobody else from theirs; a message is one line of bounded length."""
    pods = Consumer("../\u202ex", "1"), Consumer(LONG, "2"), POD
    node = Node(monkeypatch, ALLOCATION.replace(pods=pods))
    node.api.refused = {"../\u202ex": 422}
    node.problem = HOSTILE
    assert len(node.told(a=FAILED)) == 2
    (_, long), (_, other) = node.api.sent
    name = long["metadata"]["name"]
    assert len(LONG) == 253 >= len(name) and name.startswith("n" * 229 + ".train.")
    assert long["involvedObject"]["name"] == LONG and other["involvedObject"]["name"] == "train"
    assert other["message"].isprintable() and len(other["message"]) <= 1024


def test_a_server_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, ALLOCATION.replace(pods=(Consumer("a", "1"), POD)))
    node.api.refused = {"a": 0}
    assert node.told(a=SUSPENDED) == [] and len(node.said) == 1

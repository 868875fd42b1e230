"""What pods are told of slices of their claims that are suspended."""

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
        self.refuses = False

    def request(self, method: str, path: str, body: Any) -> None:
        if self.refuses:
            raise ApiError("post", path, "forbidden", status=403)
        assert method == "POST"
        self.sent.append((path, body))


def test_each_change_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here: dict[str, Suspension] = {}
    monkeypatch.setattr(events, "suspensions", lambda: dict(here))
    monkeypatch.setattr(events.claims, "uids_by_slice", lambda: {"a": {"1f-2", "of another plugin"}})
    api: Any = Api()
    made = events.Events(api, "node-1", "plugin", lambda: [ALLOCATION])

    def told(**states: str) -> list[str]:
        here.clear()
        saved = (Saved(1, 1, "GPU-a", 3 << 20),)
        here.update({key: Suspension(key, state, 0, saved, "it hangs") for key, state in states.items()})
        api.sent.clear()
        made.look()
        return [f"{body['type']} {body['reason']} {body['message']}" for _, body in api.sent]

    assert told() == told(b=SUSPENDED) == told(a=RESUMING) == []
    (line,) = told(a=SUSPENDED)
    assert line == "Normal SliceSuspended 3 MiB of GPU memory are in the host's memory until they are needed"
    ((path, body),) = api.sent
    assert path == "/api/v1/namespaces/ml/events" and body["metadata"]["name"].startswith("train.")
    assert body["involvedObject"]["uid"] == "pod-uid" and body["source"]["host"] == "node-1"
    assert told(a=SUSPENDED) == []
    assert told(a=FAILED) == ["Warning SliceSuspendFailed the slice is neither suspended nor running: it hangs"]
    api.refuses = True
    with pytest.raises(ApiError):
        told()
    api.refuses = False
    assert told() == [], "who may not tell does not try again and again"
    assert told(a=SUSPENDED) and told() == ["Normal SliceResumed the slice has its GPU memory back"]

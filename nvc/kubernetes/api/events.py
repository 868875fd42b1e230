"""Tells pods by events, as `kubectl describe pod` shows, that slices of their claims are suspended or run again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from nvc.kubernetes.api.client import Api
from nvc.kubernetes.claims.claim import Allocation, Consumer
from nvc.kubernetes.names import EVENTS
from nvc.model.slices.suspension import FAILED, SUSPENDED, Suspension, suspensions
from nvc.slices.store import claims

#: By state: the type of an event, its reason, and its text. What is on its way will be somewhere soon.
_TEXTS = {
    SUSPENDED: ("Normal", "SliceSuspended", "{} MiB of GPU memory are in the host's memory until they are needed"),
    FAILED: ("Warning", "SliceSuspendFailed", "the slice is neither suspended nor running: {}"),
    "": ("Normal", "SliceResumed", "the slice has its GPU memory back"),
}


class Events:
    """The events of one node's pods about slices. `component` is the program that they name as their source."""

    def __init__(self, api: Api, node: str, component: str, prepared: Callable[[], Iterable[Allocation]]) -> None:
        self.api, self.prepared = api, prepared
        self.source = {"component": component, "host": node}
        self._told: dict[str, str] = {}  # the state of slices that do not run

    def look(self) -> None:
        """Tell of each slice in another state than at the last look. Raises ApiError, NvcError, OSError."""
        found = {key: one for key, one in suspensions().items() if one.state in _TEXTS}
        before, self._told = self._told, {key: one.state for key, one in found.items()}
        changed = [key for key in sorted({*before, *found}) if before.get(key) != self._told.get(key)]
        if not changed:
            return
        uids, known = claims.uids_by_slice(), {one.uid: one for one in self.prepared()}
        for key in changed:
            for allocation in (known[uid] for uid in sorted(uids.get(key, ())) if uid in known):
                for pod in allocation.pods:
                    self._send(allocation.namespace, pod, found.get(key))

    def _send(self, namespace: str, pod: Consumer, one: Suspension | None) -> None:
        kind, reason, text = _TEXTS[one.state if one is not None else ""]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        detail = "" if one is None else one.problem if one.state == FAILED else one.bytes >> 20
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod.name}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod.name, "uid": pod.uid,
            },
            "type": kind,
            "reason": reason,
            "message": text.format(detail)[:1024],
            "source": self.source,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }  # fmt: skip
        self.api.request("POST", EVENTS.format(namespace), body)

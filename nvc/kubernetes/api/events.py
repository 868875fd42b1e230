"""Tells that slices of claims are suspended or run again: pods by events, claims by a condition of each device.

An event is sent once. A condition is compared with what the API server has, and tried again until it is there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from nvc.base.errors import one_line
from nvc.discovery.containers.files import table
from nvc.kubernetes.api.client import Api
from nvc.kubernetes.claims.claim import Allocation, Consumer, tables
from nvc.kubernetes.errors import ApiError
from nvc.kubernetes.names import CLAIM_API, CLAIMS, EVENTS
from nvc.model.slices.suspension import ASKED, FAILED, IDLE, ROOM, SUSPENDED, Suspension, suspensions
from nvc.slices.store import claims

#: By state: type and reason of an event, status of the condition, and the text of both. What is on its way will be
#: somewhere soon.
_WORDS = {
    SUSPENDED: ("Normal", "SliceSuspended", "True",
                "{} MiB of GPU memory are in the host's memory until they are needed"),
    FAILED: ("Warning", "SliceSuspendFailed", "Unknown", "the slice is neither suspended nor running: {}"),
    "": ("Normal", "SliceResumed", "False", "the slice has its GPU memory back"),
}  # fmt: skip
_TYPE = "Suspended"
_REASONS = {IDLE: "Idle", ROOM: "Pressure", ASKED: "Asked"}
_POD_MAX = 236  # characters of a pod's name in that of its event, which has at most 253
#: What an entry of a claim's status is found by.
_KEYS = ("driver", "pool", "device", "shareID")


class Events:
    """What one node's pods and claims are told of slices, by the program `component`.

    `prepared` tells the node's claims, and `claim` one of them as the API server has it, if it has it still.
    """

    def __init__(
        self, api: Api, driver: str, node: str, component: str, prepared: Callable[[], Iterable[Allocation]],
        claim: Callable[[Allocation], dict[str, Any] | None], log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.api, self.driver, self.prepared, self.claim, self.log = api, driver, prepared, claim, log
        self.source = {"component": component, "host": node}
        self._told: dict[str, tuple[str, int]] = {}  # slices that do not run: the state, and since when
        self._late: set[str] | None = None  # claims whose conditions may be old; None: all, as others wrote them
        self._drops = False  # whether the API server keeps no conditions
        self._said: set[tuple[str, int]] = set()  # requests that failed at the last look, and how
        self._failed: set[tuple[str, int]] = set()  # at this one

    def look(self) -> None:
        """Tell of each slice in another state than at the last look. Raises NvcError, OSError."""
        found = {key: one for key, one in suspensions().items() if one.state in _WORDS}
        now = {key: (one.state, one.since) for key, one in found.items()}
        changed = [key for key in sorted({*self._told, *now}) if self._told.get(key) != now.get(key)]
        if not changed and self._late is not None and not self._late:
            return
        holds, known = claims.holds_by_slice(), {one.uid: one for one in self.prepared()}
        self._told, self._failed = now, set()
        late = set(known) if self._late is None else self._late & known.keys()
        for key in changed:
            for uid in sorted({hold.rpartition("-")[0] for hold in holds.get(key, ())} & known.keys()):
                late.add(uid)
                for pod in known[uid].pods:
                    self._try(self._send, known[uid].namespace, pod, found.get(key))
        # Of slices with the same device one that failed counts.
        order = sorted(found, key=lambda key: found[key].state == FAILED)
        away = {hold: found[key] for key in order for hold in holds.get(key, ())}
        self._late = {uid for uid in sorted(late) if not self._try(self._set, known[uid], away)}
        self._said = self._failed

    def _try(self, work: Callable[..., None], *words: object) -> bool:
        """Whether that was done. A server that does not answer is not waited for again at the same look."""
        if any(not status for _, status in self._failed):
            return False
        try:
            work(*words)
        except ApiError as error:
            problem = error.step, error.status
            if problem not in self._said | self._failed:
                self.log(error.line())
            self._failed.add(problem)
            return False
        return True

    def _send(self, namespace: str, pod: Consumer, one: Suspension | None) -> None:
        kind, reason, _, _ = _WORDS[one.state if one is not None else ""]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{pod.name[:_POD_MAX].rstrip('.-')}.{secrets.token_hex(8)}", "namespace": namespace,
            },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod.name, "uid": pod.uid,
            },
            "type": kind,
            "reason": reason,
            "message": _text(one, one.bytes if one is not None else 0),
            "source": self.source,
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "count": 1,
        }  # fmt: skip
        self.api.request("POST", EVENTS.format(namespace), body)

    def _set(self, allocation: Allocation, away: dict[str, Suspension]) -> None:
        """Bring a claim's conditions up to date. Of a device that was never suspended there is none.

        What is applied names all of them, and no entries of others: so these stay.
        """
        claim = None if self._drops or all(one.whole for one in allocation.given) else self.claim(allocation)
        if claim is None:
            return
        status = table(claim.get("status"))
        # The API server refuses entries of what is allocated no longer, and has removed them.
        results = tables(table(table(status.get("allocation")).get("devices")).get("results"))
        allocated = {_place(one) for one in results}
        there = {_place(one): one for one in tables(status.get("devices"))}
        entries, changed = [], False
        for number, given in enumerate(allocation.given):
            place = self.driver, given.pool, given.device, given.share
            conditions = tables(there.get(place, {}).get("conditions"))
            old = next((each for each in conditions if each.get("type") == _TYPE), None)
            one = away.get(f"{allocation.uid}-{number}")
            if place in allocated and not given.whole and (one is not None or old is not None):
                made = _condition(one, given.uuid, old or {})
                changed = changed or made != old
                entries.append({**{key: word for key, word in zip(_KEYS, place) if word}, "conditions": [made]})
        if changed:
            self._apply(allocation, entries)

    def _apply(self, allocation: Allocation, entries: list[dict[str, Any]]) -> None:
        path = CLAIMS.format(allocation.namespace, allocation.name)
        body = {
            "apiVersion": CLAIM_API,
            "kind": "ResourceClaim",
            "metadata": {"name": allocation.name, "namespace": allocation.namespace, "uid": allocation.uid},
            "status": {"devices": entries},
        }
        manager = f"fieldManager={self.source['component']}&force=true"
        found = self.api.request("PATCH", f"{path}/status?{manager}", body)
        kept = {_place(one) for one in tables(table(found.get("status")).get("devices"))}
        if not kept.issuperset(map(_place, entries)):
            self._drops = True
            gate = "the feature gate DRAResourceClaimDeviceStatus is off"
            self.log(f"the API server keeps no conditions of claims, and none are written any more: {gate}")


def _place(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(key) or "") for key in _KEYS)


def _condition(one: Suspension | None, uuid: str, old: dict[str, Any]) -> dict[str, str]:
    """The condition of a device of a claim. Its time is that of the last change of the status."""
    status = _WORDS[one.state if one is not None else ""][2]
    failed = "Failed" if one is not None and one.state == FAILED else ""
    return {
        "type": _TYPE,
        "status": status,
        "reason": failed or ("Resumed" if one is None else _REASONS.get(one.why, _TYPE)),
        "message": _text(one, one.moved(uuid) if one is not None else 0),
        "lastTransitionTime": str(old.get("lastTransitionTime") if old.get("status") == status else _now()),
    }


def _text(one: Suspension | None, size: int) -> str:
    """What happened to a slice that has so many bytes in the host's memory. A problem may quote any name."""
    state = one.state if one is not None else ""
    return _WORDS[state][3].format(one_line(one.problem) if one is not None and state == FAILED else size >> 20)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

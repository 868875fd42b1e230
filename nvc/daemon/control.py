"""Answers questions of root on nvcd's control socket: one line of JSON each way.

{"ask": "state"}    devices, slices, what was found, the daemon itself
{"ask": "alive"}    the version: whether anybody answers
{"ask": "keeper", "uuid": ...}
                    `problem`: why nvcd does not keep the time of a device; null: it does, or has not tried
{"ask": "look"}     asks NVML at once; `state` has its answer a moment later
{"ask": "trace", "back": ...}
                    has the timekeeper tell who had the GPUs in the last seconds; `traced` has its answer soon
{"ask": "traced"}   `records`: UUID, nanoseconds, 1 for a start, process; null: not yet;
                    `problem`: why there are none
{"ask": "mps-start", "key": ..., "uuid": ..., "percent": ..., "memory": ...}
                    starts an MPS control daemon, or tells how it goes: asked again until it is `ready`
{"ask": "mps-stop", "key": ...}
{"ask": "mps-share", "uuid": ...}
                    likewise, the one that slices of a device share
{"ask": "suspend", "key": ...}, {"ask": "unsuspend", "key": ...}
                    begins to suspend a slice, or to bring it back, and tells how it goes
{"ask": "suspension", "key": ...}
                    `state`, and `problem` and `hint` of the last question for it that came to nothing
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import nvc
from nvc.base.errors import NvcError
from nvc.daemon.audit.verify import Violation
from nvc.daemon.daemon import Daemon
from nvc.daemon.mps.records import MpsServer
from nvc.daemon.time.client import UNKNOWN
from nvc.daemon.time.timing import Timing
from nvc.model.request import MPS_PIPES
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.policy.entitlement import Terms, entitlements
from nvc.slices.show.document import container_document

EVENTS_SHOWN = 64
QUESTIONS = (
    "state", "alive", "keeper", "look", "trace", "traced", "mps-start", "mps-stop", "mps-share", "suspend",
    "unsuspend", "suspension",
)  # fmt: skip
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")


def answer(daemon: Daemon, question: bytes, now: int) -> bytes:
    """The answer to one question, a line of JSON."""
    try:
        asked = json.loads(question)
        ask = asked["ask"]
    except (ValueError, TypeError, KeyError, RecursionError):
        ask = ""
    if ask == "state":
        daemon.refresh(now)
        found = state(daemon, now)
    elif ask == "alive":
        found = {"version": nvc.__version__}
    elif ask == "keeper":
        why = daemon.timing.keeper_of(str(asked.get("uuid")), now)
        found = {"problem": why if why != UNKNOWN else None}
    elif ask == "trace":
        back = asked.get("back")
        found = {"asked": type(back) is int and daemon.timing.record(back, now)}
    elif ask == "traced":
        found = {"records": daemon.timing.records, "problem": daemon.timing.records_problem or None}
    elif ask == "look":
        found = {"asked": daemon.look(now)}
    elif ask == "mps-start":
        found = start_mps(daemon, asked, now)
    elif ask == "mps-stop":
        found = {"stopped": daemon.mps.stop(str(asked.get("key")))}
    elif ask == "mps-share":
        found = share_mps(daemon, asked, now)
    elif ask in ("suspend", "unsuspend", "suspension"):
        found = suspension(daemon, ask, str(asked.get("key")), now)
    else:
        found = {"error": f"want {', '.join(QUESTIONS)}"}
    return json.dumps(found).encode() + b"\n"


def start_mps(daemon: Daemon, asked: dict[str, Any], now: int) -> dict[str, Any]:
    """Where the directory is that the container is to see at `place`, once `state` is ready."""
    key, uuid, percent, memory = (asked.get(name) for name in ("key", "uuid", "percent", "memory"))
    if type(key) is not str or type(uuid) is not str or type(percent) is not int or type(memory) is not int:
        return {"error": "want key, uuid, percent and memory"}
    if not _NAME.issuperset(key + uuid) or not key or not uuid or len(key + uuid) > 256:
        return {"error": "`key` or `uuid` is empty or malformed"}
    return _started(lambda: daemon.start_mps(key, uuid, percent, memory, now), uuid)


def suspension(daemon: Daemon, ask: str, key: str, now: int) -> dict[str, Any]:
    """How it goes with a slice that is to be suspended, or to come back."""
    if ask != "suspension":
        daemon.refresh(now)
        daemon.suspender.ask(key, ask == "suspend", now)
    state, refusal = daemon.suspender.state_of(key)
    if refusal is None:
        return {"state": state, "problem": None}
    where = f"{refusal.path}: " if refusal.path else ""
    return {"state": state, "problem": f"{where}{refusal.cause}", "hint": refusal.hint}


def share_mps(daemon: Daemon, asked: dict[str, Any], now: int) -> dict[str, Any]:
    """How it goes with the MPS server that slices of a device share, which is started if it does not run."""
    uuid = asked.get("uuid")
    if type(uuid) is not str or not uuid or not _NAME.issuperset(uuid) or len(uuid) > 256:
        return {"error": "`uuid` is empty or malformed"}
    return _started(lambda: daemon.share_mps(uuid, now), uuid)


def _started(start: Callable[[], MpsServer], uuid: str) -> dict[str, Any]:
    try:
        one = start()
    except NvcError as error:
        where = f"{error.path}: " if error.path not in ("", uuid) else ""
        return {"error": f"{where}{error.cause}", "hint": error.hint}
    return {
        "state": one.state,
        "directory": f"{one.directory}/pipe",
        "place": MPS_PIPES,
        "problem": one.problem or None,
    }


def state(daemon: Daemon, now: int) -> dict[str, Any]:
    """nvcd's whole state; times in nanoseconds, amounts in bytes."""
    return {
        "version": nvc.__version__,
        "pid": os.getpid(),
        "now": now,
        "started": daemon.started,
        "devices": [device(daemon, raw, now) for raw in daemon.slices.force],
        "slices": [slice_(daemon, key, now) for key in daemon.slices.by_key],
        "broken": [{"key": key, "problem": problem} for key, problem in daemon.slices.broken.items()],
        "memory": [
            {
                "key": one.key,
                "uuid": one.uuid,
                "index": one.index,
                "limit": None if one.limit == NO_LIMIT else one.limit,
                "model": one.model,
                "truth": None if one.truth < 0 else one.truth,
                "peak": daemon.accountant.peaks[one.key, one.uuid],
                "pids": list(one.pids),
            }
            for one in daemon.accountant.balances
        ],
        "events": [
            {name: getattr(event, name) for name in event._fields}
            for event in daemon.verifier.events[-EVENTS_SHOWN:]
        ],
        "ongoing": [finding(one) for one in daemon.verifier.ongoing.values()],
        "denied": [finding(one) for one in daemon.verifier.denied.values()],
        "found": dict(daemon.verifier.counts),
        "mps": [
            {
                "key": one.key,
                "uuid": one.uuid,
                "percent": one.percent,
                "memory": one.memory,
                "state": one.state,
                "clients": _clients(daemon, one),
            }
            for one in daemon.mps.servers.values()
        ],
        "nvml": {
            "failures": daemon.nvml.failures,
            "answers": daemon.nvml.answers,
            "devices": len(daemon.accountant.devices),
        },
        "timekeeper": timekeeper(daemon.timing, now),
        "swap": daemon.suspender.host.document(),
        "page": {**daemon.page} or None,
        "watching": "polling" if daemon.polls else "netlink",
        "processor": time.process_time_ns(),
    }


def _clients(daemon: Daemon, one: MpsServer) -> int | None:
    """Processes that use a server that slices share; None for the others, which are not asked."""
    watched = daemon.shared.watched.get(one.uuid) if one.shared else None
    return len(watched.clients) if watched is not None else None


def finding(one: Violation) -> dict[str, Any]:
    """An ongoing violation."""
    return {name: getattr(one, name) for name in one._fields if name != "acted"}


def device(daemon: Daemon, raw: bytes, now: int) -> dict[str, Any]:
    """One device, who keeps its time, and who shares it."""
    force = daemon.slices.force[raw]
    seen = {one.uuid.lower(): one for one in daemon.accountant.devices}
    uuid = daemon.slices.names.get(raw, "")
    entitled = entitlements(force)
    nvml = seen.get(uuid.lower())
    return {
        "uuid": uuid,
        "policy": force.policy.name,
        **keeping(daemon.timing, uuid, now),
        "memory": nvml.memory if nvml is not None else None,
        "used": nvml.used if nvml is not None else None,
        "busyPercent": nvml.busy if nvml is not None and nvml.busy >= 0 else None,
        "tenants": [tenant(terms, entitled.get(terms.key)) for terms in force.terms if terms.timed],
        "together": [
            {
                "key": terms.key,
                "weight": terms.demand.weight,
                "cores": terms.demand.cores or None,
                "entitlement": entitled.get(terms.key),
                "pacePercent": daemon.pacer.paces.get((raw, terms.key)),
            }
            for terms in force.together
        ],
    }


def kept_by(timing: Timing, uuid: str, now: int) -> str:
    """Who keeps the time of a device, for people."""
    why = timing.keeper_of(uuid, now)
    return f"by the shim, because {why}" if why else "by the driver"


def keeping(timing: Timing, uuid: str, now: int) -> dict[str, Any]:
    """Who keeps the time of a device, and what the driver's log has of it."""
    account = timing.books.account
    seen = next((one for one in account.devices if one.uuid == uuid), None) if account is not None else None
    plan = next((one for one in timing.client.plan.devices if one.uuid == uuid), None)
    lengths = {one.key: one.timeslice_us for one in plan.slices} if plan is not None else {}
    return {
        "time": kept_by(timing, uuid, now),
        "strangers": list(timing.strangers.get(uuid, ())),
        "had": [
            {"key": key, "hadNs": had, "stoppedNs": stopped, "timesliceUs": lengths.get(key) or None}
            for key, had, stopped in timing.books.slices(uuid)
        ],
        "processes": [{"pid": pid, "hadNs": had, "switches": many} for pid, had, many in seen.pids] if seen else [],
        "lost": seen.lost if seen else None,
        "calls": seen.calls if seen else None,
        "failed": dict(seen.failed) if seen else {},
    }


def timekeeper(timing: Timing, now: int) -> dict[str, Any]:
    """The process that keeps time, and what the tracer saw."""
    account = timing.books.account
    return {
        "pid": timing.client.keeper or None,
        "problem": timing.problem or timing.client.problem(now) or None,
        "restarts": timing.client.restarts,
        "processor": account.processor if account is not None else None,
        **timing.meddling.counts,
    }


def tenant(terms: Terms, entitled: float | None) -> dict[str, Any]:
    """One slice on a device."""
    return {
        "key": terms.key,
        "weight": terms.demand.weight,
        "cores": terms.demand.cores or None,
        "paused": terms.demand.paused,
        "entitlement": entitled,
    }


def slice_(daemon: Daemon, key: str, now: int) -> dict[str, Any]:
    """One slice."""
    known, counts = daemon.slices.by_key[key], daemon.suspender.counts.get(key)
    return {
        "key": key,
        "container": container_document(daemon.slices.containers.of(key, now)),
        "program": known.entry.program or None,
        "rootfs": known.entry.rootfs or None,
        "running": known.alive,
        "guarded": not daemon.timing.problem and key not in daemon.timing.unguarded,
        "suspension": daemon.suspender.state_of(key)[0],
        "suspensions": counts.document() if counts else None,
        "devices": [device.uuid for device in known.devices],
    }

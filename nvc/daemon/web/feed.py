"""Gathers what the live page shows from the parts of nvcd, and tells what of it has changed since the last time.

Everything was found out for other reasons: nothing is asked or read here but each slice's own figures of its time,
and nothing at all while nobody looks. What seldom changes of a slice is made once and kept.
"""

from __future__ import annotations

import os
from typing import Any

import nvc
from nvc.base.errors import one_line
from nvc.daemon import control
from nvc.daemon.audit.verify import STRANGER
from nvc.daemon.daemon import Daemon
from nvc.daemon.schedule.slice_index import IndexedSlice
from nvc.daemon.web import rows
from nvc.model.request import Timing
from nvc.model.slices.ledger import Budget
from nvc.slices.client.nvcd import SHIM
from nvc.slices.policy.entitlement import InForce, holds
from nvc.slices.policy.utilization import Reading, received
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus, judged

STRANGERS_MAX = 16
NAMED = 5_000_000_000  # nanoseconds until slices are asked for their names again: an engine may write them late


class Fixed:
    """A slice on one device, as it is until one of `causes` changes."""

    __slots__ = ("causes", "tenant", "device", "row")

    def __init__(self, causes: tuple[object, ...], tenant: SliceStatus, device: SliceDeviceStatus) -> None:
        self.causes, self.tenant, self.device = causes, tenant, device
        self.row = rows.slice_row(tenant, device)


class Feed:
    """`look` is called while somebody looks at the page."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._reading = Reading(0, {})
        self._fixed: dict[str, Fixed] = {}
        self._force: dict[str, tuple[InForce, dict[str, tuple[int, float | None]]]] = {}
        self._told: dict[str, Any] = {}
        self._named, self._renews = 0, True
        self._had: dict[tuple[str, int], tuple[int, int]] = {}  # by UUID and process: when, and what it had by then

    def look(self, first: bool, opened: tuple[str, ...], now: int) -> dict[str, Any]:
        """What has changed since the last time, or everything if this is the `first`; see rows.py.

        `opened`: keys of slices whose processes are to be told.
        """
        if first:
            self._reading, self._told, self._had = Reading(0, {}), {}, {}
        slices, moving = self._slices(now)
        had = self._processes(opened)
        whole = {"gpus": self._gpus(had, now), "slices": slices, "now": moving}
        found: dict[str, Any] = {"at": now // 1_000_000}
        for part, values in whole.items():
            found[part] = rows.changed(self._told.get(part, {}), values)
        node = self._node()
        if node != self._told.get("node"):
            found["node"] = node
        found["gone"] = [
            name for part in whole for name in self._told.get(part, {}).keys() - whole[part].keys()
        ]
        self._told = {**whole, "node": node}
        found["processes"] = {key: self._of(key, had) for key in opened if key in self.daemon.slices.by_key}
        return found

    def _node(self) -> dict[str, Any]:
        daemon = self.daemon
        return {
            "host": os.uname().nodename,
            "version": nvc.__version__,
            "problem": daemon.timing.problem or None,
            "broken": [f"{key}: {problem}" for key, problem in daemon.slices.broken.items()][:STRANGERS_MAX],
            "violations": [
                {name: value for name, value in control.finding(one).items() if name != "since"}
                for one in list(daemon.verifier.ongoing.values())[: control.EVENTS_SHOWN]
            ],
        }

    # Slices

    def _slices(self, now: int) -> tuple[dict[str, Any], dict[str, Any]]:
        daemon = self.daemon
        self._renews = now - self._named > NAMED
        self._named = now if self._renews else self._named
        totals = daemon.timing.books.totals()
        account = daemon.timing.books.account
        at = account.now if account is not None else now
        kept = {uuid: not daemon.timing.keeper_of(uuid, now) for uuid in daemon.slices.names.values()}
        budgets: dict[tuple[str, str], Budget] = {}
        refused: dict[str, int] = {}
        fixed: dict[str, Fixed] = {}
        for key, known in daemon.slices.by_key.items():
            own = daemon.accountant.ledgers.budgets(key) if known.alive else ()
            for number, raw in enumerate(known.uuids if known.alive else ()):
                force = daemon.slices.force.get(raw)
                if force is None or not known.devices[number].memory_limit:
                    continue
                uuid = daemon.slices.names[raw]
                name = f"{key}/{uuid}"
                pace = daemon.pacer.paces.get((raw, key))
                one = fixed[name] = self._fixed_of(name, known, number, force, kept[uuid], pace, now)
                budget: Budget | None = None
                if number < len(own):
                    budget, refused[name] = own[number], own[number].refused
                if one.device.kept:
                    budget = Budget(*totals.get((uuid, key), (0, 0)), at=at)
                if budget is not None and one.device.timed and (pace is not None or not force.policy.server):
                    budgets[key, uuid] = budget
        self._fixed = fixed
        new = Reading(now, budgets)
        shares = received(self._reading, new)
        self._reading = new
        balances = {(one.key, one.uuid): one for one in daemon.accountant.balances}
        moving = {}
        for name, one in fixed.items():
            place = one.tenant.entry.key, one.device.uuid
            peak = daemon.accountant.peaks.get(place, 0)
            moving[name] = rows.slice_now(
                one.tenant, one.device, shares.get(place), balances.get(place), peak, refused.get(name)
            )
        return {name: one.row for name, one in fixed.items()}, moving

    def _fixed_of(
        self, name: str, known: IndexedSlice, number: int, force: InForce, by_driver: bool, pace: int | None,
        now: int,
    ) -> Fixed:  # fmt: skip
        daemon, key, device = self.daemon, known.entry.key, known.devices[number]
        old = self._fixed.get(name)
        label = old.tenant.name if old is not None and not self._renews else ""
        label = label or daemon.slices.containers.label(key, now) or key.partition("-")[0]
        away = daemon.suspender.records.get(key)
        problem = daemon.accountant.ledgers.unread.get(key, "")
        if device.uuid not in self._force or self._force[device.uuid][0] is not force:
            self._force[device.uuid] = force, holds(force)
        held = self._force[device.uuid][1].get(key, (device.policy, None))
        causes = (device, held, known.stamp, label, away, problem, by_driver, pace, force.policy.server)
        if old is not None and old.causes == causes:
            return old
        kept = by_driver and not force.policy.server
        made = _device(known, number, held, kept, pace)
        tenant = SliceStatus(
            known.entry, key.partition("-")[0], (known.entry.pid or 1,), (made,), (),
            problem and f"ledger: {problem}", label, daemon.slices.containers.of(key, now), suspension=away,
        )  # fmt: skip
        return Fixed(causes, tenant, judged(tenant, made, SHIM))

    # GPUs and processes

    def _processes(self, opened: tuple[str, ...]) -> rows.Had:
        """Processes of these slices, and those in no slice."""
        account = self.daemon.timing.books.account
        wanted = {user.pid for user in self.daemon.accountant.users if user.key in opened}
        wanted.update(pid for pids in self.daemon.timing.strangers.values() for pid in pids)
        found, totals = {}, {}
        for device in account.devices if account is not None else ():
            for pid, total, switches in device.pids:
                if account is not None and pid in wanted:
                    totals[device.uuid, pid] = account.now, total
                    at, before = self._had.get((device.uuid, pid), (account.now, total))
                    part = (total - before) / max(account.now - at, 1)
                    found[device.uuid, pid] = round(min(max(part, 0.0), 1.0), 3), switches
        self._had = totals
        return found

    def _of(self, key: str, had: rows.Had) -> list[dict[str, Any]]:
        daemon = self.daemon
        uuids = tuple(device.uuid for device in daemon.slices.by_key[key].devices)
        accounts, users = daemon.accountant.ledgers.accounts.get(key, ()), daemon.accountant.users
        return rows.processes(key, uuids, accounts, users, had, daemon.suspender.records.get(key))

    def _gpus(self, had: rows.Had, now: int) -> dict[str, Any]:
        daemon = self.daemon
        seen = {one.uuid: one for one in daemon.accountant.devices}
        policies = {daemon.slices.names[raw]: one.policy.name for raw, one in daemon.slices.force.items()}
        named = {one.device.uuid: (one.device.index, one.device.name) for one in self._fixed.values()}
        found = {}
        for order, uuid in enumerate(dict.fromkeys((*seen, *policies))):
            time = control.kept_by(daemon.timing, uuid, now) if uuid in policies else ""
            found[uuid] = rows.gpu_row(
                order, *named.get(uuid, (str(order), "")), policies.get(uuid, ""), time, seen.get(uuid),
                self._strangers(uuid), had, uuid,
            )  # fmt: skip
        return found

    def _strangers(self, uuid: str) -> list[list[Any]]:
        """Processes in no slice on a GPU that slices share: number, name, bytes. Others find them."""
        ongoing = self.daemon.verifier.ongoing.values()
        pids = {one.pid for one in ongoing if one.kind == STRANGER and one.uuid == uuid}
        pids.update(self.daemon.timing.strangers.get(uuid, ()))
        used = {one.pid: one.used for one in self.daemon.accountant.users if one.uuid == uuid}
        return [[pid, _name_of(pid), max(used.get(pid, 0), 0)] for pid in sorted(pids)[:STRANGERS_MAX]]


def _device(
    known: IndexedSlice, number: int, held: tuple[int, float | None], kept: bool, pace: int | None
) -> SliceDeviceStatus:
    device, entry = known.devices[number], known.entry.devices[number]
    return SliceDeviceStatus(
        device.uuid, entry.index, entry.name, entry.memory, device.memory_limit, 0, device.paused, device.denied,
        entitlement=held[1], reserved=entry.reserved, pace=pace, kept=kept,
        **{**device.only(Timing), "policy": held[0]},
    )  # fmt: skip


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return one_line(file.read(64).decode("utf-8", "replace").strip())
    except OSError:
        return rows.UNKNOWN_NAME  # it has ended

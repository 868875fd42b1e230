"""Finds what the ledgers do not explain, and acts as the configuration says.

    bypass     a process of a slice uses a device around the shim
    excess     a slice has more memory than its limit, which the operator did not lower below its use (lowered.py)
    stranger   a process that is in no slice uses a shared device
    fault      an MPS server that slices share has ended (mps_shared.py)
    overcount  a ledger has what no process owns (stale_accounts.py)

`report` logs and counts it. `deny` also denies the slice more of the device for as long as it goes on. `stop`
kills the process, and the next one where that was not enough. Strangers are only reported, and ledgers are
corrected. What was acted on is shown until it is over, and its end is logged.

Slices that keep to their limits are never reported, whatever NVML shows. A process that ends has its memory until
the driver lets go of it, and none in the ledger: the accountant leaves it out meanwhile. NVML sees a new process
before it has claimed its slot in the ledger: PERSIST. An estimate, such as that of a context, may be wrong by
TOLERANCE; allocations are in the ledger before they are made.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nvc.base.value import Value
from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.audit.holders import HolderFinder
from nvc.daemon.audit.lowered import limit_to_act_on, settle
from nvc.daemon.audit.stale_accounts import StaleAccountFinder
from nvc.daemon.io.identity import parent_of, signal_process
from nvc.daemon.io.loop import SECOND
from nvc.daemon.mps.records import MpsServer
from nvc.model.slices.layout import DENIED, NO_LIMIT
from nvc.model.slices.policy import policy_of
from nvc.model.slices.quota import QuotaDevice
from nvc.model.slices.sizes import size_text

BYPASS, EXCESS, STRANGER = "bypass", "excess", "stranger"
OVERCOUNT = "overcount"
FAULT = "fault"
REPORT, DENY, STOP = "report", "deny", "stop"
#: Nanoseconds that something is seen before it counts. Memory is there or not; a process may be about
#: to claim its slot; the driver may be about to take back what a dead one had.
PERSIST = {BYPASS: SECOND, EXCESS: 0, STRANGER: SECOND, OVERCOUNT: 10 * SECOND}
#: Likewise for a ledger that cannot be read: a busy host may keep nvcd from it for a moment.
UNREAD = 10 * SECOND
AGAIN = 6 * SECOND  # after a process was killed: so long the driver may take its memory back, and a little more
EVENTS = 256
TOLERANCE = 64 << 20  # bytes above a limit that an estimate may be wrong by; 1 % where that is more


#: Kind, key of the slice, UUID of the device, number and start of the process; 0: the slice as a whole.
Offence = tuple[str, str, str, int, int]


class Event(Value):
    """A violation as the log and `nvcd --state` show it."""

    time: float  # seconds since the epoch
    kind: str
    key: str  # of the slice; "": none
    uuid: str
    pid: int  # 0: the slice as a whole
    text: str
    action: str


class Violation(Value):
    """An ongoing violation, and what was done about it."""

    key: str  # of the slice; "": none
    uuid: str
    kind: str
    pid: int  # 0: the slice as a whole
    text: str
    action: str
    since: float  # seconds since the epoch
    acted: int  # when it was acted on last, nanoseconds


@dataclass(eq=False)
class Verifier:
    """Detects violations after each answer of NVML, and acts on them."""

    accountant: Accountant
    actions: dict[str, str]
    log: Callable[[str], None]

    def __post_init__(self) -> None:
        self.events: list[Event] = []
        self.counts = dict.fromkeys((BYPASS, EXCESS, STRANGER, OVERCOUNT, FAULT), 0)
        self.stale = StaleAccountFinder(self.accountant)
        self.holders = HolderFinder(self.accountant.slices)
        #: What goes on of that which was acted on.
        self.ongoing: dict[Offence, Violation] = {}
        self._since: dict[Offence, int] = {}  # when each was first seen, of those that go on

    @property
    def denied(self) -> dict[tuple[str, str], Violation]:
        """The violations for which slices are denied a device now, by key and UUID in lower case."""
        found: dict[tuple[str, str], Violation] = {}
        for one in self.ongoing.values():
            if one.key and one.action == DENY:
                found.setdefault((one.key, one.uuid.lower()), one)
        return found

    @property
    def is_settled(self) -> bool:
        """Whether nothing goes on, nor may be about to."""
        return not self._since

    def look(self, servers: Mapping[tuple[str, str], MpsServer], away: Collection[str], now: int) -> None:
        """After each answer of NVML. Kernels of slices and devices in `servers` run in a process of MPS.

        `away` has the keys of slices that are suspended, or on the way there or back.
        """
        found = self._bypasses() | self._excesses(away) | self._overcounts(now)
        found |= self._strangers({one.pid for one in servers.values() if one.pid})
        self._since = {offence: self._since.get(offence, now) for offence in found}
        for offence, since in self._since.items():
            if offence in self.ongoing:
                self._go_on(offence, found[offence], now)
            elif now - since >= _patience(offence):
                self._act(offence, found[offence], now)
        self._end(found)
        self._mark()

    def _bypasses(self) -> dict[Offence, str]:
        accounts, unread = self.accountant.ledgers.accounts, self.accountant.ledgers.unread
        found = {
            (BYPASS, user.key, user.uuid, user.pid, user.start): "uses the device, and has no account"
            for user in self.accountant.users
            if user.key in accounts and user.inside not in {account.pid for account in accounts[user.key]}
        }
        for user in self.accountant.users:  # one that hides its ledger has none
            if user.key in unread:
                text = f"uses the device, and its ledger cannot be read: {unread[user.key]}"
                found[BYPASS, user.key, user.uuid, 0, 0] = text
        return found

    def _excesses(self, away: Collection[str]) -> dict[Offence, str]:
        found = {}
        for balance in self.accountant.balances:
            if balance.limit in (0, NO_LIMIT) or balance.truth < 0:
                continue
            most = limit_to_act_on(self.accountant, balance)
            if balance.truth > _with_tolerance(most):
                text = f"has {size_text(balance.truth)} of {size_text(balance.limit)}"
                found[EXCESS, balance.key, balance.uuid, 0, 0] = text
            elif most > balance.limit and balance.used <= _with_tolerance(balance.limit):
                if balance.key not in away:  # NVML shows nothing of it until it is back
                    settle(self.accountant, balance)
        return found

    def _overcounts(self, now: int) -> dict[Offence, str]:
        found = {}
        for (key, uuid), left in self.stale.look(now).items():
            text = f"has {size_text(left.bytes)} of processes that have ended in its ledger: {left.owners}"
            found[OVERCOUNT, key, uuid, 0, 0] = text
        return found

    def _strangers(self, servers: set[int]) -> dict[Offence, str]:
        """Processes on shared devices that are in no slice, nor children of an MPS server of `servers`."""
        slices = self.accountant.slices
        shared = {
            device.uuid
            for known in slices.by_key.values()
            if known.alive
            for device in known.devices
            if device.memory_limit and policy_of(device.policy).timed
        }
        text = "is in no slice, and uses a device that slices share"
        return {
            (STRANGER, "", user.uuid, user.pid, user.start): text
            for user in self.accountant.users
            if not user.key and user.uuid in shared and parent_of(user.pid) not in servers
        }

    def _act(self, offence: Offence, text: str, now: int) -> None:
        kind, key, uuid, pid, start = offence
        action = self.actions.get(kind, REPORT)
        if kind == OVERCOUNT:
            action = self.stale.void(key, uuid)
        elif action == STOP:
            action = self._stop(key, uuid, pid, start)
        since = self.ongoing[offence].since if offence in self.ongoing else time.time()
        self.ongoing[offence] = Violation(key, uuid, kind, pid, text, action, since, now)
        self.note(kind, key, uuid, pid, text, action)

    def _go_on(self, offence: Offence, text: str, now: int) -> None:
        """Update a violation that was acted on before; act again where a killed process was not enough."""
        one = self.ongoing[offence]
        if self.actions.get(one.kind) == STOP and now - one.acted >= AGAIN:
            self._act(offence, text, now)
        else:
            self.ongoing[offence] = one.replace(text=text)

    def note(self, kind: str, key: str, uuid: str, pid: int, text: str, action: str) -> None:
        """Count a violation, and log it. `pid` of a fault of an MPS server: whose it was, if that is known."""
        self.counts[kind] += 1
        self._tell(kind, key, uuid, pid, text, action)

    def _tell(self, kind: str, key: str, uuid: str, pid: int, text: str, action: str) -> None:
        self.events.append(Event(time.time(), kind, key, uuid, pid, text, action))
        del self.events[:-EVENTS]
        whose = self.accountant.slices.whose(key) if key else ""
        who = f"process {pid}" if pid else whose
        where = f" of {whose}" if pid and key else ""
        self.log(f"{kind}: {who}{where} on {uuid} {text}; {action}")

    def _stop(self, key: str, uuid: str, pid: int, start: int) -> str:
        """Kill the process, or the process of the slice with the most memory. Returns what was done."""
        if not pid:
            mine = [
                (one.used, one.pid, one.start)
                for one in self.accountant.users
                if (one.key, one.uuid.lower()) == (key, uuid.lower())
            ]
            if not mine:
                return REPORT
            _, pid, start = max(mine)
        if self.accountant.outlived(pid, start):
            listed = frozenset(one.pid for one in self.accountant.users)
            holder = self.holders.find(key, listed)
            if holder is None:
                return f"process {pid} is gone; found nobody who holds its memory"
            pid, start = holder
        try:
            # Begun when NVML's process had: the number was not given to another one.
            if not signal_process(self.accountant.kernel, pid, start, signal.SIGKILL):
                return "ended by itself"
        except OSError as error:
            return f"not stopped: {error.strerror}"
        return f"stopped process {pid}"

    def _end(self, found: dict[Offence, str]) -> None:
        """Log the violations that are over, and forget them."""
        over = [self.ongoing.pop(offence) for offence in tuple(self.ongoing) if offence not in found]
        denied = self.denied
        for one in over:
            allowed = one.action == DENY and (one.key, one.uuid.lower()) not in denied
            here = not one.key or one.key in self.accountant.slices.by_key
            text = "is within its limits again" if here else "is gone"
            end = "no longer denied" if allowed and here else "over"
            self._tell(one.kind, one.key, one.uuid, one.pid, text, end)

    def _mark(self) -> None:
        """Set the flag DENIED in the quotas of the slices that are denied a device, and clear it in others."""
        denied = self.denied
        for key, known in self.accountant.slices.by_key.items():
            values = {device.uuid: int((key, device.uuid.lower()) in denied) for device in known.devices}
            if known.alive and any(d.denied != values[d.uuid] for d in known.devices):
                self.accountant.change(key, _denied, values)

    def release(self) -> None:
        """Clear all denials: after nvcd has ended, nobody notices that a violation is over."""
        self.ongoing = {}
        self._mark()


def _with_tolerance(limit: int) -> int:
    """What a slice with this limit may have, as estimates may be wrong."""
    return limit + max(TOLERANCE, limit // 100)


def _patience(offence: Offence) -> int:
    """How long an offence must last before it counts, in nanoseconds."""
    kind, _, _, pid, _ = offence
    return UNREAD if kind == BYPASS and not pid else PERSIST[kind]


def _denied(device: QuotaDevice, denied: int) -> QuotaDevice:
    return device.replace(flags=device.flags | DENIED if denied else device.flags & ~DENIED)

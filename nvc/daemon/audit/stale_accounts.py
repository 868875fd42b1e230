"""Accounts of processes that have ended: a ledger then says more than there is.

An account counts for as long as the lock on its slot is held. A child that was forked without an exec has its
parent's open file, and the lock with it, and keeps both when the parent is killed. The driver has taken back what
the parent had, but the slice is denied it. An account is void when no process can own it:

    the ledger of the slice has more than NVML shows of it on the device,
    NVML lists no process there that has the account's number,
    no process of the slice has that number,
    and nobody maps what the process had exported.

Where one of these cannot be told the account stays.
"""

from __future__ import annotations

import os

from nvc.base.value import Value
from nvc.daemon.audit.accountant import Accountant, Balance
from nvc.daemon.io.identity import slice_of
from nvc.kernel import Kernel
from nvc.model.slices import ledger
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import Account, LedgerError
from nvc.slices.store.process_info import ENDED, pid_inside
from nvc.slices.store.process_view import CpuLimit

STEP = 64 << 20  # bytes: a difference that may come from estimates is not looked into
NAMED = 4  # processes in one line
LOOK_TIME = 2_000_000  # nanoseconds of a processor, for each part of a look at all processes


class StaleAccounts(Value):
    """What the ledger of a slice has too much on one device."""

    position: int  # of the device
    accounts: tuple[Account, ...]

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(account.used[self.position] for account in self.accounts)

    @property
    def owners(self) -> str:
        """The processes that had it, for people: a tenant can make up as many as there are slots."""
        more = len(self.accounts) - NAMED
        named = ", ".join(f"{account.pid} ({account.name})" for account in self.accounts[:NAMED])
        return f"{named} and {more} more" if more > 0 else named


class StaleAccountFinder:
    """Leftover accounts as of the last look, by the slice's key and the device's UUID.

    Of a host with thousands of processes a part is looked at each time, for nobody is to wait for that: a tenant
    can write what it likes into its ledger, and so have nvcd look.
    """

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self.found: dict[tuple[str, str], StaleAccounts] = {}
        self._search = _Search(accountant.kernel, {}, {})

    def look(self, now: int) -> dict[tuple[str, str], StaleAccounts]:
        """After each balance."""
        suspects = {
            (balance.key, balance.uuid): found
            for balance in self.accountant.balances
            if balance.key in self.accountant.slices.by_key and (found := self._suspects(balance)).accounts
        }
        if suspects and self._search.is_over(LOOK_TIME):
            owned = self._search.owned
            self.found = {
                place: left.replace(accounts=rest)
                for place, left in self._search.suspects.items()
                if (rest := tuple(one for one in left.accounts if (place[0], one.pid) not in owned))
            }
            entries = {key: self.accountant.slices.by_key[key].entry for key, _ in suspects}
            self._search = _Search(self.accountant.kernel, entries, suspects)
        self.found = {
            place: left.replace(accounts=rest)
            for place, left in self.found.items()
            if place in suspects
            and (rest := tuple(one for one in left.accounts if one in suspects[place].accounts))
        }
        return self.found

    def _suspects(self, balance: Balance) -> StaleAccounts:
        """Accounts that have something on a device where NVML does not know their processes."""
        uuids = [device.uuid for device in self.accountant.slices.by_key[balance.key].devices]
        if balance.truth < 0 or balance.model <= balance.truth + STEP or balance.uuid not in uuids:
            return StaleAccounts(0, ())
        position = uuids.index(balance.uuid)
        listed = {user.inside for user in self.accountant.users if user.uuid.lower() == balance.uuid.lower()}
        return StaleAccounts(
            position,
            tuple(
                account
                for account in self.accountant.ledgers.accounts.get(balance.key, ())
                if account.used[position] and account.pid not in listed
            ),
        )

    def void(self, key: str, uuid: str) -> str:
        """Take what was found out of the slice's ledger; returned is what was done."""
        left = self.found.pop((key, uuid))
        fd = self.accountant.ledgers.descriptor(key)
        try:
            if fd < 0:
                raise LedgerError("read ledger", cause="it is not open any more")
            for account in left.accounts:
                if ledger.is_exported(fd, account.slot):
                    raise LedgerError(
                        "read ledger", cause=f"others may map what process {account.pid} exported"
                    )
                ledger.void(fd, account, left.position)
        except OSError as error:
            return f"not corrected: {error.strerror}"
        except LedgerError as error:
            return f"not corrected: {error.cause}"
        return "corrected"


class _Search:
    """One look at all processes of the host: which of the suspects' numbers they have."""

    def __init__(
        self, kernel: Kernel, entries: dict[str, Entry], suspects: dict[tuple[str, str], StaleAccounts]
    ) -> None:
        self.kernel = kernel
        self.entries = entries
        self.suspects = suspects
        self.wanted = {
            (key, account.pid) for (key, _), left in suspects.items() for account in left.accounts
        }
        #: Slices and numbers of accounts that a process has, or may have.
        self.owned: set[tuple[str, int]] = set()
        self._names: list[str] = []
        try:
            self._names = [name for name in os.listdir("/proc") if name.isdigit()] if suspects else []
        except OSError:
            self.owned = self.wanted

    def is_over(self, time: int) -> bool:
        """Go on for so many nanoseconds of a processor; whether all were looked at."""
        limit = CpuLimit(time)
        while self._names and not limit.is_over():
            self._look(int(self._names.pop()))
        return not self._names

    def _look(self, pid: int) -> None:
        try:
            number = pid_inside(pid)
            for key in [key for key, one in self.wanted if one == number]:
                if slice_of(self.kernel, pid, (self.entries[key],)):
                    self.owned.add((key, number))
        except OSError as error:
            if error.errno not in ENDED:
                self.owned |= self.wanted

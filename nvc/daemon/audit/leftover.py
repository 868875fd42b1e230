"""Accounts of processes that have ended: books that say more than there is.

An account counts for as long as the lock on its slot is held. A child that was forked without an exec has its
parent's open file, and the lock with it, and keeps both when the parent is killed. The driver has taken back what
the parent had, but the slice is denied it. An account is void when no process can own it:

    the books of the slice have more than NVML shows of it on the device,
    NVML lists no process there that has the account's number,
    no process of the slice has that number,
    and nobody maps what the process had exported.

Where one of these cannot be told the account stays.
"""

from __future__ import annotations

import os

from nvc.daemon.io.identity import pid_inside, slice_of
from nvc.slices.model import ledger
from nvc.slices.model.ledger import LedgerError
from nvc.slices.store.origin import ENDED
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.audit.accountant import Accountant, Balance
    from nvc.kernel import Kernel
    from nvc.slices.model.ledger import Account
    from nvc.slices.store.registry import Entry

STEP = 64 << 20  # bytes: a difference that may come from estimates is not looked into
PERIOD = (
    2_000_000_000  # nanoseconds between two looks at all processes of the host, while there is a difference
)


class Leftover(Value):
    """What the books of a slice have too much on one device."""

    position: int  # of the device
    accounts: tuple[Account, ...]

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(account.used[self.position] for account in self.accounts)

    @property
    def owners(self) -> str:
        """The processes that had it, for people."""
        return ", ".join(f"{account.pid} ({account.name})" for account in self.accounts)


class Leftovers:
    """Those that were found last, by the slice's key and the device's UUID."""

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self.found: dict[tuple[str, str], Leftover] = {}
        self._next = 0

    def look(self, now: int) -> dict[tuple[str, str], Leftover]:
        """After each balance."""
        suspects = {
            (balance.key, balance.uuid): found
            for balance in self.accountant.balances
            if (found := self._suspects(balance)).accounts
        }
        if suspects and now >= self._next:
            self._next = now + PERIOD
            entries = {key: self.accountant.book.known[key].entry for key, _ in suspects}
            owned = _owned(self.accountant.kernel, entries, suspects)
            self.found = {
                place: left.replace(accounts=rest)
                for place, left in suspects.items()
                if (rest := tuple(one for one in left.accounts if (place[0], one.pid) not in owned))
            }
        self.found = {place: left for place, left in self.found.items() if place in suspects}
        return self.found

    def _suspects(self, balance: Balance) -> Leftover:
        """Accounts that have something on a device where NVML does not know their processes."""
        position = next(
            place
            for place, device in enumerate(self.accountant.book.known[balance.key].devices)
            if device.uuid == balance.uuid
        )
        if balance.truth < 0 or balance.model <= balance.truth + STEP:
            return Leftover(position, ())
        listed = {user.inside for user in self.accountant.users if user.uuid.lower() == balance.uuid.lower()}
        return Leftover(
            position,
            tuple(
                account
                for account in self.accountant.accounts.get(balance.key, ())
                if account.used[position] and account.pid not in listed
            ),
        )

    def void(self, key: str, uuid: str) -> str:
        """Take what was found out of the slice's ledger; returned is what was done."""
        left = self.found.pop((key, uuid))
        fd = self.accountant.ledger_of(key)
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


def _owned(
    kernel: Kernel, entries: dict[str, Entry], suspects: dict[tuple[str, str], Leftover]
) -> set[tuple[str, int]]:
    """Slices and numbers of accounts that a process of this host has, or may have."""
    wanted = {(key, account.pid) for (key, _), left in suspects.items() for account in left.accounts}
    numbers = {number for _, number in wanted}
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            number = pid_inside(int(name))
            if number not in numbers:
                continue
            keys = {key for key, one in wanted if one == number}
            found |= {(key, number) for key in keys if slice_of(kernel, int(name), (entries[key],))}
        except OSError as error:
            if error.errno not in ENDED:
                return wanted
    return found

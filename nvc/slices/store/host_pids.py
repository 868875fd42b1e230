"""The processes of a ledger as the host numbers them. The ledger has their numbers in the container."""

from __future__ import annotations

from nvc.model.slices.ledger import Account
from nvc.slices.store.process_info import pid_inside


def with_host_pids(accounts: tuple[Account, ...], pids: tuple[int, ...]) -> tuple[Account, ...]:
    """The accounts, each with the host's number of its process, which is one of the slice's `pids`.

    Where two containers share a slice, two processes can have the same number inside: then neither is named.
    """
    wanted = {account.pid for account in accounts}
    found: dict[int, list[int]] = {}
    for pid in pids if wanted else ():
        try:
            inside = pid_inside(pid)
        except OSError:
            continue  # it has ended
        if inside in wanted:
            found.setdefault(inside, []).append(pid)
    named = {inside: here[0] for inside, here in found.items() if len(here) == 1}
    return tuple(account.replace(host_pid=named.get(account.pid, 0)) for account in accounts)

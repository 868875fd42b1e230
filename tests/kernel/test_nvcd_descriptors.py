"""Descriptors that clients send to nvcd: of a socket whose last close would keep whoever closes it for a minute."""

from __future__ import annotations

import errno
import sys

import pytest
from support.nvcd import DIRECT, Place, Tenant

from nvc.daemon.io.wire import FREE, HELLO, MESSAGE, REFUSED, WANT, WELCOME

#: nvcd on a kernel before 6.16, which knows no SO_PASSRIGHTS.
OLDER = DIRECT.replace(
    "main('nvcd')", "import nvc.daemon.io.descriptors as own;own.SO_PASSRIGHTS=-1;main('nvcd')"
)
ASK = MESSAGE.pack(WANT, 0, 0, bytes(16), 0, 0).hex()
NONSENSE = bytes(20).hex()


def is_served(other: Tenant) -> None:
    """At once: it waits for 20 s. Its slice is there already, as the signal of a new one would end a wait."""
    assert other.ask("connect") == WELCOME
    other.ask("send", WANT, 0, 0, 0, 0)
    assert other.ask("receive")[0] == FREE


def test_the_kernel_refuses_them(place: Place) -> None:
    place.start()
    tenant, other = place.tenant(), place.tenant()
    assert tenant.ask("connect") == WELCOME
    assert tenant.ask("lingering", ASK) == errno.EPERM
    is_served(other)


@pytest.mark.parametrize("messages", [(ASK,), (NONSENSE, ASK), (NONSENSE,)], ids=["read", "unread", "alone"])
def test_on_an_older_kernel_nobody_waits(place: Place, messages: tuple[str, ...]) -> None:
    """Whether nvcd comes to read the message, or closes the connection with the message in it."""
    place.program = (sys.executable, "-B", "-c", OLDER)
    daemon = place.start()
    tenant, other = place.tenant(), place.tenant()
    assert tenant.ask("connect") == WELCOME
    assert tenant.ask("lingering", *messages) in (0, errno.EPIPE)
    assert tenant.ask("receive")[0] == REFUSED
    is_served(other)
    assert tenant.ask("connect") == WELCOME
    daemon.end()


def test_those_that_were_sent_before_nvcd_began(place: Place) -> None:
    """By a connection that waits at the socket of the daemon before."""
    place.program = (sys.executable, "-B", "-c", OLDER)
    place.start()
    tenant, other = place.tenant(), place.tenant()
    tenant.ask("connect")
    for _ in range(3):
        tenant.ask("lingering", MESSAGE.pack(HELLO, 0, 0, bytes(16), 1, 0).hex())
        assert tenant.ask("receive")[0] == REFUSED
        assert tenant.ask("connect") == WELCOME
    is_served(other)

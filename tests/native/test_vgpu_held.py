"""Leases of work that waits for the host, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from support import GIB
from support.turngiver import TurnGiver
from support.vgpushim import Slice
from support.virtual import World

from nvc.daemon.io.wire import GRANT, RELEASE, STALL


def test_what_waits_for_the_host_is_launched_under_one_lease(
    world: World, plain_slice: Callable[..., Slice]
) -> None:
    """None of it runs at the lease's end, however long it takes. Others would have to drain for each launch."""
    slice_ = plain_slice()
    slice_.time = world
    slice_.limit(*[2 * GIB] * len(slice_.uuids), policy=0)
    with TurnGiver(slice_) as nvcd:
        process = slice_.start().do("module m")
        process.send("launchlong")
        talk = nvcd.accept()
        talk.send(GRANT, 1, talk.wanted(), 10_000_000)
        assert process.receive() == ["0"]
        assert talk.receive().kind == RELEASE
        process.do("stream", "hold").send("launchlong")
        talk.send(GRANT, 2, talk.wanted(), 2_500_000)
        assert process.receive() == ["0"]
        began = world.now
        process.do("launchlong", "launchlong")
        assert world.now - began < 0.002
        said = talk.receive()
        assert (said.kind, said.round, said.b) == (STALL, 2, 1)
        process.do("letgo", "wait")

"""What processes had lately, and who has stopped working, by accounts ten times a second."""

from __future__ import annotations

from nvc.daemon.keeper.device import DeviceTime
from nvc.daemon.keeper.wire import Account
from nvc.daemon.time.books import Books

UUID = "GPU-0000aaaa"
STEP = 100_000_000


def test_who_has_stopped_rests() -> None:
    books = Books()
    assert not books.resting(UUID) and not books.lately(UUID)
    for number in range(30):
        had = ((1, min(number, 20) * STEP, 0), (2, max(number - 20, 0) * STEP, 0))
        books.take(Account(5, number * STEP, 0, (DeviceTime(UUID, 0, True, had, (), 0, 0, 0, (), ""),)))
        now = {1: number >= 22, 2: number <= 20}  # two accounts show no more than before
        if number >= 2:
            assert books.resting(UUID) == {pid for pid, rests in now.items() if rests}, number
    assert books.lately(UUID) == {1: 0, 2: 5 * STEP}
    assert not books.resting("GPU-0000bbbb")

"""Many processes that allocate and free at random and are killed at random: the books are exact at the end.

NVC_STRESS_SECONDS says for how long (5 unless set; `make stress` takes 60).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from support import GIB, MIB
from support.vgpushim import CONTEXT, Process, Slice

from nvc.model.slices import layout, ledger

SECONDS = float(os.environ.get("NVC_STRESS_SECONDS", "5"))
CROWD = 64


def everything(made: Slice) -> int:
    """Bytes in all slots, those of the dead too."""
    with open(made.path("nvc/ledger/ledger"), "rb") as file:
        return sum(account.used[0] for account in ledger.parse(file.read(layout.LEDGER_SIZE), 1))


def busy(made: Slice) -> Process:
    process = made.process()
    process.send("init")
    process.send("primary 0")
    process.send("churn 40m 3600000")
    return process


@pytest.mark.nightly
def test_a_crowd_that_is_killed(plain_slice: Callable[..., Slice]) -> None:
    made = plain_slice(gpus=1)
    limit = CROWD * CONTEXT + 6 * GIB
    made.limit(limit)
    draw = random.Random(7)
    crowd = [busy(made) for _ in range(CROWD)]
    end, rounds, most = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < end:
        place = draw.randrange(CROWD)
        crowd[place].kill()
        made.processes.remove(crowd[place])
        crowd[place] = busy(made)
        taken = made.taken()
        assert taken <= limit
        most = max(most, taken)
        rounds += 1
    assert rounds > SECONDS and most > limit // 2
    for process in crowd:
        process.kill()
    assert made.used() == 0
    last = made.start().do("alloc a 100m")
    made.eventually(lambda: last.info() is not None and everything(made) == CONTEXT + 100 * MIB)
    assert made.agree() == CONTEXT + 100 * MIB
    last.do(f"alloc b {limit - CONTEXT - 100 * MIB}")
    assert made.agree() == limit
    assert made.said() == []

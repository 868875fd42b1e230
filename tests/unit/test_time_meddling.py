"""Who is killed for channels that were started, and who is not, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.seldom import MINUTE, MOST
from nvc.daemon.keeper.device import SliceTime
from nvc.daemon.time.meddling import BREAKS, Meddling, number_of
from nvc.kernel.objects import KILLED, MEDDLED, NAMED, News

TENTH = SECOND // 10
OWNERS = {1: "a", 2: "b", 3: ""}  # processes, by their slice
CLIENT = 0xC1D00001  # of process 1


class Host:
    """What nvcd does about it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.killed: list[int] = []
        self.now = 0
        self.had = 0  # of process 1, while it was stopped
        self.meddling = Meddling(
            lambda pids: {pid: OWNERS[pid] for pid in pids if pid in OWNERS},
            lambda: ("a", "b"),
            lambda key: f"slice {key} (job)",
            self.killed.append,
            self.said.append,
        )

    def run(self, seconds: int, *told: News) -> None:
        """Process 1 has the GPU in all of that time though it is stopped, and the tracer tells that each second."""
        for turn in range(10 * seconds):
            self.now += TENTH
            if turn % 10 == 0:
                self.meddling.take(told, self.now)
                self.meddling.second(self.now)
            self.had += TENTH
            found = SliceTime("a", 0, 0, 0, 0, ((1, self.had),), 0, 0)
            self.meddling.look_at(found, lambda key, pid: {CLIENT} if pid == 1 else set(), self.now)


def named(client: int, pid: int, number: int = 0) -> News:
    return News(NAMED, pid, client, 0x5C000001, slice=number)


def guarded(pid: int, key: str) -> tuple[News, News]:
    """Who was guarded for a slice has started the channels of process 1, and is killed."""
    return named(CLIENT, pid, number_of(key)), News(KILLED, pid, 7, 8, slice=number_of(key))


@pytest.mark.parametrize(
    "told",
    [
        (),
        (News(MEDDLED, 3, 7, 8),),
        (News(KILLED, 9, 7, 8, slice=number_of("b")),),
        (named(CLIENT + 1, 3), News(MEDDLED, 3, 7, 8)),
        guarded(9, "a"),
        (named(CLIENT, 1), News(MEDDLED, 1, 7, 8)),
    ],
    ids=['nobody', 'a stranger', 'a neighbour', 'of others', 'its own child', 'itself'],
)
def test_who_runs_while_it_is_stopped_is_killed_whatever_others_do(told: tuple[News, ...]) -> None:
    host = Host()
    host.run(1, *told)
    assert 1 in host.killed and host.meddling.counts["broke"] == BREAKS


@pytest.mark.parametrize(
    "told",
    [guarded(9, "b"), (named(CLIENT, 3), News(MEDDLED, 3, 7, 8)), (named(CLIENT, 9), News(MEDDLED, 9, 7, 8)),
     (named(0, 3), News(MEDDLED, 3, 7, 8))],
    ids=["a neighbour", "a stranger", "one that has ended", "by a call that names everybody"],
)  # fmt: skip
def test_whose_channels_another_one_has_started_is_not(told: tuple[News, ...]) -> None:
    host = Host()
    host.run(10, *told)
    assert not host.killed and host.meddling.counts["broke"] == 0
    host.run(4)
    assert host.killed == [1], "what it has when the other one has long stopped"


def test_a_neighbour_that_is_not_guarded_is_killed_alone() -> None:
    host = Host()
    host.run(1, named(CLIENT, 2), News(MEDDLED, 2, 7, 8))
    assert host.killed == [2]


def test_one_line_a_minute_about_each() -> None:
    host = Host()
    flood = [News(MEDDLED, 3, 7, 8, times=5000), News(KILLED, 9, 7, 8, slice=number_of("b"))]
    for second in range(60):
        host.meddling.take(flood, second * SECOND)
        host.meddling.second(second * SECOND)
    assert len(host.said) == 2 and "process 9 of slice b (job): " in host.said[0] and "in no slice" in host.said[1]
    assert host.meddling.counts["meddled"] == 300_000 and host.meddling.counts["killed"] == 60
    host.meddling.second(MINUTE)
    assert [line.rpartition("(")[2] for line in host.said[2:]] == [
        "left out: 59 times in a minute)",
        "left out: 299999 times in a minute)",
    ]
    for minute in (2, 3):
        host.meddling.second(minute * MINUTE)
    host.meddling.take(flood, 4 * MINUTE)
    assert len(host.said) == 6, "said anew"


def test_processes_without_end_have_few_lines() -> None:
    host = Host()
    pids: Iterable[int] = range(1000, 31_000)
    host.meddling.take([News(MEDDLED, pid, 7, 8) for pid in pids], 0)
    for second in range(150):
        host.meddling.second(second * SECOND)
    assert len(host.said) == MOST + 1
    assert host.said[-1].startswith(f"left out: {30_000 - MOST} lines")


def test_numbers_of_slices_fit_beside_flags() -> None:
    numbers = {number_of(f"slice-{place}") for place in range(1000)}
    assert len(numbers) == 1000 and all(0 < one < 1 << 30 for one in numbers) and number_of("") == 0

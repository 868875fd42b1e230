"""Who had the GPU, by records of the switch log."""

from __future__ import annotations

import random

from nvc.daemon.keeper.accounts import KEPT, NOBODY, PIDS_MAX, Accounts
from nvc.kernel.rm import END, START, Record


def known(now: int = 0) -> Accounts:
    """Accounts that know that nobody is on the engine."""
    made = Accounts(now - 2)
    made.take([Record(now - 2, START, 99), Record(now - 1, END, 99)], 0, now)
    made.had.clear()
    return made


def test_what_lies_between_start_and_end_is_had() -> None:
    accounts = known()
    assert accounts.take([Record(10, START, 1), Record(30, END, 1), Record(40, START, 2)], 0, 50) == 0
    assert accounts.had == {1: 20, 2: 10} and accounts.switches[1] == accounts.switches[2] == 1
    assert accounts.on == 2
    assert accounts.take([], 0, 80) == 0 and accounts.had == {1: 20, 2: 40}, "it is on the engine"
    accounts.take([Record(90, END, 2)], 0, 100)
    assert accounts.had == {1: 20, 2: 50} and accounts.on == NOBODY


def test_before_the_first_record_nobody_knows() -> None:
    accounts = Accounts(100)
    assert accounts.take([], 0, 150) == 50 and accounts.had == {}
    assert accounts.take([Record(170, END, 1)], 0, 200) == 20
    assert accounts.take([], 0, 300) == 0 and accounts.had == {}


def test_lost_records_make_doubt_and_what_is_certain_counts() -> None:
    accounts = known()
    epoch = accounts.epoch
    assert accounts.take([Record(10, START, 1), Record(30, END, 1)], 5, 100) == 80
    assert accounts.had == {1: 20} and accounts.lost == 5 and accounts.epoch == epoch + 1
    assert accounts.unknown and accounts.take([], 0, 150) == 50, "nobody knows until the next record"
    assert accounts.take([Record(160, START, 1)], 0, 200) == 10 and accounts.had == {1: 60}


def test_times_that_make_no_sense_are_put_where_they_may_be() -> None:
    accounts = known()
    accounts.take(
        [Record(10, START, 1), Record(0, END, 1), Record(500, START, 2), Record(5, END, 2)], 0, 100
    )
    assert accounts.had == {2: 0} or sum(accounts.had.values()) == 0


def test_after_a_jump_of_the_timer_nothing_is_known() -> None:
    accounts = known()
    accounts.take([Record(10, START, 1)], 0, 50)
    assert accounts.jumped(5000, 70) == 70 and accounts.unknown and accounts.had == {1: 40}
    accounts.take([Record(5010, START, 1), Record(5030, END, 1)], 0, 5100)
    assert accounts.had == {1: 60} and accounts.jumps == 1


def test_processes_that_had_nothing_for_long_are_forgotten() -> None:
    accounts = known()
    accounts.take([Record(10, START, 1), Record(20, START, 2), Record(30, END, 2)], 0, 40)
    accounts.take([], 0, 2 * KEPT)
    assert set(accounts.forget(frozenset({2}))) == {1, 99} and list(accounts.had) == [2]
    time = 2 * KEPT
    records = []
    for pid in range(100, 100 + PIDS_MAX + 50):
        records += [Record(time + pid, START, pid), Record(time + pid + 1, END, pid)]
    accounts.take(records, 0, 3 * KEPT - 1)
    assert len(accounts.forget(frozenset({2}))) >= 50 and len(accounts.had) <= PIDS_MAX


def test_of_random_logs_all_time_is_had_by_somebody_or_in_doubt_or_between() -> None:
    """Cut anywhere into looks, a whole log gives what it gives in one; no time counts twice, lost or not."""
    for seed in range(200):
        chance = random.Random(seed)
        time, records, truth = 10, [], dict.fromkeys(range(1, 5), 0)
        for _ in range(chance.randrange(1, 40)):
            pid, length = chance.randrange(1, 5), chance.randrange(1, 100)
            records += [Record(time, START, pid), Record(time + length, END, pid)]
            truth[pid] += length
            time += length + chance.randrange(1, 10)
        accounts, rest, now = known(), list(records), 0
        while now < time:
            now = min(now + chance.randrange(1, 200), time)
            look = [one for one in rest if one.time_ns <= now]
            rest = rest[len(look) :]
            assert accounts.take(look, 0, now) == 0
        assert {pid: accounts.had.get(pid, 0) for pid in truth} == truth
        lossy, rest, now, doubt = known(), list(records), 0, 0
        while now < time:
            now = min(now + chance.randrange(1, 200), time)
            look = [one for one in rest if one.time_ns <= now]
            rest = rest[len(look) :]
            kept = [one for one in look if chance.random() < 0.8]
            doubt += lossy.take(kept, len(look) - len(kept), now)
        assert sum(lossy.had.values()) + doubt <= time

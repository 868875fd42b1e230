"""The cap of one slice, as a state machine: whatever happens, it has at most its quota in the long run."""

from __future__ import annotations

import random

from nvc.daemon.keeper.caps import MS, Cap


def test_unused_quota_is_kept_up_to_the_burst() -> None:
    cap = Cap(10 * MS, 100 * MS, 10 * MS, 0, 0)
    cap.renew(1_000_000 * MS)
    assert cap.left == 20 * MS and cap.next == 1_000_100 * MS
    cap = Cap(10 * MS, 100 * MS, 0, 0, 0)
    cap.renew(500 * MS)
    assert cap.left == 10 * MS


def test_a_call_that_failed_is_not_repeated_before_a_period() -> None:
    cap = Cap(10 * MS, 100 * MS, 10 * MS, 0, 0)
    cap.had(12 * MS, 12 * MS, True)
    assert cap.ends(12 * MS)
    cap.stopped(12 * MS, False, 0)
    assert cap.runs and not cap.ends(100 * MS) and cap.ends(112 * MS)
    cap.stopped(112 * MS, True, 0)
    cap.renew(300 * MS)
    assert cap.begins(300 * MS)
    cap.started(300 * MS, False)
    assert not cap.runs and not cap.begins(350 * MS) and cap.begins(400 * MS)


def test_other_terms_keep_what_was_had() -> None:
    cap = Cap(10 * MS, 100 * MS, 10 * MS, 0, 0)
    cap.had(8 * MS, 20 * MS, True)
    cap.change(50 * MS, 100 * MS, 50 * MS, 0, 30 * MS)
    assert cap.left == 42 * MS and cap.look_at == 30 * MS
    cap.change(5 * MS, 20 * MS, 5 * MS, 0, 40 * MS)
    assert cap.left == -3 * MS and cap.next == 60 * MS


def test_slack_is_owed_too() -> None:
    cap = Cap(10 * MS, 100 * MS, 10 * MS, 2 * MS, 0)
    cap.had(11 * MS, 50 * MS, True)
    assert not cap.ends(50 * MS)
    cap.had(1 * MS, 60 * MS, True)
    assert cap.ends(60 * MS)


def test_of_random_lives_the_long_run_is_the_quota() -> None:
    """Whatever part of the time a slice has, it is never more than its quota in the long run.

    It is no less where the slice always wants more.
    """
    for seed in range(60):
        chance = random.Random(seed)
        period = chance.choice((20, 50, 100, 500)) * MS
        quota = period * chance.choice((5, 10, 25, 50, 75, 90)) // 100
        cap = Cap(quota, period, quota, 0, 0)
        now, had, unseen, wants = 0, 0, 0, seed % 2 == 0
        while now < 200 * period:
            step = max(min(cap.due, now + period) - now, 10_000)
            share = 1.0 if wants or chance.random() < 0.5 else chance.random()
            got = int(step * share) if cap.runs else 0
            now, had, unseen = now + step, had + got, unseen + got
            if now >= cap.look_at:
                cap.had(unseen, now, cap.runs)
                unseen = 0
            cap.renew(now)
            if cap.ends(now):
                now, had, unseen = now + 500_000, had + 400_000, unseen + 400_000
                cap.stopped(now, True, 0)
            elif cap.begins(now):
                now += 300_000
                cap.started(now, True)
        whole = now // period * quota
        assert had <= whole + 3 * quota + 2 * MS, (seed, had / whole)
        if wants:
            assert had >= whole * 0.98 - 3 * quota, (seed, had / whole)


def test_periods_begin_at_the_same_moments_whenever_a_slice_is_first_seen() -> None:
    for now in (0, 1 * MS, 37 * MS, 99 * MS, 12345 * MS):
        cap = Cap(10 * MS, 100 * MS, 10 * MS, 0, now, 30 * MS)
        assert cap.next % (100 * MS) == 30 * MS and now < cap.next <= now + 100 * MS
        assert cap.left == (cap.next - now) // 10, "of a part of a period it has that part of the quota"


def test_another_phase_gives_and_takes_nothing() -> None:
    """What it may have until any later moment is the same, however often the phase changes."""
    cap, chosen = Cap(10 * MS, 100 * MS, 0, 0, 0), random.Random(4)
    now = 0
    for _ in range(1000):
        now += chosen.randrange(1, 90 * MS)
        cap.renew(now)
        cap.left = min(cap.left, 0)  # it uses all that it gets
        before = cap.left + cap.quota * (now - cap.next) // cap.period
        cap.change(10 * MS, 100 * MS, 0, 0, now, chosen.randrange(100 * MS))
        after = cap.left + cap.quota * (now - cap.next) // cap.period
        assert abs(after - before) <= 2 and cap.next > now


def side_by_side(in_turn: bool) -> int:
    """Milliseconds of a second in which both of two caps of a half let their slices run, after a while."""
    caps = [Cap(50 * MS, 100 * MS, 50 * MS, 0, 0, phase, in_turn) for phase in (0, 50 * MS)]
    both, last = 0, [0, 0]
    had = [0.0, 0.0]
    for now in range(0, 3000 * MS, MS // 4):
        running = [cap for cap in caps if cap.runs]
        for place, cap in enumerate(caps):
            cap.renew(now)
            if cap.look_at <= now:
                cap.had(int(had[place]) - last[place], now, cap.runs)
                last[place] = int(had[place])
            if cap.ends(now):
                cap.stopped(now, True, 0)
            elif cap.begins(now):
                cap.started(now, True)
            had[place] += MS / 4 / len(running) if cap in running else 0
        if now >= 2000 * MS:
            both += len([cap for cap in caps if cap.runs]) == 2
    assert all(abs(one - 1500 * MS) < 100 * MS for one in had)
    return both // 4


def test_slices_that_run_in_turn_never_run_at_once() -> None:
    """With quotas alone, half of the time each is what both have, and nobody is ever stopped."""
    assert side_by_side(False) > 900
    assert side_by_side(True) == 0


def test_who_runs_in_turn_does_not_begin_when_its_turn_is_nearly_over() -> None:
    cap = Cap(40 * MS, 100 * MS, 40 * MS, 0, 0, 0, True)
    cap.had(0, 0, True)
    assert cap.due < 40 * MS and not cap.ends(39 * MS) and cap.ends(40 * MS)
    cap.stopped(40 * MS, True, 0)
    assert not cap.begins(41 * MS) and cap.due <= 41 * MS
    cap.had(20 * MS, 41 * MS, False)
    assert cap.due == 100 * MS and not cap.begins(99 * MS)
    cap.renew(135 * MS)
    assert not cap.begins(135 * MS) and cap.begins(120 * MS)
    cap.change(40 * MS, 100 * MS, 40 * MS, 0, 150 * MS, 0, False)
    assert cap.begins(150 * MS)

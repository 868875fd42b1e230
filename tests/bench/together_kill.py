"""A tenant that is ended by SIGKILL with work in flight, again and again, and what the others do then."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.together import Case, Kills
from together_run import LATE, PATIENCE, Failed, Machine, Tenant


def kill(machine: Machine, way: str, wanted: int, until: float, note: Callable[[Kills], None]) -> Kills:
    """Two decode loops go on while one that trains is started and killed, again and again."""
    found = Kills(wanted, 0, (), 0, 0)
    case = Case("decode", way, (1, 1, 1))
    with machine.shared(way) as (variables, _):
        others: list[Tenant] = []
        try:
            for at in range(2):
                others.append(_going(machine, case, at, variables, "decode"))
            while found.done < wanted and time.monotonic() < until:
                found = _kill_one(machine, case, variables, others, found)
                note(found)
        finally:
            for one in others:
                one.end()
    return found


def _going(machine: Machine, case: Case, at: int, variables: dict[str, str], kind: str) -> Tenant:
    """One that has ended a step, and has no end."""
    made = machine.start(case, at, variables, kind)
    try:
        until = time.monotonic() + PATIENCE
        made.ready(until)
        made.go(0, 1 << 63)
        while not made.steps()[0]:
            if time.monotonic() > until:
                raise Failed(f"a tenant ({kind}) ended no step: {made.said()}")
            if made.process.poll() is not None:
                made.line(time.monotonic() + 1)
            time.sleep(0.002)
    except BaseException:
        made.end()
        raise
    return made


def _again(
    machine: Machine, case: Case, place: int, variables: dict[str, str], kind: str, at: int
) -> Tenant:
    """One that goes, started as often as that takes: a server that had a fault may still be ending."""
    while True:
        try:
            return _going(machine, case, place, variables, kind)
        except Failed:
            if time.monotonic_ns() - at > LATE * 1e9:
                raise


def _kill_one(
    machine: Machine, case: Case, variables: dict[str, str], others: list[Tenant], found: Kills
) -> Kills:
    victim = _again(machine, case, 2, variables, "train", time.monotonic_ns())
    try:
        at = time.monotonic_ns()
        victim.kill()
        back, restarts, late = at, 0, 0
        for place, one in enumerate(others):
            while one.steps()[2] < at:  # until one that began afterwards has ended
                if one.process.poll() is not None:
                    one.end()
                    restarts += 1
                    one = others[place] = _again(machine, case, place, variables, "decode", at)
                elif time.monotonic_ns() - at > LATE * 1e9:
                    one.end()
                    late += 1
                    others[place] = _going(machine, case, place, variables, "decode")
                    back = at + round(LATE * 1e9)
                    break
                time.sleep(0.001)
            else:
                back = max(back, one.steps()[1])
    finally:
        victim.end()
    delay = (back - at) / 1e6
    return found._replace(
        done=found.done + 1,
        delays=(*found.delays, delay),
        restarts=found.restarts + restarts,
        late=found.late + (1 if late or delay > found.limit else 0),
    )

"""The quantum that nvcd learns: short where programs wait for short steps, long elsewhere; shares stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.arbiter_world import FAIR, FIXED, PREEMPT, SECOND, SOFT, WEIGHT, Program, World

from nvc.daemon.io.wire import DROP, GRANT
from nvc.daemon.schedule.leases import Member
from nvc.daemon.schedule.quantum import (
    ENOUGH,
    LONGEST,
    PATIENCE,
    REMEMBERED,
    ROUND,
    SAME,
    SHORTEST,
    TURN,
    WAITED,
    Fit,
    Work,
    fitting_quantum,
    learn,
    quantum_of,
)
from nvc.slices.model.policy import MS, TABLE
from nvc.slices.policy.entitlement import InForce
from nvc.slices.policy.policies import DevicePolicy

LOOK = SECOND // 2  # between two looks at ledgers
BEGIN = MS // 10  # from the end of a lease until the next holder's work has begun


class Loop(Program):
    """Steps of some kernels each, which it waits for; it finishes the kernel that runs when its lease ends."""

    def __init__(self, kernel: int, count: int = 1, waits: bool = True, told: float = 1.0) -> None:
        super().__init__()
        self.kernel, self.count, self.waits = kernel, count, waits
        self.told = told  # so many steps it writes to its ledger for each that it made
        self.charged = self.steps = self.left = self.until = 0
        self.since = -1  # when the step of now was begun
        self.took: list[int] = []
        self.round = 0

    def ledger(self) -> Work:
        """Its ledger; a synchronization at its start is in it."""
        return Work(self.charged, 1 + int(self.steps * self.told))

    def hear(self, world: World, member: Member, uuid: bytes, kind: int, round: int, length: int) -> None:
        if kind == DROP:
            self.until = min(self.until, world.now) if round == self.round else self.until
            return
        self.began[uuid], self.rounds[uuid], self.round = world.now, round, round
        self.until = world.now + length if kind == GRANT else 1 << 62
        world.later(BEGIN, lambda: self.launch(world, member, uuid))

    def launch(self, world: World, member: Member, uuid: bytes) -> None:
        if self.left == 0:
            self.left = self.count
            self.since = world.now if self.since < 0 else self.since
        world.later(self.kernel, lambda: self.end(world, member, uuid))

    def end(self, world: World, member: Member, uuid: bytes) -> None:
        self.charged += self.kernel
        self.left -= 1
        if self.left == 0:
            self.took.append(world.now - self.since)
            self.steps += self.waits
            self.since = world.now  # the next one is wanted at once
        if world.now < self.until:
            self.launch(world, member, uuid)
        else:
            self._give_back(world, member, uuid, self.round, True)


def decode() -> Loop:
    return Loop(2 * MS)


def training() -> Loop:
    return Loop(10 * MS, 12)


def queue() -> Loop:
    return Loop(MS // 2, waits=False)  # a hundred kernels of 5 us


def long() -> Loop:
    return Loop(100 * MS)


def quantum(world: World) -> int:
    return world.board.arbiters[world.uuids[0]].quantum


def run(world: World, loops: dict[str, Loop], seconds: int = 10) -> None:
    """Let time pass, with a look at ledgers twice a second."""
    for _ in range(seconds * SECOND // LOOK):
        world.run(LOOK)
        arbiter = world.board.arbiters[world.uuids[0]]
        arbiter.learn({key: loop.ledger() for key, loop in loops.items()}, world.now)


def started(world: World, *loops: Loop, weights: tuple[int, ...] = (), **more: int) -> dict[str, Loop]:
    found = {str(number): loop for number, loop in enumerate(loops)}
    for number, (key, loop) in enumerate(found.items()):
        world.start(key, loop, weights[number] if weights else 1, **more)
    return found


def measured(world: World, loops: dict[str, Loop], seconds: int = 10) -> dict[str, float]:
    """The part of the time that each had; `took` of each has the steps of these seconds alone."""
    before = world.held()
    for loop in loops.values():
        loop.took.clear()
    run(world, loops, seconds)
    return {key: (held - before[key]) / (seconds * SECOND) for key, held in world.held().items()}


def worst(loop: Loop) -> int:
    """The 99th percentile of its steps, in nanoseconds."""
    return sorted(loop.took)[len(loop.took) * 99 // 100]


#: Programs, and the quantum that is to be learnt, in nanoseconds.
MIXTURES = {
    "one that decodes": ((decode,), MS),
    "two that decode": ((decode, decode), MS),
    "decoding and training": ((decode, training), MS),
    "decoding and a queue": ((decode, queue), MS),
    "decoding and long kernels": ((decode, long), MS),
    "two that train": ((training, training), LONGEST),
    "training and a queue": ((training, queue), LONGEST),
    "two queues": ((queue, queue), LONGEST),
    "long kernels": ((long, long), LONGEST),
    "a queue and long kernels": ((queue, long), LONGEST),
    "eight queues": ((queue,) * 8, ROUND // 8),
    "eight that decode": ((decode,) * 8, 3 * MS),
    "sixteen that decode": ((decode,) * 16, 9 * MS),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_what_is_learnt(mixture: str) -> None:
    kinds, wanted = MIXTURES[mixture]
    world = World(DevicePolicy(WEIGHT))
    loops = started(world, *(kind() for kind in kinds))
    run(world, loops, 6)
    assert wanted / SAME <= quantum(world) <= wanted * SAME
    assert sum(measured(world, loops).values()) == pytest.approx(1, abs=0.01)
    for share in world.held().values():
        assert share / (world.now - SECOND) == pytest.approx(1 / len(kinds), abs=0.02)


@pytest.mark.parametrize("other", [decode, queue])
def test_decoding_alternates(other: object) -> None:
    """A step takes what it takes by strict alternation, and the device works all the time but for changes."""
    world = World(DevicePolicy(WEIGHT))
    loops = started(world, decode(), decode() if other is decode else queue())
    run(world, loops)
    measured(world, loops)
    assert worst(loops["0"]) <= 1.15 * (4 * MS + 2 * BEGIN)
    assert sum(loop.charged for loop in loops.values()) >= 0.9 * (world.now - SECOND)


def test_with_the_default_quantum_a_step_waits_for_many() -> None:
    """What the bound on it is worth: before anything was learnt, a step waits for five of the other's."""
    world = World(DevicePolicy(WEIGHT))
    loops = started(world, decode(), decode())
    world.run(10 * SECOND)
    assert worst(loops["0"]) > 10 * MS


def test_eight_have_their_weights() -> None:
    world = World(DevicePolicy(WEIGHT))
    weights = (1, 1, 1, 2, 2, 3, 3, 3)
    loops = started(world, *(decode() for _ in weights), weights=weights)
    run(world, loops)
    for weight, share in zip(weights, measured(world, loops).values()):
        assert share == pytest.approx(weight / sum(weights), abs=0.02)


@pytest.mark.parametrize("told", [0.0, 0.02, 50.0, 1e6])
@pytest.mark.parametrize("kind", [decode, queue, long])
def test_wrong_steps_gain_nothing(kind: object, told: float) -> None:
    """Neither share nor the other's wait, whatever it writes to its ledger."""
    world = World(DevicePolicy(PREEMPT))
    liar = {decode: decode, queue: queue, long: long}[kind]()  # type: ignore[index]
    liar.told, liar.waits = told, True
    loops = started(world, decode(), liar)
    run(world, loops)
    found = measured(world, loops)
    assert found["0"] == pytest.approx(0.5, abs=0.02) and found["1"] == pytest.approx(0.5, abs=0.02)
    assert SHORTEST <= quantum(world) <= MS * SAME
    longest = max(liar.kernel, quantum(world))
    assert kind is long or worst(loops["0"]) <= 1.15 * (2 * MS + longest + 2 * (BEGIN + quantum(world)))


def test_lies_cost_the_others_little() -> None:
    """As many steps as it likes, beside a queue: changes cost what they cost beside a true loop of such steps."""
    world = World(DevicePolicy(PREEMPT))
    liar = queue()
    liar.waits, liar.told = True, 0.5  # steps of 1 ms
    loops = started(world, queue(), liar)
    run(world, loops)
    before = loops["0"].charged
    run(world, loops)
    assert loops["0"].charged - before >= 0.45 * 10 * SECOND


# The function


NOTHING_YET = Fit()


def looks(*totals: tuple[int, int], fit: Fit = NOTHING_YET, key: str = "a", at: int = 0) -> Fit:
    """Half a second apart."""
    for number, (charged, steps) in enumerate(totals):
        fit = learn(fit, {key: Work(charged, steps)}, at + number * LOOK)
    return fit


def loop(step: int, count: int, begin: int = 0, steps: int = 1) -> list[tuple[int, int]]:
    """The ledger of one that is always busy, with such steps."""
    return [(begin + n * LOOK, steps + n * LOOK // step) for n in range(count)]


@pytest.mark.parametrize("step", [TURN // 15, MS // 2, MS, 2 * MS, 7 * MS, 25 * MS, 80 * MS])
def test_a_lease_ends_with_a_step(step: int) -> None:
    """In its middle the quantum ends, so that neither the step before nor the next one is the last."""
    found = fitting_quantum([step])
    steps = -(-found // step)
    assert steps * step >= TURN and (steps == 1 or (steps - 1) * step < TURN)
    assert step // 4 < found % step < step - step // 4 or found == LONGEST


def test_bounds() -> None:
    assert fitting_quantum([1]) == WAITED
    assert fitting_quantum([1 << 62]) == LONGEST
    assert fitting_quantum([1 << 62] * 1000) == SHORTEST
    for step in range(1, 200 * MS, 313_131):
        assert SHORTEST <= fitting_quantum([step]) <= LONGEST
        assert fitting_quantum([step, 2 * MS]) <= MS


def test_shorter_at_once_and_longer_later() -> None:
    fit = looks(*loop(2 * MS, 3))
    assert fit.quantum == pytest.approx(MS, rel=0.01)
    now, base = 2 * LOOK, 1 + 2 * LOOK // (2 * MS)
    fit = looks(*loop(20 * MS, PATIENCE // LOOK, 2 * LOOK, base), fit=fit, at=now)
    assert fit.quantum == pytest.approx(MS, rel=0.01) and fit.longer_since
    last, at = fit.known[0][1].base, now + PATIENCE - LOOK
    fit = looks(*loop(20 * MS, 4, last.charged, last.steps), fit=fit, at=at)
    assert fit.quantum == pytest.approx(10 * MS, rel=0.05)
    last = fit.known[0][1].base
    fit = looks(*loop(2 * MS, 2, last.charged, last.steps), fit=fit, at=at + 3 * LOOK)
    assert fit.quantum == pytest.approx(MS, rel=0.01)


def test_it_does_not_flap() -> None:
    """One that does this and that each second keeps the shorter one; small differences are none."""
    charged, steps, fit, found = 0, 1, Fit(), []
    for number in range(60):
        charged += LOOK
        steps += LOOK // (2 * MS if number % 4 < 2 else 30 * MS)
        fit = looks((charged, steps), fit=fit, at=number * LOOK)
        found.append(fit.quantum)
    assert len(set(found[3:])) == 1 and found[3] <= SAME * MS
    charged, steps, fit = 0, 1, Fit()
    for number in range(60):
        charged += LOOK
        steps += LOOK // (2 * MS + number % 3 * MS // 10)
        fit = looks((charged, steps), fit=fit, at=number * LOOK)
        found.append(fit.quantum)
    assert len(set(found[-58:])) == 1


def test_who_does_nothing_counts_for_a_while() -> None:
    busy = loop(200 * MS, (REMEMBERED + PATIENCE) // LOOK + 4, steps=1)
    fit, found = Fit(), []
    for number, (charged, steps) in enumerate(busy):
        works = {
            "busy": Work(charged, steps),
            "rests": Work(min(charged, 2 * LOOK), 1 + min(number, 2) * 250),
        }
        fit = learn(fit, works, number * LOOK)
        found.append(fit.quantum)
    assert set(found[3 : REMEMBERED // LOOK]) == {found[3]} and found[3] <= SAME * MS
    assert fit.quantum == LONGEST


def test_who_is_gone_is_forgotten() -> None:
    fit = looks(*loop(2 * MS, 3))
    assert learn(fit, {}, 3 * LOOK).known == () and learn(fit, {}, 3 * LOOK).quantum == fit.quantum


def test_a_ledger_that_says_less_than_before() -> None:
    """Another one, or its slice wrote to it: what was learnt stays, until there is enough of the new one."""
    fit = looks(*loop(2 * MS, 3))
    less = looks((5, 2), fit=fit, at=3 * LOOK)
    assert less.quantum == fit.quantum and less.known[0][1].base == Work(5, 2)
    assert looks((5, (1 << 64) - 1), fit=less, at=4 * LOOK).quantum == fit.quantum


def test_too_little_says_nothing() -> None:
    assert looks((0, 1), (MS, 1000)).quantum == 0
    assert looks((0, 1), (100 * MS, 3)).quantum == 0
    assert looks((0, 1), (100 * MS, 3), (300 * MS, 5)).quantum == LONGEST * 15 // 16
    assert looks((0, 0), (ENOUGH * 100, 0)).quantum == 0  # a shim that counts none


@pytest.mark.parametrize("policy", range(len(TABLE)))
def test_in_force(policy: int) -> None:
    """The operator's quantum is the longest. Caps have never less than 10 ms, and equal parts that alone."""
    row = TABLE[policy]
    free = InForce(row)
    bounded = InForce(row, 2 * MS, 2 * MS)
    learns = policy in (PREEMPT, WEIGHT, SOFT) or not row.leases
    assert quantum_of(free, 0) == 10 * MS and quantum_of(bounded, 0) == 2 * MS
    assert quantum_of(free, MS) == (MS if learns else 10 * MS)
    assert quantum_of(bounded, MS) == (MS if learns else 2 * MS)
    assert quantum_of(bounded, 30 * MS) == 2 * MS
    assert quantum_of(free, LONGEST) * row.quanta <= LONGEST
    assert policy != FAIR or quantum_of(free, LONGEST) == 10 * MS
    assert policy != FIXED or quantum_of(free, LONGEST) == LONGEST


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        ((queue, queue), LONGEST),
        ((training, queue), LONGEST),
        ((decode, queue), 10 * MS),
        ((decode, decode), 10 * MS),
    ],
)
def test_what_is_learnt_under_caps(kinds: tuple[Callable[[], Loop], ...], wanted: int) -> None:
    """Of two that never wait. Others keep 10 ms: each change costs time that nobody gets back under caps."""
    world = World(DevicePolicy())
    loops = {str(cores): kind() for cores, kind in zip((30, 70), kinds, strict=True)}
    for key, loop in loops.items():
        world.start(key, loop, cores=int(key), policy=FIXED)
    run(world, loops, 6)
    assert wanted / SAME <= quantum(world) <= wanted * SAME
    assert measured(world, loops) == {key: pytest.approx(int(key) / 100, abs=0.01) for key in loops}

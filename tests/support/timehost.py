"""A host in virtual time: the model of a GPU, the plan of its slices, and the real timekeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nvc.daemon.keeper.keeper import Keeper
from nvc.daemon.keeper.plan import STRANGERS, Group, Plan, plan_with_strangers
from nvc.daemon.keeper.wire import Account
from nvc.model.slices.policy import POLICIES
from nvc.slices.policy.entitlement import Demand, in_force
from nvc.slices.policy.policies import DevicePolicy

from .gpumodel import MS, SECOND, Burst, Context, Gpu

UUID = "GPU-00000000-1111-2222-3333-444444444440"
SEEN = 10 * MS  # until the plan knows of what a process has made


def demand(key: str, policy: str, cores: int = 0, weight: int = 1, **more: int | bool) -> Demand:
    """What a slice asks for."""
    return Demand(key, policy=POLICIES.index(policy), cores=cores, weight=weight).replace(**more)


class Host:
    """Slices on one GPU. `run` lets time pass, and returns what each process had of it, in percent."""

    def __init__(
        self, *demands: Demand, policy: DevicePolicy | None = None, idle_ends: bool = False,
        on_stranger: str = "leave",
    ) -> None:  # fmt: skip
        self.gpu = Gpu(idle_ends)
        self.demands = demands
        self.on_stranger = on_stranger
        self.policy = policy or DevicePolicy()
        driver: Any = self.gpu
        self.keeper = Keeper(lambda: driver, self.gpu.clock, self.gpu.alive)
        self.keys: dict[int, str] = {}  # of processes
        self.account: Account | None = None
        self.told: Callable[[Plan], Plan] = lambda found: found  # a test may change what is sent
        self._totals: list[dict[int, int]] = []
        self._activity: dict[int, int] = {}
        self._sent: Plan | None = None
        self._due = self._accounted = self._planned = self.gpu.now
        self._gone: dict[int, int] = {}  # what processes that have ended had

    def tenant(self, key: str, pid: int, work: Iterator[Burst], channels: int = 8) -> Context:
        """A process of a slice, or STRANGERS, with a channel group."""
        self.keys[pid] = key
        return self.gpu.context(pid, work, channels)

    def end(self, context: Context) -> None:
        """A process ends."""
        self._gone[context.pid] = self._gone.get(context.pid, 0) + context.had
        self.gpu.end(context)

    def plan(self) -> Plan:
        """What nvcd would send now."""
        groups: dict[str, tuple[Group, ...]] = {}
        for one in self.gpu.contexts:
            key = self.keys[one.pid]
            groups[key] = (*groups.get(key, ()), one.group)
        force = in_force(self.policy, self.demands)
        strangers = groups.pop(STRANGERS, ())
        found = plan_with_strangers(UUID, force, groups, self._activity, strangers, self.on_stranger)
        return self.told(Plan((found,)))

    def had(self) -> dict[int, int]:
        """What each process had in all, as the model knows it. Nanoseconds."""
        found = dict(self._gone)
        for one in self.gpu.contexts:
            found[one.pid] = found.get(one.pid, 0) + one.had
        return found

    def run(self, nanoseconds: int) -> dict[int, float]:
        """Let that much time pass. Percent of it, by process."""
        before, begun, end = self.had(), self.gpu.now, self.gpu.now + nanoseconds
        while self.gpu.now < end:
            self._turn(end)
        passed = self.gpu.now - begun
        return {pid: 100 * (had - before.get(pid, 0)) / passed for pid, had in self.had().items()}

    def by_slice(self, nanoseconds: int) -> dict[str, float]:
        """The same by slice."""
        found = dict.fromkeys((one.key for one in self.demands), 0.0)
        for pid, part in self.run(nanoseconds).items():
            found[self.keys[pid]] = found.get(self.keys[pid], 0.0) + part
        return found

    def seconds(self, count: int) -> list[dict[str, float]]:
        """What each slice had in each of so many seconds."""
        return [self.by_slice(SECOND) for _ in range(count)]

    def _turn(self, end: int) -> None:
        gpu = self.gpu
        if gpu.now >= self._planned:
            self._planned = gpu.now + SEEN
            found = self.plan()
            if found != self._sent:
                self._sent = found
                self.keeper.apply(found)
                self._due = gpu.now
        if gpu.now >= self._due:
            self._due = self.keeper.step(gpu.now)
        if gpu.now >= self._accounted:
            self._accounted = gpu.now + 100 * MS
            self.account = self.keeper.account(0)
            totals = {pid: had for device in self.account.devices for pid, had, _ in device.pids}
            self._totals = [*self._totals[-5:], totals]
            self._activity = {pid: had - self._totals[0].get(pid, 0) for pid, had in totals.items()}
        following = min(self._due, self._accounted, self._planned, end)
        gpu.wait(max(following, gpu.now + 1000))

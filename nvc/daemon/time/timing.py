"""nvcd's part in keeping time: who uses which GPU, what the timekeeper is to do, and what came of it.

It connects the tracer (who has channels), the slices (what holds), the plan (pure) and the timekeeper (which
carries it out). It decides nothing of its own. Where one is missing, the shim keeps time, and `keeper_of` says why.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

from nvc.base.errors import NvcError
from nvc.base.rundir import runtime_directory
from nvc.daemon.io.identity import parent_of, signal_process
from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.keeper import process
from nvc.daemon.keeper.driver import opener
from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, plan_with_strangers
from nvc.daemon.keeper.table import UNKNOWN, Table
from nvc.daemon.keeper.wire import Account
from nvc.daemon.schedule.slice_index import SliceIndex, raw_uuid
from nvc.daemon.time.books import Books
from nvc.daemon.time.client import Records, TimeClient
from nvc.daemon.time.crowd import Crowd
from nvc.daemon.time.hidden import Hidden
from nvc.daemon.time.meddling import BREAKS, BROKE, THEN, Meddling, number_of
from nvc.daemon.time.owners import STRANGER, Owners
from nvc.kernel import Kernel
from nvc.kernel.clocks import host_boottime, process_began
from nvc.kernel.objects import CLIENT_FREED, CONTESTED, EXITED, FREED, NEW
from nvc.kernel.pid_space import Space, pid_space
from nvc.kernel.processes import is_over, start_of
from nvc.kernel.tracer import Tracer
from nvc.request.config import Config

SOON = SECOND // 500  # after news of channels: a context is made by some dozen calls
LOAD_PART = 20  # at most one part in so many of the time is for loading the table
PINS = "bpf"  # below the runtime directory


class Timing:
    """`open` is called while nvcd has all its rights; `refresh` whenever slices or policies have changed."""

    def __init__(
        self, loop: Loop, kernel: Kernel, slices: SliceIndex, config: Config, log: Callable[[str], None],
        servers: Callable[[], dict[int, str]],
    ) -> None:  # fmt: skip
        """`servers` tells the MPS control daemons that nvcd has started, each with its GPU."""
        self.loop = loop
        self.kernel = kernel
        self.slices = slices
        self.log = log
        self.servers = servers
        self.on_stranger = config.nvcd_on_stranger
        self.pins = f"{runtime_directory() or '/run/nvc'}/{PINS}"
        self.tracer: Tracer | None = None
        self.problem = "the tracer was not loaded"
        self.table = Table()
        self.owners = Owners(kernel, slices.living, slices.say)
        self.books = Books()
        self.client = TimeClient(
            loop, lambda: process.start(kernel, opener(kernel, config, self.pins)), self._told, log
        )
        self.instances: dict[str, int] = {}  # the driver's numbers of GPUs
        self.guarded: set[int] = set()
        self.unguarded: set[str] = set()  # slices with a process that could not be guarded
        self.meddling = Meddling(
            lambda pids: self.owners.of({*self.table.pids(), *pids}),
            lambda: slices.by_key, slices.whose, self._end, log,
        )  # fmt: skip
        self.spaces: dict[int, Space] = {}  # pid namespaces of those, but the host's
        self._spaces_told: frozenset[Space] | None = None  # the tracer has those of an nvcd before
        self.hidden = Hidden(BROKE)
        self.crowd = Crowd()
        self.strangers: dict[str, tuple[int, ...]] = {}  # processes in no slice, by the GPU that they use
        #: Of the last trace that was asked for; None: it is not there yet. And why there is none.
        self.records: Records | None = None
        self.records_problem = ""
        self._lost = 0
        self._full_before = 0  # as host_boottime(): of who began earlier the table may lack objects
        self._load_at = 0
        self._soon = False

    def open(self, now: int) -> None:
        """Load the tracer, and start the timekeeper."""
        try:
            self.tracer = Tracer.open(self.pins)
            self.table.load(self.tracer.objects())
            self._lost = self.tracer.lost
            self._full_before = host_boottime() if self.tracer.was_full else 0
            self.loop.add(self.tracer.fd, self._news)
            self.problem = ""
            self.client.second(now)
        except (OSError, NvcError) as error:
            self.problem = str(error)
            self.log(str(error))

    def keeper_of(self, uuid: str, now: int) -> str:
        """Why the driver's scheduler does not keep the time of this GPU; "" where it does."""
        if self.problem:
            return self.problem
        if not uuid.upper().startswith("GPU-"):
            return "a MIG device has a scheduler of its own, which is not used yet"
        return self.client.holds(uuid, now)

    def second(self, now: int) -> None:
        """What is due once a second."""
        if self.tracer is None:
            return
        self.client.second(now)
        self.meddling.second(now)
        if self.tracer.leaving:
            self._news(now)
        if now >= self._load_at and self.tracer.lost != self._lost:
            self._lost = self.tracer.lost  # the table is whole, even where news were lost
            self.table.load(self.tracer.objects())
            # Of a table that tenants have filled this takes long.
            self._load_at = now + LOAD_PART * (time.monotonic_ns() - now)
        self.table.purge(lambda pid: not is_over(pid))
        self.owners.doubt()
        self._make_room()
        self.refresh(now)

    def _make_room(self) -> None:
        """End a process of the slice that has filled the tracer's table: others need it."""
        if not self.crowd.is_full:
            return
        self.crowd.begin()
        counts = self.table.counts()
        found = self.crowd.whose_end(counts, self.owners.of(counts))
        if found is not None:
            pid, key, count = found
            why = f"the tracer's table is full, and {count} objects of it are this process's"
            self.meddling.kill(pid, key, why)

    def _unseen(self) -> set[str]:
        """The slices with processes of which the tracer lacks channels: their shims limit time."""
        lacking = self.crowd.lacking
        owners = self.owners.of((*self.table.pids(), *lacking)) if lacking else {}
        return {owners[pid] for pid in lacking if pid in owners}

    def refresh(self, now: int) -> None:
        """Plan anew."""
        if self.tracer is None:
            return
        owners = self.owners.of(self.table.pids())
        self.unguarded.clear()
        self._guard({pid: key for pid, key in owners.items() if key != STRANGER})
        self._guard({entry.pid: entry.key for entry in self.slices.living() if entry.pid})
        spaces = frozenset(self.spaces.values())
        if spaces != self._spaces_told:
            self.tracer.guard_spaces(spaces)
            self._spaces_told = spaces
        groups = self.table.groups()
        found = {
            raw: self._found(self.slices.names[raw], groups, owners)
            for raw in self.slices.force
            if self.slices.names[raw].upper().startswith("GPU-")
        }
        often = Counter(key for slices in found.values() for key in slices if key != STRANGER)
        spanning = frozenset(key for key, count in often.items() if count > 1)
        self.client.set(
            Plan(tuple(self._device(self.slices.names[raw], raw, one, spanning) for raw, one in found.items())), now
        )

    def _found(
        self, uuid: str, groups: dict[int, tuple[Group, ...]], owners: dict[int, str]
    ) -> dict[str, tuple[Group, ...]]:
        """The groups on one GPU by their slice. One whose process hides its device counts for each of them."""
        found: dict[str, list[Group]] = {}
        instance = self.instances.get(uuid, UNKNOWN)
        here = groups.get(instance, ()) if instance != UNKNOWN else ()
        for group in (*here, *groups.get(UNKNOWN, ())):
            found.setdefault(owners.get(group.pid, STRANGER), []).append(group)
        return {key: tuple(few) for key, few in found.items()}

    def _device(
        self, uuid: str, raw: bytes, found: dict[str, tuple[Group, ...]], spanning: frozenset[str]
    ) -> DevicePlan:
        """The plan of one GPU. `spanning`: the slices that use several."""
        servers = self.servers()  # MPS servers are their children, and run what slices launch
        strangers = tuple(one for one in found.pop(STRANGER, ()) if parent_of(one.pid) not in servers)
        self.strangers[uuid] = tuple(sorted({group.pid for group in strangers}))
        return plan_with_strangers(
            uuid, self.slices.force[raw], found, self.books.lately(uuid), strangers, self.on_stranger, spanning,
            self.books.resting(uuid),
        )

    def _guard(self, keys: dict[int, str]) -> None:
        """Have these processes, and all that they make, killed when they start or stop channels; until they end.

        The first process of a container is among them before it runs a program, so its children are from their
        beginning. Who enters its pid namespace is, too; who enters other namespaces alone, with its first object.
        """
        assert self.tracer is not None
        for pid in keys.keys() - self.guarded:
            try:
                self.tracer.guard(pid, True, number_of(keys[pid]))
            except OSError as error:
                self.unguarded.add(keys[pid])
                whose = self.slices.whose(keys[pid])
                self.slices.say(
                    f"{whose} has processes that the tracer cannot guard: {error}; limit the number of "
                    "processes of each container (--pids-limit)"
                )
                continue
            self.guarded.add(pid)
            if space := pid_space(pid):
                self.spaces[pid] = Space(*space, number_of(keys[pid]))

    def _news(self, now: int) -> None:
        try:
            self._take_news(now)
        except OSError as error:
            self.slices.say(f"news of channels were not understood, and are read again: {error}")
            self._lost = -1

    def _take_news(self, now: int) -> None:
        assert self.tracer is not None
        news = self.tracer.news()
        if self.tracer.behind:  # a flood: others are served meanwhile
            self.loop.rest(self.tracer.fd, now)
        for pid in {one.pid for one in news if one.kind == EXITED}:
            self.guarded.discard(pid)
            self.spaces.pop(pid, None)
        for pid in {one.pid for one in news if one.kind == CONTESTED}:
            self.slices.say(f"process {pid} has handles of the driver that another process made: left out")
        for text in self.crowd.take(news):
            self.slices.say(text)
        self.meddling.take(news, now)
        self.hidden.touch(one.pid for one in news if one.kind in (NEW, FREED, CLIENT_FREED, EXITED))
        if self.table.take(news) and not self._soon:
            self._soon = True
            self.loop.once(now + SOON, self._planned)

    def _end(self, pid: int) -> None:
        signal_process(self.kernel, pid, start_of(f"/proc/{pid}"), signal.SIGKILL)

    def _clients(self, key: str, pid: int) -> set[int]:
        """The clients in the plan that a process of a slice has made, or uses."""
        return {
            group.client
            for device in self.client.plan.devices
            for one in device.slices
            if one.key == key
            for group in one.groups
            if pid in (group.pid, group.opener)
        }

    def _look_for_hidden(self, tracer: Tracer, account: Account, now: int) -> None:
        """Act on processes of slices that had a GPU while none of their channels was known there."""
        groups = (group for few in self.table.groups().values() for group in few)
        known = {pid for group in groups for pid in (group.pid, group.opener)}
        self.hidden.touch(known)
        for uuid, pid, had, times in self.hidden.take(account):
            try:
                began = process_began(pid)
            except OSError as error:
                self.slices.say(f"process {pid} may have hidden its channels: {error}")
                continue
            if began is None or began < max(tracer.since, self._full_before):
                continue
            if uuid in self.servers().values():
                continue
            key = self.owners.of((*self.table.pids(), pid)).get(pid, STRANGER)
            if key == STRANGER or self.crowd.excuses(pid, key):
                continue
            text = f"it had the GPU for {had // 1_000_000} ms, and has hidden its channels from nvcd"
            if times < BREAKS:
                self.log(f"process {pid} of {self.slices.whose(key)} is looked for again: {text}; {THEN}")
                self.table.load(tracer.objects())  # in case it was us who lost them
                self.refresh(now)
                continue
            self.meddling.counts["broke"] += 1
            self.meddling.kill(pid, key, text)
        self.hidden.touch(known)

    def _planned(self, now: int) -> None:
        self._soon = False
        self.refresh(now)

    def _told(self, account: Account, now: int) -> None:
        """Take an account of the timekeeper: write what slices had where everybody reads it."""
        self.books.take(account)
        instances = {device.uuid: device.instance for device in account.devices if device.instance >= 0}
        if instances != self.instances:
            self.instances = instances
            self.refresh(now)
        if self.tracer is not None:  # what it saw comes before what came of it
            self._news(now)
            self._look_for_hidden(self.tracer, account, now)
        told: set[int] = set()
        unseen = self._unseen()
        for device in account.devices:
            force = self.slices.force.get(raw_uuid(device.uuid))
            # Clients of a server are paced by the shim, which is not to be told that nvcd keeps their time.
            kept = not device.problem and (force is None or not force.policy.server)
            for found in device.slices:
                self.meddling.look_at(found, self._clients, now)
                told.update(pid for pid, _ in found.broke)
                if found.retimed:
                    whose = self.slices.whose(found.key)
                    self.slices.say(f"{whose} set a timeslice by a call that it hid: it is set again")
            for key, had, waited in self.books.slices(device.uuid):
                known = self.slices.by_key.get(key)
                if known is not None:
                    at = account.now if kept and key not in unseen else 0
                    known.set_time(device.uuid, at, had, waited)
        self.meddling.forget(told)

    def record(self, seconds: int, now: int) -> bool:
        """Have the timekeeper tell who had the GPUs in the last seconds. Whether there is one to ask."""
        self.records, self.records_problem = None, ""
        return self.client.trace(seconds, self._recorded, now)

    def _recorded(self, records: Records, problem: str) -> None:
        self.records, self.records_problem = records, problem

    def close(self) -> None:
        """Let the timekeeper end, which starts all that is stopped."""
        self.client.close()

"""Suspends slices and brings them back: nvcd's part, which asks a worker process and keeps what came of it.

Nothing is asked that is known to fail: room.py looks first, with what NVML has just shown. A worker that hangs is
killed. What it had asked may happen later all the same, so such a slice is brought back again and again until the
driver says that it runs. An nvcd that was killed leaves its records; the next one brings back what was on its way.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from nvc.base.errors import one_line
from nvc.base.value import Value
from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.io import helper
from nvc.daemon.io.loop import SECOND, Loop, received
from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex
from nvc.daemon.suspend import worker
from nvc.daemon.suspend.calls import IS_FAILED, IS_RUNNING, IS_SUSPENDED, Outcome
from nvc.daemon.suspend.hooks import Hooks, Processes
from nvc.daemon.suspend.room import Refusal, gpu_refusal, needed, stopped_refusal, unclaimed
from nvc.daemon.suspend.swap import NOT_SWAPPED, Files, HostMemory, Proof, planned
from nvc.daemon.suspend.words import Counts, failure
from nvc.kernel import Kernel
from nvc.model.request import SWAP
from nvc.model.slices import suspension
from nvc.model.slices.isolation import MPS
from nvc.model.slices.layout import DENIED, PAUSED
from nvc.model.slices.suspension import ASKED, FAILED, RESUMING, SUSPENDED, SUSPENDING, Saved, Suspension
from nvc.slices.make.calibrate import Libraries
from nvc.slices.store.process_info import is_here

ANSWER = 10 * SECOND  # in which NVML has to tell what a slice has
STEP = 30 * SECOND  # that a call may take, and a second for each GIB of the slice
GIB = 1 << 30
AGAIN = 5 * SECOND  # after a worker hung
REMEMBERED = 60 * SECOND  # so long who asked can hear what came of it
HANG_MAX = 8  # workers that were killed and cannot die; no more are begun until one has


class Told(Value):
    """What came of the last question for a slice that runs or stays as it was."""

    at: int
    refusal: Refusal


@dataclass(eq=False)
class Job:
    """A worker at work."""

    key: str
    leave: bool
    pid: int
    channel: socket.socket
    due: int
    since: int
    step: tuple[str, int] = ("start", 0)  # and its process


class Suspender:
    """All slices that do not run."""

    def __init__(
        self, loop: Loop, kernel: Kernel, slices: SliceIndex, accountant: Accountant, look: Callable[[int], object],
        libraries: Callable[[], Libraries | None], log: Callable[[str], None], size: int = 0,
    ) -> None:  # fmt: skip
        """`look` asks NVML, and `told` is called with each answer; `size` is swap-size."""
        self.loop, self.kernel, self.log = loop, kernel, log
        self.slices, self.accountant = slices, accountant
        self.look, self.libraries = look, libraries
        self.hooks = Hooks(loop, kernel)
        self.records: dict[str, Suspension] = {}
        self.jobs: dict[str, Job] = {}
        self.told_of: dict[str, Told] = {}
        self.counts: defaultdict[str, Counts] = defaultdict(Counts)
        self._wanted: dict[str, int] = {}  # since when programs of suspended slices wait
        self._why: dict[str, str] = {}  # slices are to leave
        self._waiting: dict[str, tuple[bool, int]] = {}  # for NVML: whether it is to leave, and since when
        self._again: dict[str, int] = {}  # when what hung is brought back
        self._unwritten: set[str] = set()  # slices whose record on disk is not what it should be
        self._unreaped: list[int] = []
        self._noted: dict[str, Suspension] = {}  # who was on its way when NVML was last asked
        self._proof, self.host = Proof(), HostMemory(size, slices, accountant, self.records)

    def open(self, now: int) -> None:
        """Find what an nvcd before this one left, and bring back what was on its way."""
        self.records.update(suspension.suspensions())
        for key, one in self.records.items():
            if one.state != SUSPENDED and one.saved:
                self._again[key] = now

    def ask(self, key: str, leave: bool, now: int, wanted: int = 0, why: str = ASKED) -> None:
        """Begin to suspend a slice (`leave`) or to bring it back, unless that is so or under way.

        `wanted`: since when its programs wait; 0: they may not.
        """
        self.told_of.pop(key, None)
        one = self.records.get(key)
        under_way = key in self._waiting or key in self.jobs or key in self.hooks.going
        if under_way or (one is not None and leave) or (one is None and not leave):
            return
        refusal = self.refused(self.slices.by_key.get(key), leave)
        if refusal is not None:
            self._refuse(key, refusal, now)
            return
        self._again.pop(key, None)
        if wanted:
            self._wanted[key] = wanted
        if leave:
            self._why[key] = why
        if not leave or not self._tell(key, leave, self._users(key), now):
            self._move(key, leave, now)

    def _users(self, key: str) -> Processes:
        return tuple(sorted({(user.pid, user.start) for user in self.accountant.users if user.key == key}))

    def _move(self, key: str, leave: bool, now: int) -> None:
        self._waiting[key] = leave, now
        self.look(now)

    def _tell(self, key: str, leave: bool, processes: Processes, now: int) -> bool:
        """Whether a slice's programs are being told; one that leaves does so then."""
        known = self.slices.by_key.get(key)
        text = "" if known is None else known.entry.suspend_hook if leave else known.entry.resume_hook

        def then(cause: str, now: int) -> None:
            if cause:
                self.counts[key].hook_failures += 1
                self.log(f"{self.slices.whose(key)}: hook {text}: {cause}")
            if leave:
                self._move(key, leave, now)

        return self.hooks.tell(key, text, leave, processes, then, now)

    def state_of(self, key: str) -> tuple[str, Refusal | None]:
        """The state of a slice, and why the last question came to nothing."""
        told, one = self.told_of.get(key), self.records.get(key)
        state = one.state if one is not None else IS_RUNNING
        if key in self._waiting or key in self.hooks.going:
            leave = self._waiting[key][0] if key in self._waiting else self.hooks.going[key].leave
            state = SUSPENDING if leave else RESUMING
        return state, told.refusal if told is not None else None

    def told(self, now: int) -> None:
        """NVML has told who has what: begin with those who waited for that."""
        lies = self._proof.lies(self.accountant.users)
        for key in lies.keys() & self.records.keys() - self.jobs.keys():
            self._refuse(key, lies[key], now)
            self._waiting[key] = False, now
        for key, (leave, _) in list(self._waiting.items()):
            del self._waiting[key]
            if (refusal := self._leave(key, now) if leave else self._return(key, now)) is not None:
                self._stays(key, leave, refusal, now)

    def _stays(self, key: str, leave: bool, refusal: Refusal, now: int) -> None:
        """It is not moved. Programs that were told that they are suspended are told that they run."""
        self._refuse(key, refusal, now)
        if leave:
            self._tell(key, False, self._users(key), now)

    def second(self, now: int) -> None:
        """What is due once a second."""
        for key, (leave, since) in list(self._waiting.items()):
            if now - since > ANSWER:
                del self._waiting[key]
                silent = Refusal("", "NVML does not tell what it has", "`nvc-cli doctor` says why")
                self._stays(key, leave, silent, now)
            else:
                self.look(now)
        for job in [job for job in self.jobs.values() if now > job.due]:
            step, pid = job.step
            self._ended(job, Outcome(IS_FAILED, f"{step}, which does not return,", pid), now)
            self._again[job.key] = now + AGAIN
        for key, one in list(self.records.items()):
            gone = one.saved and not any(is_here(each.pid, each.start) for each in one.saved)
            if (gone or key not in self.slices.by_key) and key not in self.jobs:
                self._forget(key)
        for key in self.counts.keys() - self.slices.by_key.keys():
            del self.counts[key]
            self._why.pop(key, None)
        for key in tuple(self._unwritten):
            self._keep(self.records[key])
        for key, due in list(self._again.items()):
            if now >= due and key in self.records and key not in self.jobs:
                self._again.pop(key)
                self._waiting[key] = False, now
        self.told_of = {key: told for key, told in self.told_of.items() if now - told.at < REMEMBERED}
        self.host.second({*self.records, *self._waiting}, now)
        self._reap()

    def refused(self, known: IndexedSlice | None, leave: bool) -> Refusal | None:
        """Why a slice cannot be suspended (`leave`) or brought back, whatever it has."""
        if known is None or not known.alive:
            return Refusal("", "it is not a slice that runs", "`nvc-cli vgpu ls` lists them")
        if self.libraries() is None:
            return Refusal("", "nvcd has found no driver", "`nvc-cli doctor driver` says why")
        if not leave:
            return None
        if known.entry.isolation == MPS or known.entry.server:
            return Refusal("", "its programs are clients of an MPS server, which the driver cannot checkpoint", "")
        for device in known.devices:
            if device.flags & (PAUSED | DENIED):
                word = "paused" if device.flags & PAUSED else "denied the GPU"
                cause = f"the slice is {word}, so its work in flight would never end"
                return Refusal(device.uuid, cause, "`nvc-cli vgpu resume SLICE` first")
        return None

    def _leave(self, key: str, now: int) -> Refusal | None:
        why = self._why.pop(key, ASKED)
        saved = taken = tuple(
            Saved(user.pid, user.start, user.uuid, max(0, user.used))
            for user in self.accountant.users if user.key == key
        )  # fmt: skip
        if not saved:
            return Refusal("", "no process of it uses a GPU, so there is nothing to give back", "")
        if by := SWAP if self.slices.by_key[key].swaps else "":
            saved, taken = planned(saved, self.accountant.ledgers.accounts.get(key, ()))
            if not saved:
                return NOT_SWAPPED
        if (stopped := stopped_refusal({one.pid for one in saved})) is not None:
            return stopped
        leaving = [each for job in self.jobs.values() if job.leave for each in self.records[job.key].saved]
        short, waits = self.host.refusal(key, taken, leaving, {key, *self.records, *self._waiting}, now)
        if waits:
            self._why[key], self._waiting[key] = why, (True, now)
            return None
        return short or self._begin(Suspension(key, SUSPENDING, int(time.time()), saved, why=why, by=by), True, now)

    def moves(self, key: str) -> bool:
        """Whether a slice is on its way, or about to be, or was so when NVML was asked for what it told last."""
        return any(key in each for each in (self.jobs, self._waiting, self._again, self.hooks.going, self._noted))

    def ways(self, key: str) -> tuple[str, str]:
        """The states of a slice when NVML was asked, "" if it was not on its way then, and now."""
        return self._noted[key].state if key in self._noted else "", self.state_of(key)[0]

    def note(self) -> None:
        """NVML is being asked: what it tells can be of before what ends by then."""
        self._noted = {}
        self._noted = self.on_their_way()

    def on_their_way(self) -> dict[str, Suspension]:
        """The slices whose memory may be anywhere, by what NVML told last."""
        away = {key: one for key, one in self.records.items() if one.state != SUSPENDED and self.moves(key)}
        return self._noted | away

    def free(self, own: str = "") -> dict[str, int]:
        """Bytes of each GPU, by UUID in lower case, that nobody but `own` has or can take back."""
        others = (each for key, one in self.on_their_way().items() if key != own for each in one.saved)
        return unclaimed(self.accountant.devices, self.accountant.users, others)

    def needs(self, one: Suspension) -> dict[str, int]:
        """Bytes that have to be free, by UUID, for a slice to come back."""
        shown = {(user.pid, user.uuid): max(0, user.used) for user in self.accountant.users}
        here = (each for each in one.saved if is_here(each.pid, each.start))
        if not one.by:  # all of it comes at once
            return needed(each for each in here if (each.pid, each.uuid) not in shown)
        return needed(each.replace(bytes=max(0, each.bytes - shown.get((each.pid, each.uuid), 0))) for each in here)

    def _return(self, key: str, now: int) -> Refusal | None:
        one = self.records[key]
        if not one.saved:
            return Refusal("", one.problem, "end its processes")
        here = [each for each in one.saved if is_here(each.pid, each.start)]
        accounts = self.accountant.ledgers.accounts.get(key, ())
        left = not one.by or any(each.away for each in accounts)
        full = gpu_refusal(self.needs(one), self.free(key)) if left else None
        refusal = stopped_refusal({each.pid for each in here}) or full
        if refusal is None:
            return self._begin(one.replace(state=RESUMING, problem=""), False, now)
        if one.state != SUSPENDED:  # an nvcd before this one was killed on the way
            shown = {user.pid for user in self.accountant.users}
            swapped = all(each.away for each in accounts if each.movable)
            away = swapped if one.by else shown.isdisjoint(each.pid for each in here)
            self._keep(one.replace(state=SUSPENDED if away else FAILED, problem=f"{refusal.path}: {refusal.cause}"))
            if not away:
                self._again[key] = now + AGAIN
        return refusal

    def _begin(self, one: Suspension, leave: bool, now: int) -> Refusal | None:
        libraries = self.libraries()
        self._reap()
        if libraries is None or len(self._unreaped) >= HANG_MAX:
            return Refusal("", "the driver does not answer", "`nvc-cli doctor driver` says why")
        processes = tuple(sorted({(each.pid, each.start) for each in one.saved}))
        problem = self._keep(one)
        if problem is not None and leave:  # an nvcd after this one would not know of it
            self._forget(one.key)
            return Refusal(problem.filename or "/run/nvc", one_line(problem.strerror), "make room there")
        ledger = self.accountant.ledgers.descriptor(one.key)
        files = Files(self.slices.by_key[one.key].quota, ledger) if one.by else None
        try:
            pid, channel = worker.start(self.kernel, libraries, processes, leave, files)
        except OSError as error:
            if leave:
                self._forget(one.key)
            else:
                self._keep(one.replace(state=SUSPENDED))
            return Refusal("", f"no process can be made: {error.strerror}", "see what the host's limits are")
        job = self.jobs[one.key] = Job(one.key, leave, pid, channel, 0, now)
        self._took_a_step(job, now)
        self.loop.add(channel.fileno(), lambda now: self._ready(job, now))
        return None

    def _took_a_step(self, job: Job, now: int) -> None:
        job.due = now + STEP + self.records[job.key].bytes // GIB * SECOND

    def _ready(self, job: Job, now: int) -> None:
        if (data := received(job.channel, worker.PACKET)) is None:
            return
        step, pid = job.step
        try:
            found = worker.parse(data) if data else Outcome(IS_FAILED, f"{step}, whose caller ended,", pid)
        except ValueError as error:
            data, found = b"", Outcome(IS_FAILED, one_line(error), pid)
        if isinstance(found, Outcome):
            self._ended(job, found, now)
            if not data:
                self._again[job.key] = now + SECOND
        else:
            job.step = found
            self._took_a_step(job, now)

    def _ended(self, job: Job, found: Outcome, now: int) -> None:
        del self.jobs[job.key]
        helper.end(self.loop, job.pid, job.channel)
        self._unreaped.append(job.pid)
        one = self.records[job.key]
        refusal = failure(found) if found.step else None
        self.counts[job.key].last = now - job.since
        counts, wanted = self.counts[job.key], self._wanted.get(job.key, 0)
        if found.state == IS_RUNNING:
            self._forget(job.key)
            self._tell(job.key, False, tuple(sorted({(each.pid, each.start) for each in one.saved})), now)
        else:
            state = SUSPENDED if found.state == IS_SUSPENDED else FAILED
            self._keep(one.replace(state=state, problem=f"{refusal.path}: {refusal.cause}" if refusal else ""))
        counts.suspends += job.leave and found.state == IS_SUSPENDED
        if job.leave and found.state == IS_SUSPENDED and one.by:
            self._proof.left(one)
        elif found.state == IS_FAILED and one.by:
            self._again[job.key] = now + AGAIN
        if found.state == IS_RUNNING and not job.leave:
            counts.resumes += 1
            if wanted:
                counts.woke(now - wanted)
                self.log(f"{self.slices.whose(job.key)}: its programs waited for {(now - wanted) / SECOND:.1f} s")
        if refusal is not None:
            self._refuse(job.key, refusal, now)
        took = ", ".join(f"{each.moved >> 20} MiB of {each.uuid}" for each in one.saved)
        step, ms = "suspend" if job.leave else "resume", counts.last // 1_000_000
        self.log(f"{self.slices.whose(job.key)}: {step}: it is {found.state}; {took} in {ms} ms")
        self.look(now)  # somebody may wait for the room

    def _refuse(self, key: str, refusal: Refusal, now: int) -> None:
        told = self.told_of.get(key)
        self.counts[key].suspend_failures += 1
        self.told_of[key] = Told(now, refusal)
        if told is None or told.refusal != refusal:  # what is tried again is said once
            self.log(f"{self.slices.whose(key)}: {refusal.path}{': ' if refusal.path else ''}{refusal.cause}")

    def _keep(self, one: Suspension) -> OSError | None:
        """Note where a slice is, and why that could not be written: it is tried again, then."""
        self.records[one.key] = one
        self._say(one.key, not one.by)
        self._unwritten.discard(one.key)
        try:
            suspension.write(one)
        except OSError as error:
            self._unwritten.add(one.key)
            return error
        return None

    def _say(self, key: str, suspended: bool) -> None:
        """Tell the slice's shims: they let no call begin that would fault."""
        if (known := self.slices.by_key.get(key)) is not None:
            known.set_suspended(suspended)

    def _forget(self, key: str) -> None:
        self.records.pop(key, None)
        self._again.pop(key, None)
        self._wanted.pop(key, None)
        self._unwritten.discard(key)
        self._say(key, False)
        suspension.forget(key)

    def _reap(self) -> None:
        self._unreaped = [pid for pid in self._unreaped if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def close(self) -> None:
        """End the workers; the next nvcd brings back what they were at."""
        for job in self.jobs.values():
            os.kill(job.pid, signal.SIGKILL)  # our child, not reaped

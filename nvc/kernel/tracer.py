"""Who has which objects of the NVIDIA driver's resource manager, seen from outside by native/tracer/tracer.bpf.c.

The program, its maps and its links are pinned, so that what processes make while nobody runs is in the table.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import struct
import time
from collections.abc import Iterable

import nvc
from nvc.base.errors import TracerError
from nvc.base.files import Closable, closing
from nvc.kernel import LinuxKernel, tracing
from nvc.kernel.clocks import ahead, began_at_most
from nvc.kernel.objects import (
    CONTESTED,
    CROWDED,
    EXITED,
    FULL,
    KEY,
    KILLED,
    MEDDLED,
    NAMED,
    RECORD,
    UNREADABLE,
    News,
    Object,
    living,
    parse_news,
    parse_object,
)
from nvc.kernel.pid_space import HOST_PIDS, Space
from nvc.kernel.processes import is_over

_GUARDED, _EXEMPT = 1, 2
_SLICE = 2  # bits below the number of the slice that a process is guarded for
_PID = struct.Struct("<I")
_COUNT = struct.Struct("<Q")
_SPACE = struct.Struct("<QQI4x")
_LOST_NEWS, _LOST_OBJECTS, _LOST_GUARDS = range(3)
#: A sweep of a table that tenants have filled takes long: beyond QUICK ns, at most one part in so many of the time.
_SWEEP_PART, _QUICK = 20, 3_000_000
#: Of struct object and what it means. Maps of another layout are not taken over.
_LAYOUT = 2
#: Entries of the map `settings`, as in tracer.bpf.c.
_STATUS_AT, _SINCE = 0, 1
#: Reads of the ring in a turn: as many records as it has room for, and a few more.
_TURN = 40
_UNORDERED = frozenset(_PID.pack(kind) for kind in (KILLED, MEDDLED, UNREADABLE, CROWDED, CONTESTED, NAMED, FULL))

#: name, number (linux/capability.h), what for.
NEEDED = (
    ("CAP_BPF", 39, "to load the tracer"),
    ("CAP_PERFMON", 38, "to load the tracer"),
    ("CAP_SYS_ADMIN", 21, "to mount a file system bpf, and for the switch log"),
    ("CAP_SYS_PTRACE", 19, "to take a process's descriptor"),
)


def missing_rights(kernel: LinuxKernel | None = None, proc: str = "/proc") -> tuple[str, ...]:
    """What this process lacks to trace, each in words; none: it lacks nothing. CAP_SYS_ADMIN stands for CAP_BPF and
    CAP_PERFMON. Raises OSError.
    """
    effective, _ = (kernel or LinuxKernel()).capget()
    has = {name for name, number, _ in NEEDED if effective >> number & 1}
    if "CAP_SYS_ADMIN" in has:
        has |= {"CAP_BPF", "CAP_PERFMON"}
    lacks = [f"{name} ({why})" for name, _, why in NEEDED if name not in has]
    if os.readlink(f"{proc}/self/ns/pid") != f"pid:[{HOST_PIDS}]":
        lacks.append("the host's pid namespace (the driver and the kernel tell its numbers)")
    return tuple(lacks)


def flat_path() -> str:
    """The file that the build makes for this machine."""
    return f"{nvc.__file__.rpartition('/')[0]}/tracer-{os.uname().machine}.bin"


class Tracer(Closable):
    """The pinned program's maps. Not for use by several threads."""

    def __init__(self, maps: dict[str, tracing.Map], links: list[int]) -> None:
        self._maps = maps
        self._links = links
        self._ring = tracing.Ring(maps["ring"], RECORD.size)
        self._leaving: set[int] = set()
        self._over: set[int] = set()  # processes that are over, of which objects may be in the table
        self._sweep_at = 0
        self.fd = maps["ring"].fd
        self.behind = False

    @staticmethod
    def open(directory: str, program: str = "") -> Tracer:
        """Take what is pinned below `directory` if it is this version's, else load and pin it.

        A file system bpf is mounted there if there is none. Objects and guards of another version are kept where
        their layout is the same. Raises TracerError.
        """
        path = program or flat_path()
        try:
            with open(path, "rb") as file:
                data = file.read()
            flat = tracing.parse(data)
        except OSError as error:
            raise TracerError.of("read tracer", path, error, "install nvc again") from None
        except ValueError as error:
            raise TracerError("read tracer", path, error, "install nvc again") from None
        lacks = missing_rights()
        if lacks:
            raise TracerError("check rights", "", f"missing: {', '.join(lacks)}")
        _have_bpffs(directory)
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise TracerError.of("open", directory, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _open_pinned(directory, flat, hashlib.sha256(data).hexdigest()[:16])
        except OSError as error:
            raise TracerError.of("load tracer", error.filename or directory, error, _hint(error)) from None
        finally:
            os.close(lock)

    def news(self) -> tuple[News, ...]:
        """What happened since the last call, in order, as much as the ring has room for: `behind` says that there
        was more. What does not change the table comes last, once with the number of times.

        EXITED is told once the last thread of the process is over. Its guard is then gone. Its clients go soon, but
        for those in which another process has made something. `leaving` says whether to ask again soon.
        """
        found: list[News] = []
        several: dict[bytes, int] = {}
        self.behind = True
        for _ in range(_TURN):
            records = self._ring.read()
            for each in records:
                if each[:4] in _UNORDERED:
                    several[each] = several.get(each, 0) + 1
                elif (one := parse_news(each)).kind == EXITED:
                    self._leaving.add(one.pid)
                else:
                    found.append(one)
            if len(records) < tracing.Ring.ROOM:
                self.behind = False
                break
        found += [parse_news(each)._replace(times=times) for each, times in several.items()]
        for pid in sorted(self._leaving):
            if is_over(pid):
                self._leaving.discard(pid)
                self._forget_process(pid)
                found.append(News(EXITED, pid, 0, 0))
        if self._over and time.monotonic_ns() >= self._sweep_at:
            self._sweep()
        return tuple(found)

    @property
    def leaving(self) -> bool:
        """Whether processes may be over, or objects be left of some that are: nothing wakes `fd` for that."""
        return bool(self._leaving or self._over)

    def objects(self) -> tuple[Object, ...]:
        """The whole table, without what is over; that is removed from it on the way, and so are guards."""
        for key, _ in self._maps["guards"].dump():
            if is_over(_PID.unpack(key)[0]):
                self._maps["guards"].remove(key)
        table = [parse_object(key, value) for key, value in self._maps["objects"].dump()]
        began = {pid: at for pid in {each.pid for each in table} if (at := began_at_most(pid)) is not None}
        alive = living(table, began)
        kept = {(each.client, each.handle) for each in alive}
        for each in table:
            if (each.client, each.handle) not in kept:
                self._drop(each)
        return alive

    def object(self, client: int, handle: int) -> Object | None:
        """One entry of the table, whether or not its process is over."""
        key = KEY.pack(client, handle)
        value = self._maps["objects"].get(key)
        return None if value is None else parse_object(key, value)

    def forget(self, client: int, handle: int) -> None:
        """Remove an entry of the table, or nothing."""
        known = self.object(client, handle)
        if known is not None:
            self._drop(known)

    def _drop(self, known: Object) -> None:
        """Remove an entry, unless its handle has been used anew since it was read."""
        now = self.object(known.client, known.handle)
        if now is None or now.serial != known.serial:
            return
        self._maps["objects"].remove(KEY.pack(known.client, known.handle))
        owner = _PID.pack(known.pid)
        had = self._maps["owners"].get(owner)
        if had is not None:
            self._maps["owners"].put(owner, _PID.pack(max(0, _PID.unpack(had)[0] - 1)))

    def _forget_process(self, pid: int) -> None:
        had = self._maps["owners"].get(_PID.pack(pid))
        for name in ("guards", "owners"):
            self._maps[name].remove(_PID.pack(pid))
        if had is not None:  # of most that a guarded process starts there are none
            self._over.add(pid)

    def _sweep(self) -> None:
        """Remove the objects of processes that are over."""
        began = time.thread_time_ns()
        over, self._over = self._over, set()
        table: dict[int, list[Object]] = {}
        for key, value in self._maps["objects"].dump():
            made = parse_object(key, value)
            table.setdefault(made.client, []).append(made)
        for objects in table.values():
            makers = {each.pid for each in objects}
            if makers & over and all(is_over(each) for each in makers):
                for each in objects:
                    self._drop(each)
        self._sweep_at = _SWEEP_PART * max(0, time.thread_time_ns() - began - _QUICK) + time.monotonic_ns()

    def guard(self, pid: int, on: bool, number: int = 0) -> None:
        """Have a process, and what it makes from now on, killed when it starts or stops channels; or no longer.

        `number` is of its slice, below 2^30: news that name channels have it. Raises OSError, E2BIG for no room.
        """
        if on:
            self._maps["guards"].put(_PID.pack(pid), _PID.pack(_GUARDED | number << _SLICE))
        else:
            self._maps["guards"].remove(_PID.pack(pid))

    def guard_spaces(self, spaces: Iterable[Space]) -> None:
        """Have processes in these pid namespaces killed likewise, from their first call on. Those of before go."""
        table = self._maps["spaces"]
        room = table.shape.entries
        numbers: dict[tuple[int, int], set[int]] = {}
        for one in spaces:
            numbers.setdefault((one.device, one.inode), set()).add(one.number)
        # Of a namespace that several slices share it is not known whose a process is.
        values = [
            _SPACE.pack(*place, _GUARDED | (min(found) if len(found) == 1 else 0) << _SLICE)
            for place, found in sorted(numbers.items())[:room]
        ]
        if len(values) < room:
            values.append(bytes(_SPACE.size))
        for index, value in enumerate(values):
            table.put(_PID.pack(index), value)

    def exempt(self, pid: int) -> None:
        """Tell nothing of what this process does to channels and timeslices; `guard(pid, False)` ends it."""
        self._maps["guards"].put(_PID.pack(pid), _PID.pack(_EXEMPT))

    def guarded(self) -> frozenset[int]:
        """All processes that are guarded; of those that a guarded one made, who has called the driver."""
        found = self._maps["guards"].dump()
        return frozenset(_PID.unpack(key)[0] for key, value in found if _PID.unpack(value)[0] & _GUARDED)

    @property
    def since(self) -> int:
        """When its programs began to see calls, ns of CLOCK_BOOTTIME: objects that are older are not known."""
        value = self._maps["settings"].get(_PID.pack(_SINCE))
        return 0 if value is None else int(_COUNT.unpack(value)[0])

    def _count(self, which: int) -> int:
        value = self._maps["counts"].get(_PID.pack(which))
        return 0 if value is None else int(_COUNT.unpack(value)[0])

    @property
    def lost(self) -> int:
        """How many events and guards found no room in all."""
        return self._count(_LOST_NEWS) + self._count(_LOST_GUARDS)

    @property
    def was_full(self) -> bool:
        """Whether an object ever found no room."""
        return self._count(_LOST_OBJECTS) > 0

    def close(self) -> None:
        """Let go of the descriptors. What is pinned goes on."""
        self._ring.close()
        for descriptor in (*self._links, *(each.fd for each in self._maps.values())):
            os.close(descriptor)


def _hint(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "run with CAP_BPF and CAP_PERFMON; a kernel in lockdown forbids it"
    if error.errno == errno.EROFS:
        return "give nvcd a directory that can be written"
    return ""


def _have_bpffs(directory: str) -> None:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if not tracing.is_bpffs(directory):
            tracing.mount_bpffs(directory)
    except OSError as error:
        hint = "a file system bpf is needed there: mount -t bpf bpf " + directory
        raise TracerError.of("mount file system bpf", directory, error, hint) from None


def _open_pinned(directory: str, flat: tracing.Flat, version: str) -> Tracer:
    """`directory` has maps-LAYOUT and links-VERSION; what is of others is removed."""
    maps_at, links_at = f"{directory}/maps-{_LAYOUT}", f"{directory}/links-{version}"
    maps: dict[str, tracing.Map] = {}
    opened: list[int] = []
    try:
        os.makedirs(maps_at, mode=0o700, exist_ok=True)
        for shape in flat.maps:
            try:
                made = tracing.Map(tracing.pinned(f"{maps_at}/{shape.name}"), shape)
                opened.append(made.fd)
            except FileNotFoundError:
                made = tracing.Map.create(shape)
                opened.append(made.fd)
                tracing.pin(made.fd, f"{maps_at}/{shape.name}")
            maps[shape.name] = made
        links = _links(links_at, flat, [maps[shape.name] for shape in flat.maps], opened)
        for name in os.listdir(directory):
            own = name in (os.path.basename(maps_at), os.path.basename(links_at))
            if name.startswith(("maps-", "links-")) and not own:
                _remove(f"{directory}/{name}")
        return Tracer(maps, links)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise


def _links(links_at: str, flat: tracing.Flat, maps: list[tracing.Map], opened: list[int]) -> list[int]:
    """Descriptors of all links, those that are pinned or new ones. Each is pinned once all are there."""
    try:
        found = []
        for program in flat.programs:
            found.append(tracing.pinned(f"{links_at}/{program.tracepoint}"))
            opened.append(found[-1])
        return found
    except FileNotFoundError:
        _remove(links_at)
    settings = next(each for each in maps if each.shape.name == "settings")
    settings.put(_PID.pack(_STATUS_AT), _COUNT.pack(status_at(os.uname().release)))
    links = []
    for program in flat.programs:
        with closing(tracing.load(program, flat.license, maps)) as loaded:
            links.append(tracing.attach(loaded, program.tracepoint))
            opened.append(links[-1])
    settings.put(_PID.pack(_SINCE), _COUNT.pack(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ahead("boottime")))
    os.mkdir(links_at, 0o700)
    for program, link in zip(flat.programs, links):
        tracing.pin(link, f"{links_at}/{program.tracepoint}")
    return links


def status_at(release: str) -> int:
    """Where thread_info of x86 has `status`: Linux 5.11 put `syscall_work` in front of it. Raises OSError."""
    try:
        major, minor = (int(word) for word in re.match(r"(\d+)\.(\d+)", release).groups())  # type: ignore[union-attr]
    except AttributeError:
        raise OSError(errno.EBADMSG, "names no version", release) from None
    return 16 if (major, minor) >= (5, 11) else 8


def _remove(directory: str) -> None:
    """A directory of pins, or a pin, or nothing."""
    try:
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.unlink(directory)

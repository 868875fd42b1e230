"""Facts about processes of others, whatever they do: nobody who looks can be held by them for long.

While a process calls execve(2) the kernel lets nobody read its `stat`, follow its `root`, or see its namespaces.
A tenant makes that last as long as it likes: a descriptor of a FUSE file is closed meanwhile, whose server does not
answer. `status`, `cgroup`, `mountinfo`, and calls on a pidfd do not wait. So namespaces come from a pidfd, where
the kernel has that. The rest is looked at by a child that is killed when PATIENCE is over. A process that held a
look is remembered: it is asked again seldom, and waited for only LEAST then.
"""

from __future__ import annotations

import errno
import fcntl
import posix
import time

from nvc._syscalls import ffi, lib
from nvc.base.files import closing
from nvc.base.types import Callable, Iterable, Iterator
from nvc.kernel import O_PATH, checked

#: Seconds that the first process which does not answer is waited for. The next one has half of it, and so on.
PATIENCE, LEAST = 1.0, 0.01
#: Seconds until such a process is asked again; twice as many each time, SELDOM at most.
AGAIN, SELDOM = 10.0, 640.0
_KNOWN_MAX = 1 << 14
_BATCH = 64
_STAT_MAX = 1024  # bytes
_START = 19  # field of `stat`, from the third on
BORROW = -1  # instead of flags of open(2): see `borrow`
_PIDFD_THREAD = 0o200  # pidfd_open(2) since Linux 6.9: also of a thread. Its inode number is never given again
#: PIDFD_GET_MNT_NAMESPACE and so on, calls of ioctl(2) since Linux 6.11.
_NAMESPACES = {"mnt": 0xFF03, "net": 0xFF04, "pid": 0xFF05, "user": 0xFF09}


def _asked(paths: list[str], flags: int, size: int, patience: float) -> list[bytes | int]:
    """Look at paths in a child: data, descriptors (`size` -1) or -errno; fewer if one took `patience` seconds.

    There are no descriptors then. With the flag BORROW the one that a path names is copied.
    """
    asks = ffi.new("struct nvc_look[]", len(paths))
    rooms = [ffi.new("char[]", size) for _ in paths] if size > 0 else []
    for number, (ask, path) in enumerate(zip(asks, paths)):
        ask.flags, ask.size = flags, size
        if flags == BORROW:
            _, _, pid, _, fd = path.split("/")
            ask.pid, ask.number = int(pid), int(fd)
        else:
            ask.path = path.encode()
        if rooms:
            ask.data = rooms[number]
    done = checked(lib.nvc_look(asks, len(paths), int(patience * 1000)), paths[0])
    return [
        bytes(ffi.buffer(ask.data, ask.result)) if size >= 0 and ask.result >= 0 else int(ask.result)
        for ask in asks[0:done]
    ]


class Looks:
    """Looks at /proc of others, and remembers who held one."""

    def __init__(
        self,
        ask: Callable[[list[str], int, int, float], list[bytes | int]] = _asked,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._clock = ask, clock
        #: By number and identity of a process: when it may be asked again, and how long it has been left alone.
        self._held: dict[tuple[str, int], tuple[float, float]] = {}

    def read(self, path: str, size: int) -> bytes:
        """The beginning of a file of a process. Raises OSError, ETIMEDOUT where the process holds it."""
        found = self.all([path], posix.O_RDONLY, size)[0]
        assert isinstance(found, bytes)
        return found

    def open(self, path: str, flags: int) -> int:
        """Open a file of a process, close-on-exec. Raises OSError, ETIMEDOUT where the process holds it."""
        found = self.all([path], flags, -1)[0]
        assert isinstance(found, int)
        return found

    def all(self, paths: list[str], flags: int, size: int = -1) -> list[bytes | int]:
        """Read or open (`size` -1) several files of one process. Raises OSError of the first that fails."""
        found = self.some(paths, flags, size)
        for one, path in zip(found, paths):
            if isinstance(one, int) and one < 0:
                for fd in found:
                    if size < 0 and isinstance(fd, int) and fd >= 0:
                        posix.close(fd)
                raise OSError(-one, posix.strerror(-one), path)
        return found

    def some(self, paths: list[str], flags: int, size: int = -1) -> list[bytes | int]:
        """Read or open several files of one process, -errno for each that fails. Raises OSError, ETIMEDOUT."""
        number = paths[0].split("/")[2] if paths[0].startswith("/proc/") else ""
        who = number, identity(int(number)) if number.isdigit() else 0
        again, pause = self._held.get(who, (0.0, AGAIN / 2))
        if self._clock() < again:
            raise _silent(paths[0])
        patience = LEAST if again else max(PATIENCE / 2 ** len(self._held), LEAST)
        found = self._ask(paths, flags, size, patience)
        if len(found) == len(paths):
            self._held.pop(who, None)
            return found
        pause = min(2 * pause, SELDOM)
        self._held = {each: times for each, times in self._held.items() if _is_same(*each)}
        self._held[who] = self._clock() + pause, pause
        raise _silent(paths[len(found)])


def _silent(path: str) -> OSError:
    cause = "no answer: a file system holds its execve(2). End that one's server, or its container"
    return OSError(errno.ETIMEDOUT, cause, path)


def _is_same(number: str, before: int) -> bool:
    try:
        return not number.isdigit() or identity(int(number)) == before
    except OSError:
        return False


looks = Looks()
_starts: dict[int, tuple[int, int]] = {}  # by number of a process: its identity, and when it began
_own_proc: list[bool] = []  # whether /proc counts as this process does, once that is known


def _counts_alike() -> bool:
    if not _own_proc:
        _own_proc.append(posix.readlink("/proc/self") == str(posix.getpid()))
    return _own_proc[0]


def _pidfd(pid: int) -> int:
    """A descriptor of the process or thread that /proc shows as `pid`; -1: there is none. Raises OSError."""
    if not _counts_alike():  # a hook in a container's pid namespace has the host's /proc
        return -1
    try:
        return posix.pidfd_open(pid, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise OSError(error.errno, error.strerror, f"/proc/{pid}") from None
        return -1  # before Linux 6.9


def identity(pid: int) -> int:
    """A number that no other process has until the next boot; 0: the kernel has none. Raises OSError."""
    fd = _pidfd(pid)
    if fd < 0:
        return 0
    with closing(fd):
        return posix.fstat(fd).st_ino


def stat(directory: str) -> list[bytes]:
    """The fields of `stat` in a /proc directory, from the third on: state, parent, ... Raises OSError."""
    # The name may have blanks and parentheses; what follows its last one does not.
    return looks.read(f"{directory}/stat", _STAT_MAX).rpartition(b")")[2].split()


def _number(directory: str) -> int:
    """The number of the process with this directory, where a pidfd tells of it; else 0."""
    name = directory.rpartition("/")[2]
    return int(name) if directory == f"/proc/{name}" and name.isdigit() and _counts_alike() else 0


def start_of(directory: str) -> int:
    """The start time of the process with this /proc directory, in clock ticks since boot. Raises OSError."""
    if directory == "/proc/self":  # the child that looks would take it for its own
        directory = f"/proc/{posix.readlink(directory)}"
    pid = _number(directory)
    who = identity(pid) if pid else 0
    known = _starts.get(pid)
    if who and known is not None and known[0] == who:
        return known[1]
    start = int(stat(directory)[_START])
    if who:
        if len(_starts) >= _KNOWN_MAX:
            _starts.clear()
        _starts[pid] = who, start
    return start


def has_ended(directory: str) -> bool:
    """Whether all threads of a process have ended, though its parent has not waited for it yet. Raises OSError."""
    pid = _number(directory)
    if not pid:
        fields = stat(directory)
        # One whose first thread has ended looks like one that nobody has waited for, but has more of them.
        return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    with closing(posix.pidfd_open(pid)) as fd:
        return has_ended_by(fd)


def has_ended_by(pidfd: int) -> bool:
    """Whether all threads of the process of a pidfd have ended. Raises OSError."""
    return bool(checked(lib.nvc_pidfd_ended(pidfd)))


def is_over(pid: int) -> bool:
    """Whether a process is gone, or a zombie without threads. Raises OSError."""
    try:
        return has_ended(f"/proc/{pid}")
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_namespace(pid: int, kind: str) -> int:
    """A descriptor of the namespace, such as "mnt", of a process or thread. Raises OSError."""
    fd = _pidfd(pid)
    if fd < 0:
        return looks.open(f"/proc/{pid}/ns/{kind}", posix.O_RDONLY)
    with closing(fd):
        return namespace_by(fd, pid, kind)


def namespace_by(pidfd: int, pid: int, kind: str) -> int:
    """A descriptor of such a namespace of the process of a pidfd, which /proc shows as `pid`. Raises OSError."""
    path = f"/proc/{pid}/ns/{kind}"
    try:
        return fcntl.ioctl(pidfd, _NAMESPACES[kind])
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL):
            raise OSError(error.errno, error.strerror, path) from None
    return looks.open(path, posix.O_RDONLY)


def namespace_number(pid: int, kind: str) -> int:
    """The number of such a namespace, as in `mnt:[4026531841]`. Raises OSError."""
    with closing(open_namespace(pid, kind)) as fd:
        return posix.fstat(fd).st_ino


def own_namespace(kind: str) -> int:
    """The number of this process's own. Raises OSError."""
    return posix.stat(f"/proc/self/ns/{kind}").st_ino


def read(pid: int, name: str, size: int) -> bytes:
    """The first `size` bytes of a file in a process's directory, such as `maps`. Raises OSError."""
    return looks.read(f"/proc/{pid}/{name}", size)


def program(pid: int) -> str:
    """The path of the program that a process executes. Raises OSError."""
    with closing(looks.open(f"/proc/{pid}/exe", O_PATH)) as fd:
        return posix.readlink(f"/proc/self/fd/{fd}")


def open_root(pid: int) -> int:
    """A descriptor (O_PATH) of a process's root directory. Raises OSError."""
    return looks.open(f"/proc/{pid}/root", O_PATH | posix.O_DIRECTORY)


def borrow(pid: int, number: int) -> int:
    """A copy of a process's descriptor (pidfd_getfd(2)). Raises OSError."""
    return looks.open(f"/proc/{pid}/fd/{number}", BORROW)


def open_files(paths: Iterable[str]) -> Iterator[list[int]]:
    """Descriptors (O_PATH) of what a process has open, by paths as /proc/7/fd/3; -errno for each that failed.

    They come some at a time, and are the caller's to close. Raises OSError.
    """
    rest = iter(paths)
    while some := [path for _, path in zip(range(_BATCH), rest)]:
        yield [found for found in looks.some(some, O_PATH) if isinstance(found, int)]

"""Measures what processes take from each other's time on a device: by a context that is made, and by a change.

One process keeps the device busy with short kernels, and an event behind each. Where the time from one event to the
next is longer than usual, the device worked for another process, or changed to it and back. Meanwhile the other
process makes contexts, and then launches kernels of hardly any length.

Both have no rights and are chrooted to the driver root. Processes of slices have no part in it: they could lie.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time

from nvc.slices.build.calibration import CalibrationError
from nvc.slices.build.confine import fork_nobody
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.slices.build.calibrate import Libraries

MS = 1_000_000
#: A loop that no compiler can shorten, as in nvc-spin. A simulated GPU takes a round for a nanosecond.
SPIN = (
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
    b".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
    b"ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\nL:\nst.volatile.shared.u32 [s], %x;\n"
    b"ld.volatile.shared.u32 %x, [s];\nadd.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n"
)
KERNEL = 100_000  # nanoseconds, about
AHEAD = 400  # kernels in the queue, for as long as this process may be late
WARM, QUIET = 0.3, 0.1  # seconds: until clocks are up, and in which nobody else is to be seen
PAUSE = 20_000  # nanoseconds by which a kernel takes longer if the device was somebody else's
CONTEXTS = 3
PINGS, REST = 40, 0.003  # kernels of the other one, and seconds between them: more than a time slice
MORE = 10  # such a part is added to what a context takes: a process also begins and ends
AGREE = 1.5  # so much may two measurements differ
PATIENCE = 60  # seconds
#: Nanoseconds that are believed; the rest is a device in use, or one that does not take turns.
MAKING, LASTS, CHANGE = (MS // 2, 50 * MS), (5 * MS, 5000 * MS), (5000, 2 * MS)


def failed(cause: str) -> CalibrationError:
    """Why there is no figure."""
    return CalibrationError("measure what others lose", "", cause)


class Times(Value):
    """Nanoseconds, as in calibration.Measurement."""

    making: int
    lasts: int
    change: int


class Seen(Value):
    """What the busy process saw in some time: pauses, in nanoseconds."""

    lasted: int
    paused: int  # in all
    count: int
    typical: int  # the median of the pauses


def measure_times(libraries: Libraries, uuid: str) -> Times:
    """What a context and a change cost on the device with this UUID. Raises CalibrationError, OSError."""
    with Helper(libraries, uuid, _work) as busy, Helper(libraries, uuid, _disturb) as other:
        busy.begin()
        time.sleep(WARM)
        busy.end()
        _is_alone(busy)
        made = sorted(_context(busy, other) for _ in range(CONTEXTS))
        other.ask(b"open")
        busy.begin()
        other.ask(b"ping")
        pings = busy.end()
        _is_alone(busy)
    if made[-1][0] > made[0][0] * AGREE:
        raise failed(f"one context took {made[0][0]} ns of others' time, and one {made[-1][0]} ns")
    if not PINGS // 2 <= pings.count <= 2 * PINGS:
        raise failed(f"{PINGS} kernels of another process were seen {pings.count} times")
    making, lasts = made[CONTEXTS // 2]
    found = Times(making + making // MORE, lasts, pings.typical // 2)
    _believed("a context", found.making, MAKING)
    _believed("making one", found.lasts, LASTS)
    _believed("a change", found.change, CHANGE)
    return found


def _believed(what: str, figure: int, most: tuple[int, int]) -> None:
    if not most[0] <= figure <= most[1]:
        raise failed(f"{what} would take {figure} ns, which is not from {most[0]} to {most[1]}")


def _is_alone(busy: Helper) -> None:
    busy.begin()
    time.sleep(QUIET)
    quiet = busy.end()
    if quiet.paused * 100 > quiet.lasted:
        raise failed("the device is in use, or its clock changes")


def _context(busy: Helper, other: Helper) -> tuple[int, int]:
    """What one context takes from the busy process, and how long making it lasts."""
    busy.begin()
    lasted = int(other.ask(b"make"))
    return busy.end().paused, lasted


class Helper:
    """A process without rights that does as it is told, a line at a time."""

    def __init__(self, libraries: Libraries, uuid: str, work: Callable[[Cuda, int, int], None]) -> None:
        ask, self._ask = os.pipe2(os.O_CLOEXEC)
        self._reply, reply = os.pipe2(os.O_CLOEXEC)
        close = self._ask, self._reply
        self.pid = fork_nobody(lambda: _serve(libraries, uuid, work, ask, reply), libraries.root, *close)
        os.close(ask)
        os.close(reply)

    def __enter__(self) -> Helper:
        try:
            self.hear()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._ask)
        os.close(self._reply)

    def ask(self, word: bytes) -> str:
        """Tell it what to do, and wait until it is done. Raises CalibrationError, OSError."""
        os.write(self._ask, word.ljust(4))
        return self.hear()

    def hear(self) -> str:
        """What it says next. Raises CalibrationError, OSError."""
        if not select.select([self._reply], [], [], PATIENCE)[0]:
            raise failed("the driver does not answer")
        answer = os.read(self._reply, 256).decode("utf-8", "replace")
        kind, _, said = answer.partition(" ")
        if kind != "ok":
            raise failed(said or "the process that measures has ended")
        return said

    def begin(self) -> None:
        """Keep the device busy."""
        self.ask(b"busy")

    def end(self) -> Seen:
        """No longer. What it saw."""
        return Seen(*map(int, self.ask(b"stop").split()))


# In the processes without rights, where nothing is imported.


class Cuda:
    """The driver, a context that is current if there is one, and the kernel in it."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.handle, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.handle), 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises CalibrationError."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise failed(f"{name}: CUDA error {code}")

    def make(self) -> None:
        """Make a context."""
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.handle)

    def open(self) -> None:
        """Make a context, and load the kernel into it."""
        self.make()
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), self.module, b"sim_spin_for")

    def launch(self, rounds: int) -> None:
        """Launch a kernel of so many rounds of its loop."""
        value = ctypes.c_uint64(rounds)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call("cuLaunchKernel", self.kernel, 1, 1, 1, 32, 1, 1, 0, None, values, None)

    def event(self) -> ctypes.c_void_p:
        """Make an event."""
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def record(self, event: ctypes.c_void_p) -> None:
        """Have the device note the time when it comes there."""
        self.call("cuEventRecord", event, None)

    def between(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> int:
        """Wait for the second event, and return the nanoseconds since the first one."""
        found = ctypes.c_float()
        self.call("cuEventSynchronize", second)
        self.call("cuEventElapsedTime", ctypes.byref(found), first, second)
        return int(found.value * 1e6)


def _serve(
    libraries: Libraries, uuid: str, work: Callable[[Cuda, int, int], None], ask: int, reply: int
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    os.putenv("CUDA_VISIBLE_DEVICES", uuid)
    try:
        work(Cuda(libraries.cuda), ask, reply)
    except CalibrationError as error:
        os.write(reply, f"no {error.cause}".encode()[:256])
    except OSError as error:
        os.write(reply, f"no {error}".encode()[:256])


def _work(cuda: Cuda, ask: int, reply: int) -> None:
    cuda.open()
    events = [cuda.event() for _ in range(AHEAD + 2)]
    rounds = _rounds(cuda)
    os.write(reply, b"ok ")
    while os.read(ask, 4):
        times = _kernels(cuda, events, rounds, ask, reply)
        typical = sorted(times)[len(times) // 2]
        pauses = sorted(one - typical for one in times if one > typical + PAUSE)
        middle = pauses[len(pauses) // 2] if pauses else 0
        os.write(reply, f"ok {sum(times)} {sum(pauses)} {len(pauses)} {middle}".encode())


def _rounds(cuda: Cuda) -> int:
    """The number of rounds with which the kernel takes KERNEL nanoseconds."""
    first, second, rounds = cuda.event(), cuda.event(), KERNEL // 10
    for _ in range(3):  # the first ones run while the clock goes up
        cuda.record(first)
        cuda.launch(rounds)
        cuda.record(second)
        rounds = max(1, rounds * KERNEL // max(1, cuda.between(first, second)))
    return rounds


def _kernels(cuda: Cuda, events: list[ctypes.c_void_p], rounds: int, ask: int, reply: int) -> list[int]:
    """Nanoseconds that each took, until this process is told to stop."""
    times: list[int] = []
    count = 0
    cuda.record(events[0])
    while True:
        count += 1
        if count > AHEAD:
            last = count - AHEAD
            times.append(cuda.between(events[(last - 1) % len(events)], events[last % len(events)]))
        if count == AHEAD:
            os.write(reply, b"ok ")
        elif count > AHEAD and count % 8 == 0 and select.select([ask], [], [], 0)[0]:
            break
        cuda.launch(rounds)
        cuda.record(events[count % len(events)])
    os.read(ask, 4)
    for last in range(count - AHEAD + 1, count):
        times.append(cuda.between(events[(last - 1) % len(events)], events[last % len(events)]))
    return times


def _disturb(cuda: Cuda, ask: int, reply: int) -> None:
    os.write(reply, b"ok ")
    while True:
        word, said = os.read(ask, 4), 0
        if word == b"make":
            began = time.monotonic_ns()
            cuda.make()
            said = time.monotonic_ns() - began
            cuda.call("cuDevicePrimaryCtxRelease_v2", cuda.handle)
        elif word == b"open":
            cuda.open()
        elif word == b"ping":
            for _ in range(PINGS):
                cuda.launch(1)
                cuda.call("cuCtxSynchronize")
                time.sleep(REST)
        else:
            return
        os.write(reply, f"ok {said}".encode())

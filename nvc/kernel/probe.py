"""Starts the NVML probe, and collects its one answer; knows nothing of its meaning.

The probe is started first and asked last, so that files are found while NVML starts.
"""

from __future__ import annotations

import os
import select
import time

from nvc._syscalls import ffi, lib
from nvc.base.errors import InitializationError
from nvc.base.files import Closable
from nvc.base.types import Any, Callable, NoReturn

#: The largest answer that is read, bytes. A full one, 64 GPUs with 16 MIG devices each, has 131 KiB.
ANSWER_LIMIT = 1 << 20
#: Address space of the probe, bytes. NVML needs some hundred MiB on a host with many GPUs.
MEMORY_LIMIT = 4 << 30

_SIGKILL, _ANSWER = 9, 3
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 24: "SIGXCPU"}

IDS_KEEP: int = lib.NVC_PROBE_IDS_KEEP
IDS_CHANGE: int = lib.NVC_PROBE_IDS_CHANGE
IDS_TRY: int = lib.NVC_PROBE_IDS_TRY

_unreaped: list[int] = []


class Probe(Closable):
    """A running probe. `close` must be called; it never waits for long, however the driver behaves."""

    __slots__ = ("pid", "fd", "pidfd", "timeout", "deadline")

    def __init__(self, pid: int, fd: int, pidfd: int, timeout: float) -> None:
        self.pid = pid
        self.fd = fd
        self.pidfd = pidfd
        self.timeout = timeout  # seconds
        self.deadline = time.monotonic() + timeout

    def result(self) -> bytes:
        """The whole answer. Raises InitializationError when there is none: a hang, a crash, or too much."""
        parts: list[bytes] = []
        size = 0
        poller = select.poll()
        for fd in (self.fd, self.pidfd):
            poller.register(fd, select.POLLIN)
        os.set_blocking(self.fd, False)
        while True:
            ready = poller.poll(max(0, int((self.deadline - time.monotonic()) * 1000)))
            if not ready:
                self._kill()
                raise InitializationError(
                    "driver rpc error", "", "timed out",
                    f"NVML did not answer within {self.timeout:g} s: start nvidia-persistenced, "
                    "which keeps the driver initialised, and look for Xid errors in the kernel log",
                )  # fmt: skip
            try:
                part = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                if all(fd != self.pidfd for fd, _ in ready):
                    continue
                break  # all that the probe wrote is read; another process may still hold the stream open
            except ConnectionResetError:
                break
            except OSError as error:
                raise InitializationError.of("driver rpc error", "", error, _FOREIGN) from None
            if not part:
                break
            size += len(part)
            if size > ANSWER_LIMIT:
                self._kill()
                raise InitializationError(
                    "driver rpc error", "", f"answer larger than {ANSWER_LIMIT} bytes", _FOREIGN
                )
            parts.append(part)
        if not parts:
            self._explain_silence()
        return b"".join(parts)

    def _explain_silence(self) -> None:
        """Raises the error for a probe that closed its stream without a byte."""
        status = self._reap(1000)
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = _SIGNALS.get(number, f"signal {number}")
            raise InitializationError("driver rpc error", "", f"probe terminated by {name}", _FOREIGN)
        cause = "no answer"
        if status is not None:
            cause = f"probe exited with status {os.waitstatus_to_exitcode(status)} and no answer"
        raise InitializationError("driver rpc error", "", cause, _FOREIGN)

    def _kill(self) -> None:
        if self.pid:
            lib.nvc_pidfd_send_signal(self.pidfd, _SIGKILL)

    def _reap(self, timeout_ms: int) -> int | None:
        """The wait status once the probe has ended, or None: still ending, or reaped by someone else."""
        if not self.pid:
            return None
        if not _ends(self.pidfd, timeout_ms):
            return None
        pid, self.pid = self.pid, 0
        try:
            return os.waitpid(pid, 0)[1]
        except ChildProcessError:
            return None

    def close(self) -> None:
        """Ends the probe; reaps it if that can be done at once.

        A probe that answered is in its exit, where the kernel closes the driver's files: 20 ms on an H100, and
        without persistence mode, when the GPU is shut down too, a second and more. No container start waits for
        that: the probe is killed, lest it do anything else, and left to a later call or to who inherits it.
        """
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self._kill()
        if self.pid and self._reap(0) is None and self.pid:
            _unreaped.append(self.pid)
        os.close(self.pidfd)


def _ends(pidfd: int, timeout_ms: int) -> bool:
    """Whether the process of a pidfd has ended by then. Handlers of signals run meanwhile, and may raise."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(timeout_ms))


_LIMITS = "check dmesg, and limits such as TasksMax= and MemoryMax="
_FOREIGN = "libnvidia-ml.so.1 of the driver root does not behave like NVML: reinstall the driver"


def start_probe(
    root: int,
    ids: int,
    uid: int,
    gid: int,
    answer: Callable[[str, int], bytes],
    timeout: float,
    limits: bool = False,
) -> Probe:
    """Forks the probe into the directory `root` (-1: it stays in the caller's root).

    `ids` says whether it takes `uid` and `gid` (IDS_*); seconds. `answer` runs in it, and is given what has failed
    of giving up its rights, and an errno, or "". It must not import anything: after chroot that would be a file of
    the driver root. With `limits` the probe keeps what NVML asks for to set them.
    Raises InitializationError when it cannot be started.
    """
    _reap_ended()
    options = ffi.new("struct nvc_probe_options *", {
        "root": root, "ids": ids, "uid": uid, "gid": gid, "memory": MEMORY_LIMIT, "cpu": int(timeout) + 5,
        "limits": limits,
    })  # fmt: skip
    parent, (stream, theirs) = os.getpid(), os.pipe()
    pid = pidfd = -1
    lib.nvc_probe_signals(1)
    try:
        pid = os.fork()
        if pid == 0:
            _run(options, theirs, parent, answer)
        pidfd = os.pidfd_open(pid)  # not yet reaped, so surely ours
    except OSError as error:
        os.close(stream)
        if pid > 0:
            os.kill(pid, _SIGKILL)
        raise InitializationError.of("start the driver probe", "", error, _LIMITS) from None
    finally:
        os.close(theirs)
        lib.nvc_probe_signals(0)
    return Probe(pid, stream, pidfd, timeout)


def _run(options: Any, stream: int, parent: int, answer: Callable[[str, int], bytes]) -> NoReturn:
    """The probe. Its stream is closed before the exit, which may last: the last user of a GPU shuts it down."""
    try:
        step = ffi.new("const char **")
        failed = lib.nvc_probe_confine(options, stream, parent, step)
        data = answer(ffi.string(step[0]).decode() if failed else "", failed)
        while data:
            data = data[os.write(_ANSWER, data) :]
        os.close(_ANSWER)
        os._exit(0)  # no destructor of NVML runs
    finally:
        os._exit(1)


def reap(timeout: float) -> None:
    """Reap the probes that were closed, after waiting up to `timeout` seconds for them to end.

    For a process that is about to end itself: a zombie that it leaves behind is announced to whoever inherits it,
    with the signal that should announce the process's own end. crun 1.8 then waits for a hook's whole timeout.
    """
    deadline = time.monotonic() + timeout
    for pid in _unreaped:
        pidfd = lib.nvc_pidfd_open(pid)
        if pidfd >= 0:
            _ends(pidfd, max(0, int((deadline - time.monotonic()) * 1000)))
            os.close(pidfd)
    _reap_ended()


def _reap_ended() -> None:
    """Reaps the probes that were still ending when they were closed."""
    for pid in _unreaped[:]:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass
        _unreaped.remove(pid)

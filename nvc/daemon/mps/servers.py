"""MPS servers: a control daemon for each slice that is isolated by MPS, and one that slices of a GPU share.

The control daemon is the driver's nvidia-cuda-mps-control, which takes its settings from its environment and by
commands; limits that are set before its first server hold for every client. Its directory is to be bound into the
container at /tmp/nvidia-mps, where CUDA looks when no variable names another place, so that it needs none. Control
daemons outlive nvcd, which finds them again when it is started.

The key of the shared one is `shared`; mps_shared.py starts and watches those.

    /run/nvc/mps/<key>/<UUID>/about   mps_records.py
    /run/nvc/mps/<key>/<UUID>/pipe    CUDA_MPS_PIPE_DIRECTORY
    /run/nvc/mps/<key>/<UUID>/log     control.log: what a control daemon in the foreground and its servers print;
                                      each question is five lines of it, so it is emptied where it has grown
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

from nvc.base.errors import DeviceError, one_line
from nvc.base.files import lines_of
from nvc.base.rundir import runtime_directory
from nvc.daemon.io.helper import fork
from nvc.daemon.io.identity import signal_process
from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.mps import records as mps_records
from nvc.daemon.mps.answers import LOG_MAX, is_number, is_size, last_line, size_of
from nvc.daemon.mps.records import GONE, MIB, STARTING, MpsServer
from nvc.kernel import Kernel
from nvc.kernel.processes import start_of
from nvc.slices.client.mps import CONTROL, STEP
from nvc.slices.make.confine import die_with
from nvc.slices.store.process_info import is_here

EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = 1, 2, 3  # nvmlComputeMode_t
READY, FAILED = "ready", "failed"
UNKNOWN = "unknown"  # what an nvcd before this one has started: its record cannot be read
DEADLINE = 10 * SECOND
RETRY = SECOND // 20
REMEMBERED = 3 * SECOND  # so long who asked can hear why it failed
REPLY_MAX = 4096
NO_ROOM = "see who fills it: `du -s --inodes /run/nvc/mps/*`, `du -s /run/nvc/mps/*`"


class Servers:
    """All control daemons that this nvcd has started."""

    def __init__(
        self, loop: Loop, kernel: Kernel, log: Callable[[str], None], whose: Callable[[str], str]
    ) -> None:  # fmt: skip
        """`whose` names the slice with a key."""
        self.loop = loop
        self.kernel = kernel
        self.log, self.whose = log, whose
        self._ending: set[int] = set()  # told to end, or soon through with their work, and not reaped
        self._removed = 0
        self._said = False
        self.servers: dict[tuple[str, str], MpsServer] = {}
        self.problem = ""  # why it is not known which servers there are
        self.binary = ""  # inside `root`
        self.root = "/"

    def start(self, key: str, uuid: str, percent: int, memory: int, mode: int, now: int) -> MpsServer:
        """Start one, or tell about the one that was started. Raises DeviceError where that cannot be."""
        found = self.servers.get((key, uuid))
        if found is not None and (found.state != FAILED or now - found.since < REMEMBERED):
            return found
        if not 1 <= percent <= 100 or memory < 0 or 0 < memory < MIB:
            raise DeviceError(STEP, uuid, f"{percent} % and {memory} bytes", "want 1 to 100 %")
        if uuid.startswith("MIG-"):
            raise DeviceError(STEP, uuid, "a MIG device is isolated already", "leave --isolation out")
        if not self.binary:
            raise DeviceError(STEP, uuid, f"the driver has no {CONTROL}", "install it; or no isolation")
        self._refuse_unknown(uuid)
        if mode in (PROHIBITED, EXCLUSIVE_THREAD):
            hint = "`nvidia-smi -c DEFAULT` allows several servers, `-c EXCLUSIVE_PROCESS` one"
            raise DeviceError(STEP, uuid, "its compute mode forbids it", hint)
        others = [one for one in self.servers.values() if one.uuid == uuid and one.state != FAILED]
        if mode == EXCLUSIVE_PROCESS and others:
            hint = "the compute mode is EXCLUSIVE_PROCESS: `nvidia-smi -c DEFAULT` allows several"
            raise DeviceError(STEP, uuid, f"{self.whose(others[0].key)} has its one MPS server", hint)
        self._say_where()
        directory = f"{_base()}/{key}/{uuid}"
        found = MpsServer(key, uuid, percent, memory, directory, now)
        if found.shared:
            mps_records.empty(f"{directory}/pipe")
        else:
            self._remove(directory)
        try:
            self._begin(found)
        except OSError as error:  # a container may have filled its directory
            if found.pid:
                os.kill(found.pid, signal.SIGTERM)  # our child, not reaped
                self._ending.add(found.pid)
            if not found.shared:  # its directory may be mounted in containers that run
                self._clear(found)
            raise DeviceError.of(STEP, directory, error, NO_ROOM) from None
        self.servers[key, uuid] = found
        return found

    def _refuse_unknown(self, uuid: str) -> None:
        """Raise DeviceError where it is not known which servers a device has."""
        if self.problem:
            raise DeviceError(STEP, _base(), self.problem, "fix that, then `systemctl restart nvcd`")
        for one in self.servers.values():
            if one.uuid == uuid and one.state == UNKNOWN:
                hint = f"stop the container of {self.whose(one.key)}, then try again"
                raise DeviceError(STEP, f"{one.directory}/about", one.problem, hint)

    def _say_where(self) -> None:
        """Once, where what a container can fill is what others need."""
        base = _base()
        if not self._said and os.stat(base).st_dev == os.stat(os.path.dirname(base)).st_dev:
            self._said = True
            self.log(f"{base} has no file system of its own: a container with MPS can fill the host's /run")

    def _begin(self, one: MpsServer) -> None:
        for name in ("pipe", "log"):
            os.makedirs(f"{one.directory}/{name}", mode=0o755, exist_ok=one.shared)
        said = os.open(one.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        try:
            one.pid = self._execute(one, one.options(), -1, said, go_read)
            one.start = start_of(f"/proc/{one.pid}")
            mps_records.write(one)
            os.write(go_write, b"\n")
        finally:
            os.close(said)
            os.close(go_read)
            os.close(go_write)
        self._instruct(one)

    def adopt(self, now: int) -> None:
        """Find again what an nvcd before this one has started, and remove what it did not."""
        try:
            places, gone = mps_records.directories(_base())
        except OSError as error:
            self.problem = f"MPS servers of an nvcd before this one are not known: {error.strerror}"
            self.log(f"{error.filename}: {self.problem}")
            return
        for path in gone:
            self._remove(path)
        for key, uuid in places:
            self._adopt(key, uuid, now)

    def _adopt(self, key: str, uuid: str, now: int) -> None:
        directory = f"{_base()}/{key}/{uuid}"
        try:
            found = mps_records.read(directory)
            lives = found is not None and is_here(*found[:2])
        except (OSError, ValueError) as error:
            one = self.servers[key, uuid] = MpsServer(key, uuid, 0, 0, directory, now)
            one.state = UNKNOWN
            unknown = f"which MPS server {self.whose(key)} has is not known"
            one.problem = f"cannot be read, so {unknown}: {one_line(error)}"
            self.log(f"{directory}/about: {one.problem}")
            return
        if found is not None and lives:
            pid, start, percent, memory = found
            self.servers[key, uuid] = MpsServer(key, uuid, percent, memory, directory, now, pid, start, READY)

    def stop(self, key: str) -> int:
        """End those of a slice; how many there were."""
        ended = [one for one in self.servers.values() if one.key == key]
        for one in ended:
            self.stop_one(one)
        return len(ended)

    def stop_one(self, one: MpsServer) -> None:
        """End one for good."""
        self.drop(one)
        self._clear(one)

    def hush(self, one: MpsServer) -> None:
        """End the program that waits for an answer; who has asked is then handed what there is of it."""
        if one.client:
            os.kill(one.client, signal.SIGKILL)  # our child, not reaped

    def drop(self, one: MpsServer, number: int = signal.SIGTERM) -> None:
        """End one, whose directory stays."""
        del self.servers[one.key, one.uuid]
        if one.client:
            os.kill(one.client, signal.SIGKILL)  # our child, not reaped
        self._end(one, number)

    def _clear(self, one: MpsServer) -> None:
        """Remove what there is of its directory, and that of its slice after the last one."""
        self._remove(one.directory)
        try:
            os.rmdir(f"{_base()}/{one.key}")
        except OSError:
            pass

    def _remove(self, directory: str) -> None:
        """By a process of its own: what a container has made there may be files by the hundred thousand."""
        self._removed += 1
        gone = f"{_base()}/{GONE}{os.getpid()}-{self._removed}"
        try:
            os.rename(directory, gone)
        except OSError:
            return  # there is none
        try:
            pid = fork()
        except OSError:
            return  # the next nvcd removes it
        if pid:
            self._ending.add(pid)
            return
        try:
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os._exit(0)

    def _end(self, one: MpsServer, number: int = signal.SIGTERM) -> None:
        try:
            if one.pid and signal_process(self.kernel, one.pid, one.start, number):
                if not _is_reaped(one.pid):
                    self._ending.add(one.pid)  # it ends its servers first
        except OSError as error:
            self.log(f"{self._name(one)}: process {one.pid} goes on: {error.strerror}")
        one.pid = 0

    def look(self, living: set[str], now: int) -> None:
        """Each second: those of slices that are gone end, those that ended by themselves are said."""
        self._ending = {pid for pid in self._ending if not _is_reaped(pid)}
        for one in tuple(self.servers.values()):
            over = one.state in (READY, UNKNOWN) or (one.state == FAILED and now - one.since > REMEMBERED)
            if over and one.key not in living and not one.shared:
                self.stop(one.key)
            elif one.pid and not _lives(one):
                one.pid = 0
                self._fail(one, "the control daemon has ended", now)
            elif one.pid and size_of(one.log) > LOG_MAX:
                os.truncate(one.log, 0)
                one.seen = 0

    def _name(self, one: MpsServer) -> str:
        """Whose it is, for the log."""
        return f"MPS of {one.uuid}" if one.shared else f"MPS of {self.whose(one.key)} on {one.uuid}"

    def _fail(self, one: MpsServer, problem: str, now: int) -> None:
        """Nobody is to use it."""
        last = last_line(one.log)  # it goes with the slice
        one.problem = f"{problem}; its log ends with: {last}" if last else problem
        one.state, one.since = FAILED, now
        self._end(one)
        self.log(f"{self._name(one)}: {one.problem}")

    def _instruct(self, one: MpsServer) -> None:
        def done(text: str, now: int) -> None:
            if one.state == STARTING:
                self._answered(one, text, now)

        self.ask(one, one.commands(), done)

    def ask(self, one: MpsServer, commands: bytes, done: Callable[[str, int], None]) -> None:
        """Send commands through the driver's own program; `done` is handed the answer, later. Raises OSError.

        It is not called for a server that was ended meanwhile.
        """
        ask_read, ask_write = os.pipe2(os.O_CLOEXEC)
        try:
            reply_read, reply_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.set_blocking(reply_write, True)
                one.client = self._execute(one, (), ask_read, reply_write)
            except OSError:
                os.close(reply_read)
                raise
            finally:
                os.close(reply_write)
        except OSError:
            os.close(ask_write)
            raise
        finally:
            os.close(ask_read)
        try:
            os.write(ask_write, commands)  # less than a pipe holds
        except BrokenPipeError:
            pass  # it has ended: that is its answer
        finally:
            os.close(ask_write)
        answer = bytearray()

        def ready(now: int) -> None:
            try:
                data = os.read(reply_read, REPLY_MAX)
            except BlockingIOError:
                return
            answer.extend(data)
            if data and len(answer) < REPLY_MAX:
                return
            self.loop.remove(reply_read)
            os.close(reply_read)
            if one.client:
                os.kill(one.client, signal.SIGKILL)
                os.waitpid(one.client, 0)
                one.client = 0
            if self.servers.get((one.key, one.uuid)) is one:
                done(bytes(answer).decode("ascii", "replace"), now)

        self.loop.add(reply_read, ready)

    def _answered(self, one: MpsServer, text: str, now: int) -> None:
        """Whether the limits are those that were asked for; if it did not listen yet, ask again."""
        numbers = [line.strip() for line in lines_of(text) if line.strip()]
        wanted = 2 if one.memory else 1
        if len(numbers) >= wanted and is_number(numbers[-wanted], one.percent):
            if one.memory and not is_size(numbers[-1], one.memory):
                self._fail(one, f"took another limit of memory: {one_line(numbers[-1])}", now)
            else:
                one.state = READY
        elif now - one.since > DEADLINE:
            self._fail(one, f"does not take commands: {one_line(text)}", now)
        else:
            self.loop.once(now + RETRY, lambda now: self._again(one, now))

    def _again(self, one: MpsServer, now: int) -> None:
        if self.servers.get((one.key, one.uuid)) is one and one.state == STARTING and one.pid:
            try:
                self._instruct(one)
            except OSError as error:
                self._fail(one, f"its limits cannot be set: {error.strerror}", now)

    def _execute(self, one: MpsServer, words: tuple[str, ...], stdin: int, stdout: int, go: int = -1) -> int:
        """Run the driver's program in the driver root, once a byte comes from `go`; its process is returned."""
        parent = os.getpid()
        pid = fork()
        if pid:
            return pid
        try:
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(stdin if stdin >= 0 else null, 0)
            os.dup2(stdout if stdout >= 0 else null, 1)
            os.dup2(stdout if go >= 0 else null, 2)
            if go >= 0:
                os.dup2(go, 3)
            os.closerange(4 if go >= 0 else 3, os.sysconf("SC_OPEN_MAX"))
            if go >= 0 and os.read(3, 1) != b"\n":
                return 0  # nvcd has ended: nobody would find this one again
            os.closerange(3, 4)
            if self.root != "/":
                os.chroot(self.root)
            os.chdir("/")
            if stdin >= 0:
                die_with(parent)
            os.execve(self.binary, [self.binary, *words], one.environment())
        finally:
            os._exit(127)


def _base() -> str:
    path = runtime_directory("mps")
    os.chmod(path, 0o711)
    return path


def _is_reaped(pid: int) -> bool:
    """Whether the process is no child of ours any more, or never was: it may be of an nvcd before this one."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _lives(one: MpsServer) -> bool:
    try:
        if os.waitpid(one.pid, os.WNOHANG)[0]:
            return False
    except ChildProcessError:
        pass  # of an nvcd before this one
    return is_here(one.pid, one.start)

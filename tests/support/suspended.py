"""A program in a slice that is suspended and resumed: it keeps a number in GPU memory, and tells it when asked."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from . import CLEAN_ENV, run
from .dialog import Dialog
from .nvcd import Place
from .nvcd_programs import METRICS, started
from .rootfs import LIBS

HOLDER = """
import ctypes, os, sys, threading
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
kind, size = sys.argv[1], int(sys.argv[2]) << 20
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
if kind == "managed":
    codes.append(cuda.cuMemAllocManaged(ctypes.byref(memory), ctypes.c_size_t(size), 1))
else:
    codes.append(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
last = ctypes.c_uint64(memory.value + size - 4)
codes.append(cuda.cuMemcpyHtoD_v2(last, ctypes.byref(ctypes.c_uint32(4711)), ctypes.c_size_t(4)))
event, stream, ms, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float(), ctypes.c_size_t()
codes += [cuda.cuStreamCreate(ctypes.byref(stream), 1), cuda.cuEventCreate(ctypes.byref(event), 0)]
codes += [cuda.cuEventRecord(event, stream), cuda.cuStreamSynchronize(stream)]
asked = [(cuda.cuEventQuery, event), (cuda.cuEventSynchronize, event), (cuda.cuStreamQuery, stream),
         (cuda.cuEventElapsedTime, ctypes.byref(ms), event, event), (cuda.cuStreamSynchronize, stream),
         (cuda.cuMemGetInfo_v2, ctypes.byref(size), ctypes.byref(size))]
go = threading.Event()
def ask(function, *words):
    cuda.cuCtxSetCurrent(context)  # which would wait
    go.wait()
    sys.stdout.write(f"{function.__name__} {function(*words)}\\n")
    sys.stdout.flush()
for words in asked:
    threading.Thread(target=ask, args=words, daemon=True).start()
print(os.getpid(), *codes, flush=True)
for line in sys.stdin:
    if line.startswith("ask"):
        go.set()
        continue
    if line.startswith("spin"):
        module, kernel, time = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(int(line.split()[1]) * 10**6)
        print(cuda.cuModuleLoadData(ctypes.byref(module), b".visible .entry sim_spin_for(.param .u64 x)\\n{ret;}"),
              cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"sim_spin_for"),
              cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream,
                                  (ctypes.c_void_p * 1)(ctypes.addressof(time)), None), flush=True)
        continue
    if line.startswith("more"):
        found, size = ctypes.c_uint64(), int(line.split()[1]) << 20
        print(cuda.cuMemAlloc_v2(ctypes.byref(found), ctypes.c_size_t(size)), flush=True)
        continue
    found = ctypes.c_uint32()
    code = cuda.cuMemcpyDtoH_v2(ctypes.byref(found), last, ctypes.c_size_t(4))
    print(code, found.value, flush=True)
"""


#: What comes before it in a network namespace of its own: a web server and a handler. They write what they hear.
LISTENER = """
import fcntl, http.server, os, signal, socket, struct, sys, threading
told = sys.argv.pop()
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: up
def write(word):
    with open(told, "a") as out:
        out.write(word + "\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        write(f"{self.command} {self.path}")
        if self.path == "/wait":
            open(told + ".go").close()  # a pipe
        self.send_response(500 if self.path == "/fail" else 200)
        self.end_headers()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
signal.signal(signal.SIGUSR1, lambda *_: write("USR1"))
"""

#: What comes before it to have two of them, of which the second is not heard, and is nobody's to wait for.
TWICE = """
import ctypes, os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the first
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    keep, end = os.pipe()
    os.dup2(keep, 0)
"""
#: What comes before it to have it begin when told, as the process with that number.
NUMBERED = """
import os, sys
number = int(sys.stdin.readline())
while True:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(number - 1))
    child = os.fork()
    if child == 0 and os.getpid() == number:
        break
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if child == number:
        os._exit(0)
"""


class Holder(Dialog):
    """The program, in a slice of its own. With `told`, a file, it listens in a network namespace of its own.

    `before` comes before it; after NUMBERED, `begun` waits for it.
    """

    def __init__(
        self, place: Place, launcher: str, driver: str, size: int = 1000, kind: str = "plain", told: str = "",
        options: tuple[str, ...] = (), spare: int = 1000, before: str = "",
    ) -> None:  # fmt: skip
        words = place.sliced(launcher, driver, f"--memory={size + spare}MiB", *options)
        words += ["unshare", "--net"] if told else []
        code = [LISTENER + HOLDER, kind, str(size), told] if told else [before + HOLDER, kind, str(size)]
        super().__init__(
            [*words, sys.executable, "-c", *code], {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
        )
        if before != NUMBERED:
            self.begun()

    def begun(self) -> None:
        """Wait until it has its memory."""
        self.tenant, *codes = map(int, self.receive())
        assert not any(codes), codes

    def tells(self) -> bool:
        """Whether its memory has what it wrote."""
        self.send("read")
        return self.receive() == ["0", "4711"]

    def more(self, size: int) -> int:
        """What the driver says to an allocation of so many MiB."""
        self.send("more", size)
        return int(self.receive()[0])

    def spin(self, ms: int) -> None:
        """Have a kernel run for so long on a simulated GPU."""
        self.send("spin", ms)
        assert self.receive() == ["0"] * 3

    def waits(self, word: str = "read") -> bool:
        """Whether a call, which is not received yet, does not return; `ask`: each of those for what was done."""
        self.send(word)
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], 0.2)[0]

    def signal(self, number: int) -> None:
        os.kill(self.tenant, number)

    def stop(self) -> None:
        """End it, whatever it waits for."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
        self.end()


Start = Callable[..., Holder]


@pytest.fixture
def holder(place: Place, driver: str, launcher: str) -> Iterator[Start]:
    """Starts the program in a slice, with an nvcd."""
    programs = []

    def start(
        size: int = 1000, kind: str = "plain", spare: int = 1000, before: str = "", options: tuple[str, ...] = ()
    ) -> Holder:
        if place.daemon is None:
            started(place, driver, METRICS)
        programs.append(Holder(place, launcher, driver, size, kind, "", options, spare, before))
        return programs[-1]

    yield start
    for program in programs:
        program.stop()


def cli(place: Place, launcher: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`nvc-cli vgpu` in the place."""
    return run(*place.enter(launcher, "vgpu", *words), env=CLEAN_ENV, check=check)


def shown(place: Place, launcher: str, name: str) -> dict[str, Any]:
    """`show` of a slice, for programs."""
    return dict(json.loads(cli(place, launcher, "show", name, "--format=json").stdout))


def state(place: Place, launcher: str, one: Holder) -> str:
    return str(shown(place, launcher, str(one.tenant))["state"])


def delay(driver: str, step: str, ms: int) -> None:
    """Let a step of the simulated driver's checkpoints take so long."""
    with open(os.path.join(driver, "proc/driver/nvidia/sim/checkpoint"), "w", encoding="ascii") as out:
        out.write(f"{step} {ms}\n")


def workers(place: Place) -> list[int]:
    """The processes that make the calls for nvcd."""
    assert place.daemon is not None
    found = []
    for pid in place.daemon.family()[1:]:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                if file.read().startswith("nvcd-suspend"):
                    found.append(pid)
    return found

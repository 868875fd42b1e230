"""Tenants that do steps side by side on one GPU, in each way to share it.

Nothing waits without a bound: who does not answer in time is killed, and the run fails with what it said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

import mps_peer
from support.together import ALONE, Case, Had, Sample
from tenants import Gpu

from nvc.base.errors import InitializationError
from nvc.slices.client.mps import SHARED
from nvc.slices.client.nvcd import ask

PATIENCE = 40.0  # seconds until a program has begun, or nvcd
LATE = 10.0  # seconds after its window until a tenant has ended
MEMORY = "6GiB"  # of a slice
#: Of a policy `none` and of plain programs: no nvcd.
WITHOUT_NVCD = (ALONE, "mps", "peer", "slices")
#: What tenants of a load do, by turns.
KINDS = {"mix": ("decode", "train", "eager", "train")}
#: Arguments of tests/native/vgpu_steps.c.
WORK: dict[str, dict[str, int]] = {
    "decode": {"us": 2000, "layers": 24, "kernels": 7, "memory": 768},
    "eager": {"us": 2000, "layers": 24, "kernels": 7, "memory": 768},
    "train": {"us": 15000, "layers": 24, "kernels": 4, "memory": 1536},
}


class Failed(Exception):
    """A run that gave no figures, and why."""


class Energy:
    """NVML's counter of the GPU's energy."""

    def __init__(self, gpu: Gpu) -> None:
        name = "libnvidia-ml.so.1"
        if gpu.root != "/":
            name = os.path.join(gpu.root, f"usr/lib/{os.uname().machine}-linux-gnu", name)
        self._handle = ctypes.c_void_p()
        self._library: ctypes.CDLL | None = None
        with contextlib.suppress(OSError):
            self._library = ctypes.CDLL(name)
            uuid = gpu.uuid.encode()
            if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByUUID(
                uuid, ctypes.byref(self._handle)
            ):
                self._library = None

    def joules(self) -> float | None:
        """Since the driver was loaded; None: the GPU does not say."""
        found = ctypes.c_ulonglong()
        if not self._library:
            return None
        if self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(found)):
            return None
        return found.value / 1000


class Tenant:
    """One program, of tests/native/vgpu_steps.c."""

    def __init__(self, words: list[str], variables: dict[str, str], kind: str) -> None:
        self.kind, self.pid = kind, 0
        self.error = tempfile.TemporaryFile()
        self.buffer = b""
        self.process = subprocess.Popen(
            words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.error
        )

    def said(self) -> str:
        self.error.seek(0)
        return self.error.read().decode(errors="replace")[-1500:].strip()

    def line(self, until: float) -> list[str]:
        """The words of its next line. Raises Failed where none comes by then."""
        assert self.process.stdout is not None
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"a tenant ({self.kind}) said nothing in time and was killed: {self.said()}")
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                code = self.process.wait(LATE)
                raise Failed(f"a tenant ({self.kind}) ended with {code}: {self.said()}")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        words = line.decode(errors="replace").split()
        if words[:1] == ["error"]:
            raise Failed(f"a tenant ({self.kind}): {' '.join(words[1:])} {self.said()}")
        return words

    def ready(self, until: float) -> int:
        """Wait until it can begin. The rounds of its kernels."""
        words = self.line(until)
        if words[:1] != ["ready"]:
            raise Failed(f"a tenant ({self.kind}) said {words}")
        self.pid = int(words[1])
        return int(words[2])

    def go(self, begin: int, end: int) -> None:
        """Work, and count between two moments (CLOCK_MONOTONIC, ns)."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{begin} {end}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"a tenant ({self.kind}) ended before it began: {self.said()}") from None

    def result(self, until: float) -> Had:
        """What it did."""
        count, times = self.line(until), self.line(until)
        if count[:1] != ["done"] or len(times) != int(count[1]) + 1:
            raise Failed(f"a tenant ({self.kind}) said {count}, and {len(times)} words")
        return Had(self.kind, tuple(int(word) / 1000 for word in times[1:]))

    def kill(self) -> None:
        """End the program itself at once; `vgpu run` ends then, too."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Nothing of it is left."""
        if self.process.poll() is None:
            self.kill()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # it hangs in the driver: there is nothing to do
            self.process.wait(LATE)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.error.close()


def processor(pid: int) -> float:
    """Seconds of processor time that all threads have used (proc(5), schedstat)."""
    used = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            used += int(file.read().split()[0]) / 1e9
    return used


def cost_of(pid: int) -> dict[int, float]:
    """Seconds of processor time of nvcd and each of its helpers, without the MPS servers that it has."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        family = [pid, *map(int, file.read().split())]
    used = {}
    for one in family:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{one}/comm", encoding="ascii") as file:
                if "mps" not in file.read():
                    used[one] = processor(one)
    return used


class Machine:
    """The GPU, the programs, and each way to share."""

    def __init__(self, gpu: Gpu, program: str, peer_shim: str, scratch: str, light: bool) -> None:
        self.gpu, self.program, self.peer_shim, self.scratch = gpu, program, peer_shim, scratch
        self.light = light  # a simulated GPU: filling its memory is the host's work
        self.rounds: dict[str, int] = {}
        self.energy = Energy(gpu)

    def control(self) -> str:
        """The MPS control daemon of this driver; "": it has none."""
        if self.gpu.root == "/":
            return mps_peer.find()
        found = os.path.join(self.gpu.root, "usr/bin", mps_peer.CONTROL)
        return found if os.path.exists(found) else ""

    def lacks(self, way: str) -> str:
        """Why this way cannot be measured here; "": it can."""
        if way == "peer" and not self.peer_shim:
            return "PEER_SHIM names no other shim"
        if way in ("mps", "concurrent") and not self.control():
            return f"the driver has no {mps_peer.CONTROL}"
        return ""

    def words(self, kind: str) -> list[str]:
        """The program with its arguments."""
        work = dict(WORK[kind])
        if self.light:
            work.update(memory=1)
        if kind in self.rounds:
            work.update(rounds=self.rounds[kind])
        return [self.program, f"kind={kind}", *(f"{name}={value}" for name, value in work.items())]

    def calibrate(self) -> None:
        """The same kernels for all that follows."""
        for kind in ("decode", "train"):
            made = Tenant(self.words(kind), self.gpu.environment(), kind)
            try:
                self.rounds[kind] = made.ready(time.monotonic() + PATIENCE)
            finally:
                made.end()
        self.rounds["eager"] = self.rounds["decode"]

    def start(self, case: Case, at: int, variables: dict[str, str]) -> Tenant:
        """The tenant of that place."""
        kinds = KINDS.get(case.load, (case.load,))
        kind = kinds[at % len(kinds)]
        prefix: list[str] = []
        more = dict(variables)
        if case.way == "slices":
            prefix = self.gpu.slice("--policy=native", memory=MEMORY)
        elif case.way == "fixed":
            prefix = self.gpu.slice(f"--cores={100 // len(case.weights)}", memory=MEMORY)
        elif case.way == "peer":
            cache = os.path.join(self.scratch, f"peer-{at}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(cache)
            more.update(
                LD_PRELOAD=self.peer_shim, CUDA_DEVICE_MEMORY_LIMIT="6g", LIBCUDA_LOG_LEVEL="0",
                CUDA_DEVICE_SM_LIMIT=str(100 // len(case.weights)), CUDA_DEVICE_MEMORY_SHARED_CACHE=cache,
                CUDA_VISIBLE_DEVICES=self.gpu.index, CUDA_DEVICE_ORDER="PCI_BUS_ID",  # it knows no UUIDs
            )  # fmt: skip
        elif case.way not in WITHOUT_NVCD:
            prefix = self.gpu.slice(f"--weight={case.weights[at]}", memory=MEMORY)
        return Tenant([*prefix, *self.words(kind)], self.gpu.environment(**more), kind)

    @contextlib.contextmanager
    def shared(self, way: str) -> Iterator[tuple[dict[str, str], int]]:
        """The GPU is shared this way. Variables of the tenants, and nvcd's number or 0."""
        if way == "mps":
            try:
                with mps_peer.serving(self.control(), self.gpu) as variables:
                    yield variables, 0
            except SystemExit as error:
                raise Failed(str(error)) from None
        elif way in WITHOUT_NVCD:
            yield {}, 0
        else:
            with self._nvcd(way) as pid:
                yield {}, pid

    @contextlib.contextmanager
    def _nvcd(self, policy: str) -> Iterator[int]:
        words = self.gpu.nvcd
        path = os.path.join(self.scratch, "nvcd.log")
        with open(path, "wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            end = time.monotonic() + PATIENCE
            while subprocess.run([words[0], "--state"], capture_output=True, timeout=PATIENCE).returncode:
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed("nvcd does not start")
                time.sleep(0.02)
            self._call("vgpu", "policy", self.gpu.uuid, policy)
            yield process.pid
        except Failed as error:
            with open(path, encoding="utf-8", errors="replace") as log_read:
                raise Failed(f"{error}; nvcd: {log_read.read()[-1500:].strip()}") from None
        finally:
            with contextlib.suppress(Failed):
                self._call("vgpu", "policy", self.gpu.uuid, "--reset")
            with contextlib.suppress(InitializationError):  # it would outlive nvcd
                ask("mps-stop", PATIENCE, key=SHARED)
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _call(self, *words: str) -> None:
        try:
            self.gpu.call(*words)
        except SystemExit as error:
            raise Failed(str(error)) from None

    def measure(self, case: Case, seconds: float, warm: float) -> Sample:
        """One run. Raises Failed."""
        tenants: list[Tenant] = []
        with self.shared(case.way) as (variables, pid):
            try:
                for at in range(len(case.weights)):
                    tenants.append(self.start(case, at, variables))
                until = time.monotonic() + PATIENCE
                for one in tenants:
                    one.ready(until)
                begin = time.monotonic_ns() + round(1e9 * warm)
                end = begin + round(1e9 * seconds)
                for one in tenants:
                    one.go(begin, end)
                before = self._at(begin, pid)
                after = self._at(end, pid)
                had = tuple(one.result(time.monotonic() + LATE) for one in tenants)
            finally:
                for one in tenants:
                    one.end()
        energy = after[1] - before[1] if after[1] is not None and before[1] is not None else None
        used = sum(cost - before[2].get(one, 0.0) for one, cost in after[2].items())
        percent = 100 * used / (after[0] - before[0]) if pid else None
        return Sample(seconds, had, energy, percent)

    def _at(self, moment: int, pid: int) -> tuple[float, float | None, dict[int, float]]:
        time.sleep(max(0.0, (moment - time.monotonic_ns()) / 1e9))
        try:
            return time.monotonic(), self.energy.joules(), cost_of(pid) if pid else {}
        except FileNotFoundError:
            raise Failed("nvcd has ended") from None

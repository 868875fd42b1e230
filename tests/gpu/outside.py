"""Keeps time from outside on a real GPU and prints what came of it: outside.py [REPORT]. As root.

Needs the checkout that this file is in, built, or the bundle; and PyTorch for the tenants. It takes four minutes at
most. It stops and sizes processes of its own alone.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
#: The bundle's tree and, for whichever Python this is, its packages; or the checkout.
CODE = [path for path in (f"{ROOT}/tree/lib/nvc/python", ROOT) if os.path.isdir(f"{path}/nvc")][:1]
CODE += [path for path in (f"{ROOT}/tree/lib/nvc/site",) if os.path.isdir(path)]
sys.path[:0] = CODE

from nvc.daemon.keeper import selftest  # noqa: E402
from nvc.kernel import rm, tracer  # noqa: E402
from nvc.slices.make.calibrate import Libraries  # noqa: E402

PINS = "/run/nvc-outside"
LIMIT = 240  # seconds for all
TENANT = """
import sys, mmap, time, struct, torch
file = open(sys.argv[1], "r+b"); shared = mmap.mmap(file.fileno(), 4096)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16); b = torch.randn_like(a)
n = 0
while True:
    a @ b
    torch.cuda.synchronize()
    n += 1
    struct.pack_into("<Q", shared, 0, n)
"""
BREAKER = """
import os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from nvc.kernel import rm
control, instance, client, channel = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
sub = rm.Rm.open(control, [sys.argv[6]]).subdevice(instance)
print("ready", flush=True)
sys.stdin.readline()
print("status", sub.start([(client, channel)]), flush=True)
"""


def say(text: str) -> None:
    print(text, flush=True)


class Tenant:
    """A program that multiplies matrices, one step after another."""

    def __init__(self, directory: str, name: str) -> None:
        self.path = f"{directory}/{name}"
        with open(self.path, "wb") as file:
            file.write(bytes(4096))
        self.log = open(f"{self.path}.log", "wb")
        python = shutil.which("python3") or "python3"  # the one that has PyTorch, which may be another than this
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [python, "-c", TENANT, self.path], stdout=self.log, stderr=self.log, env=environment
        )
        self.pid = self.process.pid

    def steps(self) -> int:
        with open(self.path, "rb") as file:
            return int.from_bytes(file.read(8), "little")

    def wait(self, steps: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.steps() < steps:
            if self.process.poll() is not None or time.monotonic() > until:
                with open(f"{self.path}.log", errors="replace") as file:
                    raise RuntimeError(f"tenant ended or does nothing: {file.read()[-500:]}")
            time.sleep(0.01)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Trial:
    """What the steps share."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.control = "/dev/nvidiactl"
        self.nodes = sorted(glob.glob("/dev/nvidia[0-9]*"))
        self.tenants: list[Tenant] = []
        self.tracer: Any = None
        self.rm: Any = None
        self.device: Any = None
        self.sub: Any = None

    def facts(self) -> None:
        for path in ("/proc/driver/nvidia/version", "/proc/sys/kernel/osrelease"):
            with open(path) as file:
                say(f"  {file.readline().strip()}")
        say(f"  python {sys.version.split()[0]}, {rm.__file__}, nodes {self.nodes}")
        say(f"  rights missing: {tracer.missing_rights() or 'none'}")

    def load(self) -> None:
        bare = call_ns()
        begin = time.monotonic()
        self.tracer = tracer.Tracer.open(PINS)
        say(f"  loaded in {(time.monotonic() - begin) * 1e3:.1f} ms, {PINS}: {sorted(os.listdir(PINS))}")
        say(f"  a system call: {bare:.0f} ns before, {call_ns():.0f} ns after")
        self.tracer.exempt(os.getpid())

    def open(self) -> None:
        self.rm = rm.Rm.open(self.control, self.nodes)
        devices = self.rm.devices()
        for each in devices:
            say(f"  {each}")
        self.device = min(devices, key=lambda each: each.instance)

    def check(self) -> None:
        other = rm.Rm.open(self.control, self.nodes)
        libraries = Libraries("/", "libcuda.so.1", "libnvidia-ml.so.1")
        begin = time.monotonic()
        result = selftest.run(self.tracer, other, self.device, libraries, self.control)
        say(f"  {result} in {time.monotonic() - begin:.1f} s")
        other.close()

    def start(self) -> None:
        self.sub = self.rm.subdevice(self.device.instance)
        say(f"  GPU timer minus CLOCK_REALTIME: {self.sub.now() - time.time_ns()} ns")
        for name in "ab":
            self.tenants.append(Tenant(self.directory, name))
        for each in self.tenants:
            each.wait(20, 60)
        kinds: dict[int, int] = {}
        for each in self.tracer.news():
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
        say(
            f"  news { ({tracer.WORDS[kind]: count for kind, count in kinds.items()}) }, lost {self.tracer.lost}"
        )

    def objects(self) -> None:
        begin = time.monotonic()
        table = self.tracer.objects()
        say(f"  {len(table)} objects in {(time.monotonic() - begin) * 1e3:.1f} ms")
        first = self.tenants[0].pid
        for each in table:
            if each.pid == first and not each.is_channel:
                inside = [o for o in table if (o.client, o.parent) == (each.client, each.handle)]
                say(
                    f"    {each.client:x}/{each.handle:x} in {each.parent:x} class {each.kind:x} fd {each.fd} "
                    f"device {each.device} engine {each.engine}, inside: "
                    + " ".join(f"{o.handle:x}:{o.kind:x}:{o.engine}" for o in inside if o.is_channel)
                )
        for each in self.tenants:
            groups = selftest.computing(table, each.pid, self.device.instance)
            say(
                f"    pid {each.pid}: computing groups with channels {[len(one.channels) for one in groups]}"
            )

    def channels(self, tenant: Tenant) -> list[tuple[int, int]]:
        groups = selftest.computing(self.tracer.objects(), tenant.pid, self.device.instance)
        return [(group.client, channel) for group in groups for channel in group.channels]

    def stop(self) -> None:
        tenant, other = self.tenants
        names = self.channels(tenant)
        for _ in range(8):
            try:
                t0 = time.monotonic()
                status = self.sub.stop(names)
                t1 = time.monotonic()
                time.sleep(0.02)
                a, b = tenant.steps(), other.steps()
                time.sleep(0.1)
                a, b = tenant.steps() - a, other.steps() - b
            finally:
                t2 = time.monotonic()
                again = self.sub.start(names)
                t3 = time.monotonic()
            before = tenant.steps()
            while tenant.steps() == before and time.monotonic() < t3 + 2:
                time.sleep(0.0001)
            say(
                f"  stop {rm.words(status)} {(t1 - t0) * 1e3:.2f} ms; in 100 ms {a} steps, the other {b}; start "
                f"{rm.words(again)} {(t3 - t2) * 1e3:.2f} ms, a step after {(time.monotonic() - t2) * 1e3:.1f} ms"
            )
            time.sleep(0.1)

    def timeslices(self) -> None:
        for wanted in ((0, 0), (4000, 4000), (9000, 1000), (1000, 9000), (2048, 2048)):
            for tenant, us in zip(self.tenants, wanted):
                groups = selftest.computing(self.tracer.objects(), tenant.pid, self.device.instance)
                for group in groups:
                    fd = rm.borrow(group.pid, group.fd, self.control)
                    try:
                        begin = time.monotonic()
                        status = rm.set_timeslice(fd, group.client, group.handle, us) if us else 0
                        took = time.monotonic() - begin
                        say(
                            f"    pid {tenant.pid} set {us}: {rm.words(status)} {took * 1e3:.2f} ms, read "
                            f"{rm.get_timeslice(fd, group.client, group.handle)}"
                        )
                    finally:
                        os.close(fd)
            time.sleep(0.2)
            before = [each.steps() for each in self.tenants]
            time.sleep(1.5)
            did = [each.steps() - old for each, old in zip(self.tenants, before)]
            say(f"  timeslices {wanted}: steps in 1.5 s {did}, {100 * did[0] / max(1, sum(did)):.1f} %")

    def log(self) -> None:
        log = self.sub.log()
        try:
            had: dict[int, int] = {}
            opened: dict[int, int] = {}
            count = lost = 0
            worst = 0.0
            begin, gpu = time.monotonic(), self.sub.now()
            while time.monotonic() < begin + 2:
                time.sleep(0.05)
                t0 = time.monotonic()
                records, missing = log.read()
                worst = max(worst, time.monotonic() - t0)
                count, lost = count + len(records), lost + missing
                for each in records[:6] if count <= 200 else []:
                    say(f"    {(each.time_ns - gpu) / 1e3:.1f} us {each}")
                for each in records:
                    if each.kind == rm.START:
                        opened[each.pid] = each.time_ns
                    elif each.pid in opened:
                        had[each.pid] = had.get(each.pid, 0) + each.time_ns - opened.pop(each.pid)
            whole = self.sub.now() - gpu
            say(f"  {count} records, {lost} lost, slowest read {worst * 1e3:.2f} ms, {whole / 1e9:.3f} s")
            for pid, ns in sorted(had.items()):
                say(f"    pid {pid}: {ns / 1e6:.1f} ms, {100 * ns / whole:.2f} %")
        finally:
            log.close()

    def guard(self) -> None:
        client, channel = self.channels(self.tenants[0])[0]
        for on in (False, True):
            words = [
                os.pathsep.join(CODE),
                self.control,
                str(self.device.instance),
                str(client),
                str(channel),
            ]
            child = subprocess.Popen(
                [sys.executable, "-c", BREAKER, *words, self.nodes[0]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdin and child.stdout
            ready = child.stdout.readline().strip()
            if on:
                self.tracer.guard(child.pid, True)
            begin = time.monotonic()
            out, _ = child.communicate("\n", timeout=10)
            took = (time.monotonic() - begin) * 1e3
            news = [
                tracer.WORDS[each.kind]
                for each in self.tracer.news()
                if each.pid == child.pid and each.kind not in (tracer.NEW, tracer.FREED)
            ]
            say(
                f"  guarded {on}: {ready}, then {out.strip()!r}, exit {child.returncode}, {took:.1f} ms; "
                f"news {news}"
            )

    def close(self) -> None:
        for each in self.tenants:
            each.end()
        if self.tracer is None:
            return
        over: set[int] = set()
        until = time.monotonic() + 3
        while len(over) < len(self.tenants) and time.monotonic() < until:
            over |= {each.pid for each in self.tracer.news() if each.kind == tracer.EXITED}
            time.sleep(0.01)
        pids = {each.pid for each in self.tenants}
        left = [each for each in self.tracer.objects() if each.pid in pids]
        say(
            f"  tenants that ended: {sorted(over & pids)} of {sorted(pids)}; objects left of them: {len(left)}"
        )
        say(f"  lost {self.tracer.lost}")
        self.tracer.close()


def call_ns() -> float:
    """What a system call of this process takes, at best of five."""
    libc = ctypes.CDLL(None)
    best = 1e9
    for _ in range(5):
        begin = time.perf_counter_ns()
        for _ in range(20000):
            libc.getppid()
        best = min(best, (time.perf_counter_ns() - begin) / 20000)
    return best


def worker() -> int:
    failed = 0
    directory = tempfile.mkdtemp(dir="/dev/shm")
    trial = Trial(directory)
    steps: list[tuple[Callable[[], None], int]] = [
        (trial.facts, 5),
        (trial.load, 20),
        (trial.open, 30),
        (trial.check, 45),
        (trial.start, 90),
        (trial.objects, 10),
        (trial.stop, 20),
        (trial.timeslices, 30),
        (trial.log, 15),
        (trial.guard, 40),
        (trial.close, 20),
    ]
    for step, seconds in steps:
        say(f"== {step.__name__}")
        signal.alarm(seconds)
        try:
            step()
        except BaseException:  # the next step may work
            failed += 1
            say("  FAILED\n" + "".join(f"    {line}\n" for line in traceback.format_exc().splitlines()))
        finally:
            signal.alarm(0)
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run(["umount", PINS], check=False)
    say(f"== {failed} steps failed")
    return failed


def on_alarm(number: int, frame: object) -> None:
    raise TimeoutError("this step took too long")


def main() -> int:
    if len(sys.argv) > 1:
        out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, on_alarm)
        os._exit(min(worker(), 100))
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    say("== the whole took too long, and is killed")
    os.killpg(pid, signal.SIGKILL)
    return 101


if __name__ == "__main__":
    sys.exit(main())

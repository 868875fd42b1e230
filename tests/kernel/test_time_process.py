"""The timekeeper's processes: they start, hold, are started again, and let go of everything when nvcd ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from support import PATIENCE
from support.livegpu import UUID, LiveGpu, one_slice

from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.keeper import process
from nvc.daemon.keeper.plan import Plan
from nvc.daemon.keeper.wire import Account
from nvc.daemon.time.client import TimeClient
from nvc.kernel import LinuxKernel
from nvc.model.slices.layout import KEPT_FOR


class Nvcd:
    """As much of nvcd as the timekeeper needs."""

    def __init__(self, path: str) -> None:
        self.path, own = path, os.getpid()
        self.loop = Loop()
        self.said: list[str] = []
        self.accounts: list[Account] = []
        self.client = TimeClient(
            self.loop,
            lambda: process.start(LinuxKernel(), lambda: LiveGpu(path, own)),
            lambda account, now: self.accounts.append(account),
            self.said.append,
        )

    def second(self) -> None:
        self.client.second(time.monotonic_ns())

    def set(self, plan: Plan) -> None:
        self.client.set(plan, time.monotonic_ns())

    def until(self, done: object) -> None:
        """Let the loop run until that is so."""
        assert callable(done)
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, (self.said, self.calls()[-5:])
            for fd in self.loop.poll(time.monotonic_ns() + SECOND // 20):
                self.loop.handlers[fd](time.monotonic_ns())
            self.loop._timed(time.monotonic_ns())
            self.second()

    def calls(self) -> list[list[str]]:
        if not os.path.exists(self.path):
            return []
        with open(self.path, encoding="ascii") as file:
            return [line.split() for line in file]

    def count(self, name: str, pid: int = 0) -> int:
        return sum(call[0] == name and pid in (0, int(call[1])) for call in self.calls())


@pytest.fixture
def nvcd(tmp_path: object) -> Iterator[Nvcd]:
    made = Nvcd(f"{tmp_path}/calls")
    yield made
    first = made.client.pid
    made.client.close()
    if first and first in made.client._unreaped:
        os.waitpid(first, 0)


def test_it_holds_a_cap_and_tells_of_it(nvcd: Nvcd) -> None:
    assert nvcd.client.problem(time.monotonic_ns()) == "the timekeeper has not begun"
    nvcd.second()
    nvcd.set(one_slice(50))
    nvcd.until(lambda: nvcd.count("stop") > 5 and nvcd.accounts and nvcd.accounts[-1].devices)
    nvcd.until(lambda: nvcd.accounts[-1].devices[0].slices[0].had_ns > SECOND // 10)
    device = nvcd.accounts[-1].devices[0]
    assert device.uuid == UUID and device.logged and not device.failed and not device.problem
    assert device.slices[0].stopped_ns > SECOND // 20 and device.pids[0][1] > SECOND // 10
    assert nvcd.client.holds(UUID, time.monotonic_ns()) == ""
    assert nvcd.client.holds("GPU-x", time.monotonic_ns()) == "the timekeeper does not know the device"
    with open(f"/proc/{nvcd.client.keeper}/comm", encoding="ascii") as file:
        assert file.read() == "nvcd-time\n"
    traced: list[object] = []
    assert nvcd.client.trace(60, lambda records, _: traced.append(records), time.monotonic_ns())
    nvcd.until(lambda: traced)
    assert traced[0]


def test_it_has_only_the_rights_that_it_needs(nvcd: Nvcd) -> None:
    nvcd.second()
    nvcd.until(lambda: nvcd.client.keeper)
    with open(f"/proc/{nvcd.client.keeper}/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    held = LinuxKernel().capget()[1] & process.RIGHTS
    assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == held
    assert lines["NoNewPrivs"].strip() == "1"


def test_when_nvcd_ends_it_starts_what_it_stopped_and_ends(nvcd: Nvcd) -> None:
    nvcd.second()
    nvcd.set(one_slice(stopped=True))
    nvcd.until(lambda: nvcd.count("stop"))
    keeper = nvcd.client.keeper
    os.kill(keeper, signal.SIGTERM)  # as a service manager does to all of a service's processes
    assert nvcd.count("start") == 0
    first = nvcd.client.pid
    nvcd.client._unreaped.clear()
    nvcd.client.close()
    if first in nvcd.client._unreaped:
        assert os.waitpid(first, 0)[1] == 0
        nvcd.client._unreaped.remove(first)
    assert nvcd.calls()[-1] == ["start", str(keeper)]
    assert not os.path.exists(f"/proc/{keeper}")


def test_when_nvcd_ends_it_holds_caps_until_shims_do(nvcd: Nvcd) -> None:
    nvcd.second()
    nvcd.set(one_slice(20))
    nvcd.until(lambda: nvcd.count("stop") > 3 and nvcd.accounts)
    first = nvcd.client.pid
    before, begun = nvcd.count("stop"), time.monotonic_ns()
    nvcd.client.close()
    if first in nvcd.client._unreaped:
        assert os.waitpid(first, 0)[1] == 0
        nvcd.client._unreaped.remove(first)
    assert KEPT_FOR - SECOND // 5 < time.monotonic_ns() - begun
    assert nvcd.count("stop") - before > 15 and nvcd.calls()[-1][0] == "start"


def test_what_one_has_stopped_that_is_killed_after_nvcd_is_started(nvcd: Nvcd) -> None:
    nvcd.second()
    nvcd.set(one_slice(stopped=True))
    nvcd.until(lambda: nvcd.count("stop"))
    first, keeper = nvcd.client.pid, nvcd.client.keeper
    nvcd.client.close()
    os.kill(keeper, signal.SIGKILL)
    if first in nvcd.client._unreaped:
        assert os.waitpid(first, 0)[1] == 0
        nvcd.client._unreaped.remove(first)
    assert nvcd.calls()[-1][0] == "start" and nvcd.calls()[-1][1] != str(keeper)


def test_one_that_fails_after_nvcd_has_ended_is_started_again(tmp_path: object) -> None:
    def work(beat: object) -> None:
        with open(f"{tmp_path}/tries", "a+b", buffering=0) as file:
            file.write(b".")
            assert file.tell() >= 5

    ours, other = socket.socketpair()
    ours.close()
    with other:
        process.supervise(other, work)
    assert os.stat(f"{tmp_path}/tries").st_size == 5


def test_one_that_is_killed_is_started_again_and_first_starts_what_the_plan_does_not_stop(
    nvcd: Nvcd,
) -> None:
    nvcd.second()
    nvcd.set(one_slice(stopped=True))
    nvcd.until(lambda: nvcd.count("stop"))
    killed = nvcd.client.keeper
    os.kill(killed, signal.SIGKILL)
    nvcd.client.plan = one_slice()
    nvcd.until(lambda: nvcd.client.keeper not in (0, killed) and nvcd.count("start"))
    assert nvcd.calls()[-1] == ["start", str(nvcd.client.keeper)]
    assert nvcd.client.restarts == 1 and nvcd.said == ["time: the timekeeper was started again"]


def test_if_both_have_ended_nvcd_starts_them_again(nvcd: Nvcd) -> None:
    nvcd.second()
    nvcd.until(lambda: nvcd.client.keeper)
    keeper = nvcd.client.keeper
    os.kill(nvcd.client.pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    nvcd.until(lambda: nvcd.said)
    assert nvcd.said == ["time: the timekeeper has ended; started again in 1 s"]
    assert nvcd.client.problem(time.monotonic_ns()) == nvcd.said[0]
    nvcd.until(lambda: nvcd.client.keeper not in (0, keeper))

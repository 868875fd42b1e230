"""Slices whose programs move their memory themselves, `--suspend-by swap`, on a simulated GPU."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from functools import partial
from itertools import product

import pytest
from support import GIB, MIB, until
from support.nightly import few
from support.nvcd import Place, ask, eventually
from support.nvcd_programs import METRICS, get, started
from support.suspended import TWICE, Holder, Start, cli, delay, shown, workers

pytestmark = pytest.mark.driver(gpus=1)
SWAP, WHO = "--suspend-by=swap", ("nvcd", "worker", "tenant")


@pytest.fixture
def holder(holder: Start) -> Start:
    """Starts the program in a slice that swaps, with an nvcd."""
    return partial(holder, options=(SWAP,))


def used(place: Place, more: int = 0) -> int:
    """MiB of the GPU in use, by NVML, once they are at least as many."""
    return int(eventually(place, lambda found: found["devices"][0]["used"] > more)["devices"][0]["used"]) // MIB


def becomes(place: Place, mib: int) -> None:
    """Wait until NVML shows so many MiB in use."""
    eventually(place, lambda found: found["devices"][0]["used"] == mib * MIB)


def is_now(place: Place, state: str) -> None:
    """Wait for the state of the first slice."""
    eventually(place, lambda found: found["slices"] and found["slices"][0]["suspension"] == state)


def second(place: Place, one: Holder) -> int:
    """The other process of a slice, after TWICE."""
    found = eventually(place, lambda found: found["memory"] and len(found["memory"][0]["pids"]) == 2)
    (other,) = set(found["memory"][0]["pids"]) - {one.tenant}
    return int(other)


def begin(place: Place, driver: str, key: str, ms: int) -> None:
    """Let a slice leave whose copy takes so long."""
    eventually(place, lambda found: found["memory"] and found["memory"][0]["pids"])
    delay(driver, "copy", ms)
    assert ask(place, "suspend", key=key)["state"] == "suspending"
    until(lambda: workers(place))


def test_there_and_back(place: Place, launcher: str, holder: Start) -> None:
    """Data stay at their addresses; NVML shows that they have left, and what stays."""
    one = holder()
    name, before = str(one.tenant), used(place, 2000 * MIB)
    for _ in range(2):
        cli(place, launcher, "suspend", name)
        becomes(place, before - 1000)
        found = shown(place, launcher, name)
        assert found["state"] == "suspended" and found["suspendBy"] == "swap"
        assert found["suspension"]["saved"] == found["devices"][0]["moved"] == 1000 * MIB
        text = cli(place, launcher, "show", name).stdout
        assert "suspend-by swap" in text and " and 1000 MiB on the host" in text, text
        assert one.waits()
        cli(place, launcher, "resume", name)
        assert one.receive() == ["0", "4711"] and one.tells()
    assert shown(place, launcher, name)["state"] == "running" and not os.listdir(f"{place.run}/suspend")
    cli(place, launcher, "set", name, "--suspend-by=checkpoint")
    cli(place, launcher, "suspend", name)
    assert shown(place, launcher, name)["suspension"]["saved"] > 1000 * MIB
    cli(place, launcher, "resume", name)
    assert one.tells()


def test_it_leaves_when_idle_and_comes_back_when_used(place: Place, launcher: str, holder: Start) -> None:
    """What waits for it is seen from outside, as with checkpoints."""
    one = holder()
    before = used(place, 2000 * MIB)
    cli(place, launcher, "suspend", str(one.tenant))
    cli(place, launcher, "set", str(one.tenant), "--idle-suspend=1h")
    becomes(place, before - 1000)
    assert one.tells()
    is_now(place, "running")


@pytest.mark.parametrize(("who", "leaves"), few(product(WHO, (True, False)), 2))
def test_killed_in_the_middle(
    place: Place, driver: str, launcher: str, holder: Start, who: str, leaves: bool
) -> None:
    """The slice runs in the end, or is gone with its process."""
    one = holder(400)
    key = shown(place, launcher, str(one.tenant))["key"]
    if leaves:
        begin(place, driver, key, 1500)
    else:
        cli(place, launcher, "suspend", key)
        assert ask(place, "unsuspend", key=key)["state"] == "resuming"
        until(lambda: workers(place) or not os.listdir(f"{place.run}/suspend"))
    assert place.daemon is not None
    if who == "tenant":
        one.signal(signal.SIGKILL)
        eventually(place, lambda found: not any(each["running"] for each in found["slices"]))
        until(lambda: not os.listdir(f"{place.run}/suspend"))
        return
    if who == "nvcd":
        place.daemon.kill()
        started(place, driver)
    else:
        for worker in workers(place):
            with suppress(ProcessLookupError):  # it was faster
                os.kill(worker, signal.SIGKILL)
    is_now(place, "running")
    assert one.tells()
    cli(place, launcher, "suspend", key)
    cli(place, launcher, "resume", key)
    assert one.tells()


def test_a_copy_that_fails(place: Place, driver: str, launcher: str, holder: Start) -> None:
    one = holder()
    before = used(place, 2000 * MIB)
    delay(driver, "copy", 0)
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1 and "swap out: CUDA error 999; it is not suspended" in done.stderr, done.stderr
    assert one.tells() and used(place) == before


def test_without_memory_of_the_host(place: Place, launcher: str, holder: Start) -> None:
    """Both processes go on, where one of the two gets none."""
    one = holder(spare=3000, before=TWICE)
    before = used(place, 3000 * MIB)
    other = second(place, one)
    resource.prlimit(other, resource.RLIMIT_AS, (GIB, GIB))
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert "the host gave no memory for it; it is not suspended" in done.stderr, done.stderr
    assert f"process {other}" in done.stderr and one.tells() and used(place) == before


@pytest.mark.driver(gpus=1, model="t4", memory=3 * GIB)
def test_a_full_gpu_takes_nobody_back(place: Place, launcher: str, holder: Start) -> None:
    one = holder()
    cli(place, launcher, "suspend", str(one.tenant))
    other = holder(2000)
    done = cli(place, launcher, "resume", str(one.tenant), check=False)
    assert done.returncode == 1 and "have to be free, and" in done.stderr and "it is suspended" in done.stderr
    assert one.waits() and other.tells()
    cli(place, launcher, "suspend", str(other.tenant))
    cli(place, launcher, "resume", str(one.tenant))
    assert one.receive() == ["0", "4711"]


def test_one_that_does_not_answer(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """The other goes on at once, and it too once it can."""
    place.constants["nvc.daemon.suspend.swap._PATIENCE"] = 2.0
    one = holder(spare=3000, before=TWICE)
    other = second(place, one)
    key = shown(place, launcher, str(one.tenant))["key"]
    begin(place, driver, key, 1000)
    os.kill(other, signal.SIGSTOP)
    is_now(place, "failed")
    assert "which is not answered" in cli(place, launcher, "show", key).stdout and one.tells()
    os.kill(other, signal.SIGCONT)
    is_now(place, "running")
    assert one.tells()


@pytest.mark.driver(gpus=2)
def test_what_cannot_be_swapped(place: Place, launcher: str, holder: Start) -> None:
    """Memory from before the setting, small and managed memory, and that of a slice of two GPUs."""
    for words, *options in (
        ((100,), "--suspend-by=checkpoint", "--device=0"), ((1,), SWAP, "--device=0"),
        ((100, "managed"), SWAP, "--device=0"), ((100,), SWAP, "--device=0,1"),
    ):  # fmt: skip
        one = holder(*words, options=tuple(options))
        cli(place, launcher, "set", str(one.tenant), SWAP)
        done = cli(place, launcher, "suspend", str(one.tenant), check=False)
        assert "none of its processes has memory that can be swapped" in done.stderr, (words, options, done.stderr)
        assert one.tells()


def test_an_operator_s_bound_of_the_host_s_memory(
    place: Place, driver: str, launcher: str, holder: Start
) -> None:
    """What others keep is given back first, who does not fit is refused; a lower one ends nobody."""

    def start(size: str) -> None:
        if place.daemon is not None:
            place.daemon.end()
        started(place, driver, f'{METRICS}swap-size = "{size}"\n')

    start("500MiB")
    one, other = holder(300), holder(300)
    names = [str(each.tenant) for each in (one, other)]
    cli(place, launcher, "suspend", names[0])
    done = cli(place, launcher, "suspend", names[1], check=False)
    assert "swap-size: 300 MiB are to be kept in the host's memory, and 200 MiB of 500 MiB" in done.stderr, done
    cli(place, launcher, "resume", names[0])
    eventually(place, lambda found: found["swap"] == {"size": 500 * MIB, "used": 300 * MIB, "kept": 300 * MIB})
    cli(place, launcher, "suspend", names[1])
    eventually(place, lambda found: found["swap"] == {"size": 500 * MIB, "used": 300 * MIB, "kept": 0})
    start("100MiB")
    assert "\nnvc_swap_used_bytes 3.145728e+08\n" in get(place, "/metrics")
    assert other.waits()
    cli(place, launcher, "resume", names[1])
    assert other.receive() == ["0", "4711"] and one.tells()
    eventually(place, lambda found: found["swap"]["used"] == 0)

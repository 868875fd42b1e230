"""`vgpu suspend` and `resume` by nvcd, on a simulated GPU: what is shown and refused; who is killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
from itertools import product

import pytest
from support import CLEAN_ENV, GIB, run, until
from support.nightly import few
from support.nvcd import SECOND, Place, ask, eventually
from support.nvcd_programs import METRICS, get, started
from support.suspended import NUMBERED, TWICE, Start, cli, delay, shown, state, workers

pytestmark = pytest.mark.driver(gpus=1)
WHO, STEPS = ("nvcd", "worker", "tenant"), ("lock", "checkpoint", "restore", "unlock")


def used(place: Place) -> int:
    """Bytes of the GPU in use, by NVML."""
    return int(ask(place)["devices"][0]["used"] or 0)


def test_there_and_back(place: Place, launcher: str, holder: Start) -> None:
    one = holder()
    before = eventually(place, lambda found: found["devices"] and found["devices"][0]["used"] > GIB)
    cli(place, launcher, "suspend", str(one.tenant))
    eventually(place, lambda found: found["devices"][0]["used"] < before["devices"][0]["used"] - GIB)
    found = shown(place, launcher, str(one.tenant))
    assert found["state"] == "suspended" and found["running"] and one.tenant in found["suspension"]["pids"]
    assert found["suspension"]["saved"] == (1000 + 518) << 20 and not found["suspension"]["problem"]
    assert found["suspension"]["why"] == "asked"
    assert found["devices"][0]["used"] == 0 and found["devices"][0]["moved"] == (1000 + 518) << 20
    assert not any(each["used"][0] for each in found["processes"])
    text = cli(place, launcher, "show", str(one.tenant)).stdout
    assert "suspended  since " in text and "used 0 MiB and 1518 MiB on the host" in text, text
    assert ", suspended" in cli(place, launcher, "ls").stdout
    assert " suspended " in cli(place, launcher, "top", "--once").stdout
    assert ask(place)["slices"][0]["suspension"] == "suspended"
    metrics = get(place, "/metrics")
    assert re.search(r'nvc_slice_saved_bytes{.*device_uuid="GPU-.*} 1.59', metrics)
    assert re.findall(r"^(?:nvc_slice_memory|hami_vgpu_memory_used)_bytes{.*} (.*)$", metrics, re.M) == ["0.0"] * 3
    cli(place, launcher, "suspend", str(one.tenant))  # again: it is so
    assert one.waits()
    cli(place, launcher, "resume", str(one.tenant))
    assert one.receive() == ["0", "4711"] and one.tells()
    found = shown(place, launcher, str(one.tenant))
    assert found["state"] == "running" and found["suspension"] is None
    assert eventually(place, lambda found: found["devices"][0]["used"] == before["devices"][0]["used"])
    assert not os.listdir(f"{place.run}/suspend")


def test_a_limit_that_is_lowered_meanwhile(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """As for a slice that runs: its work goes on, and new allocations fail."""
    started(place, driver, METRICS + 'on-excess = "stop"\n')
    one = holder()
    eventually(place, lambda found: found["devices"] and found["devices"][0]["used"] > GIB)
    cli(place, launcher, "suspend", str(one.tenant))
    eventually(place, lambda found: found["devices"][0]["used"] < GIB)
    said = cli(place, launcher, "set", str(one.tenant), "--memory=512m").stderr
    assert "nothing is taken from it and its work goes on once it is resumed" in said
    seen = ask(place)["nvml"]["answers"]
    eventually(place, lambda found: found["nvml"]["answers"] - seen > 3)
    cli(place, launcher, "resume", str(one.tenant))
    seen = ask(place)["nvml"]["answers"]
    found = eventually(place, lambda found: found["nvml"]["answers"] - seen > 3)
    assert found["memory"][0]["limit"] == GIB // 2 and found["memory"][0]["truth"] > GIB
    assert found["found"]["excess"] == 0 and one.tells() and one.more(2) == 2


def test_calls_that_the_driver_does_not_hold_up(place: Place, launcher: str, holder: Start) -> None:
    """They would fault: the shim waits in their place."""
    one = holder()
    cli(place, launcher, "suspend", str(one.tenant))
    assert one.waits("ask")
    cli(place, launcher, "resume", str(one.tenant))
    found = dict(one.receive() for _ in range(6))
    assert len(found) == 6 and set(found.values()) == {"0"}, found
    assert one.tells()


@pytest.mark.driver(gpus=1, model="t4", memory=8 * GIB)
def test_a_full_gpu_takes_nobody_back(place: Place, launcher: str, holder: Start) -> None:
    """The driver would never bring it back after that, so it is not asked."""
    one = holder(4000)
    cli(place, launcher, "suspend", str(one.tenant))
    other = holder(5000)
    done = cli(place, launcher, "resume", str(one.tenant), check=False)
    assert done.returncode == 1 and "have to be free, and" in done.stderr, done.stderr
    assert "it is suspended" in done.stderr and "suspend others on this GPU" in done.stderr
    assert state(place, launcher, one) == "suspended" and other.tells()
    cli(place, launcher, "suspend", str(other.tenant))
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()


@pytest.mark.parametrize(("who", "step"), few(product(WHO, STEPS), 3))
def test_killed_at_a_step(place: Place, driver: str, launcher: str, holder: Start, step: str, who: str) -> None:
    """The slice runs in the end, or is gone with its process."""
    one = holder(100)
    key = shown(place, launcher, str(one.tenant))["key"]
    eventually(place, lambda found: found["memory"] and found["memory"][0]["pids"])
    leaves = step in ("lock", "checkpoint")
    if not leaves:
        cli(place, launcher, "suspend", str(one.tenant))
    delay(driver, step, 4000 if who == "tenant" else 8000)  # of one that is gone, it ends all the same
    assert ask(place, "suspend" if leaves else "unsuspend", key=key)["state"] in ("suspending", "resuming")
    (pid,) = until(lambda: workers(place))
    assert place.daemon is not None and os.listdir(f"{place.run}/suspend") == [key]
    if who == "nvcd":
        place.daemon.kill()
        delay(driver, step, 0)
        started(place, driver)
    elif who == "worker":
        os.kill(pid, signal.SIGKILL)
        delay(driver, step, 0)
    else:
        one.signal(signal.SIGKILL)
        eventually(place, lambda found: not any(each["running"] for each in found["slices"]))
        until(lambda: not os.listdir(f"{place.run}/suspend"))
        return
    eventually(place, lambda found: found["slices"] and found["slices"][0]["suspension"] == "running")
    assert one.tells()
    cli(place, launcher, "suspend", key)
    cli(place, launcher, "resume", key)
    assert one.tells()


@pytest.mark.nightly
def test_a_number_that_is_given_again(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """A process ends while the driver waits for another of its slice: who has its number then is left alone."""
    one, other = holder(100, spare=2000, before=TWICE), holder(100, before=NUMBERED)
    found = eventually(place, lambda found: found["memory"] and len(found["memory"][0]["pids"]) == 2)
    (number,) = set(found["memory"][0]["pids"]) - {one.tenant}
    delay(driver, "lock", 6000)
    key = shown(place, launcher, str(one.tenant))["key"]
    ask(place, "suspend", key=key)
    until(lambda: workers(place))
    os.kill(number, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{number}"))
    other.send(number)
    other.begun()
    assert other.tenant == number and other.tells() and state(place, launcher, one) == "suspending"
    eventually(place, lambda found: any(each["suspension"] == "suspended" for each in found["slices"]))
    assert other.tells() and state(place, launcher, other) == "running"
    delay(driver, "lock", 0)
    cli(place, launcher, "resume", key)
    assert one.tells()


@pytest.mark.nightly
def test_a_call_that_does_not_return(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """Its process is stopped meanwhile: it is tried again until it runs, and told once."""
    one = holder(100)
    key = shown(place, launcher, str(one.tenant))["key"]
    eventually(place, lambda found: found["memory"] and found["memory"][0]["pids"])
    delay(driver, "lock", 600_000)
    ask(place, "suspend", key=key)
    until(lambda: workers(place))
    one.signal(signal.SIGSTOP)
    eventually(place, lambda found: found["slices"][0]["suspension"] == "failed")
    delay(driver, "lock", 0)
    assert "lock, which does not return" in cli(place, launcher, "show", key).stdout
    assert place.daemon is not None
    until(lambda: place.daemon and "the process is stopped" in place.daemon.said())
    one.signal(signal.SIGCONT)
    eventually(place, lambda found: found["slices"][0]["suspension"] == "running")
    assert place.daemon.said().count("the process is stopped") == 1
    assert one.tells()


def test_a_suspended_slice_outlives_nvcd(place: Place, driver: str, launcher: str, holder: Start) -> None:
    one = holder()
    cli(place, launcher, "suspend", str(one.tenant))
    assert place.daemon is not None
    place.daemon.kill()
    assert state(place, launcher, one) == "suspended"
    said = run(*place.enter(launcher, f"--root={driver}", "doctor", "vgpu.suspension"), env=CLEAN_ENV, check=False)
    assert said.returncode == 1 and "failed" in said.stdout, said
    assert "nvcd cannot be reached, and suspended slices stay so" in said.stdout, said
    started(place, driver)
    assert ask(place)["slices"][0]["suspension"] == "suspended"
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()


def test_a_tenant_that_ends_suspended(place: Place, launcher: str, holder: Start) -> None:
    one = holder()
    cli(place, launcher, "suspend", str(one.tenant))
    one.signal(signal.SIGKILL)
    until(lambda: not os.listdir(f"{place.run}/suspend"))


def idle_suspend(place: Place, launcher: str, driver: str, value: str) -> None:
    policy = place.enter(launcher, f"--root={driver}", "vgpu", "policy", "0")
    run(*policy, f"--idle-suspend={value}", env=CLEAN_ENV)
    assert (f"idle-suspend {value}" in run(*policy, env=CLEAN_ENV).stdout) == (value != "off")


@pytest.mark.usefixtures("served")
def test_an_idle_slice_leaves_and_comes_back(place: Place, driver: str, launcher: str, holder: Start) -> None:
    one = holder()
    found = shown(place, launcher, str(one.tenant))
    key, whose = found["key"], f"slice {found['key']} ({found['name']})"
    idle_suspend(place, launcher, driver, "1s")
    for _ in range(2):
        eventually(place, lambda found: found["slices"][0]["suspension"] == "suspended")
        assert shown(place, launcher, key)["suspension"]["why"] == "idle"
        assert one.tells()
    daemon = place.daemon
    assert daemon is not None and f"{whose}: it is resumed, as it is used" in daemon.said()
    waits = re.compile(rf"{re.escape(whose)}: its programs waited for (\d+\.\d) s")
    until(lambda: len(waits.findall(daemon.said())) == 2)
    counts = shown(place, launcher, key)["suspensions"]
    assert counts["wakes"] == counts["resumes"] == 2 and counts["waitedNs"] >= counts["longestNs"] > 0
    found = re.findall(rf'nvc_slice_(\w+){{[^}}]*slice="{key}"}} (.*)', get(place, "/metrics"))
    figures = {name: float(number) for name, number in found}
    assert figures["wake_seconds_count"] == figures["resumes_total"] == 2 and figures["suspends_total"] >= 2
    longest = figures["wake_longest_seconds"]
    assert round(longest, 1) == max(map(float, waits.findall(daemon.said())))
    assert figures["wake_seconds_sum"] >= longest
    idle_suspend(place, launcher, driver, "off")
    eventually(place, lambda found: found["slices"][0]["suspension"] == "running")


@pytest.mark.usefixtures("served")
def test_a_rule_of_one_slice(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """Its GPU has none."""
    one, other = holder(100), holder(100)
    cli(place, launcher, "set", str(one.tenant), "--idle-suspend=1s")
    eventually(place, lambda found: {each["suspension"] for each in found["slices"]} == {"suspended", "running"})
    assert state(place, launcher, other) == "running" and one.tells()
    cli(place, launcher, "set", str(one.tenant), "--idle-suspend=off")
    assert shown(place, launcher, str(one.tenant))["idleSuspend"] == "off"


@pytest.mark.driver(gpus=1, model="t4", memory=8 * GIB)
@pytest.mark.usefixtures("served")
def test_idle_slices_make_room(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """One fits at a time."""
    place.constants["nvc.daemon.suspend.idle.STAY_LEAST"] = SECOND
    one = holder(5000)
    idle_suspend(place, launcher, driver, "1s")
    eventually(place, lambda found: found["slices"][0]["suspension"] == "suspended")
    other = holder(5000)
    assert one.tells() and other.tells()


@pytest.mark.driver(gpus=1, model="t4", memory=8 * GIB)
@pytest.mark.usefixtures("served")
def test_an_allocation_makes_room(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """Three slices, and room for two: an idle one leaves, and all are served."""
    idle = [holder(3000), holder(3000)]
    idle_suspend(place, launcher, driver, "1h")
    one = holder(100, spare=4000)
    until(lambda: one.more(2400) == 0)  # from when nvcd has told the slice that it makes room
    assert sorted(state(place, launcher, each) for each in idle) == ["running", "suspended"]
    assert state(place, launcher, one) == "running"
    assert place.daemon is not None and "for an allocation: there is room" in place.daemon.said()
    assert all(each.tells() for each in (*idle, one))


@pytest.mark.driver(gpus=1, model="t4", memory=8 * GIB)
@pytest.mark.usefixtures("served")
def test_an_allocation_that_cannot_fit(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """What is in the way cannot be saved: the error is the driver's, as before."""
    one, other = holder(100, spare=7000), holder(5000, "managed")
    key = shown(place, launcher, str(one.tenant))["key"]
    assert one.more(5000) == 2
    idle_suspend(place, launcher, driver, "1h")
    assert place.daemon is not None
    until(lambda: one.more(5000) == 2 and place.daemon and "are missing" in place.daemon.said())
    assert re.search(rf"slice {key} \(.*\): 5000 MiB of GPU-.*no slice can be suspended", place.daemon.said())
    assert state(place, launcher, other) == "running" and one.tells() and other.tells()


def test_a_record_that_cannot_be_written(place: Place, launcher: str, holder: Start) -> None:
    """An nvcd after this one would not know that the slice is suspended, so it stays; with room it goes."""
    one, records = holder(100), "/run/nvc/suspend"
    os.makedirs(f"{place.run}/suspend", mode=0o700, exist_ok=True)
    assert place.daemon is not None
    there = "nsenter", f"--mount=/proc/{place.daemon.pid}/ns/mnt"
    run(*there, "mount", "-t", "tmpfs", "-o", "nr_inodes=1,mode=0700", "none", records)
    try:
        done = cli(place, launcher, "suspend", str(one.tenant), check=False)
        assert done.returncode == 1 and "no space left" in done.stderr.lower(), done.stderr
        assert "it is not suspended" in done.stderr and records in done.stderr
        assert state(place, launcher, one) == "running" and one.tells()
    finally:
        run(*there, "umount", records)
    cli(place, launcher, "suspend", str(one.tenant))
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()

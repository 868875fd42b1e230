"""Commands beside a process whose execve(2) never ends: they end soon, and say whom they could not ask."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, PATIENCE, run
from support.configure import Configure
from support.device_cgroup import Group
from support.held import APART, Hold

from nvc.doctor.host.nvcd import unreached
from nvc.doctor.host.system import scopes
from nvc.kernel import LinuxKernel, processes


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is remembered from another test."""
    monkeypatch.setattr(processes, "looks", processes.Looks())


def test_check(scratch: str, hold: Hold, launcher: str) -> None:
    one = hold(f"{scratch}/file", *APART)
    done = run(launcher, "vgpu", "check", str(one.pid), env=CLEAN_ENV, check=False, timeout=PATIENCE)
    assert done.returncode == 1 and f"not covered  /proc/{one.pid}/maps: no answer" in done.stdout, done.stderr


def test_doctor_of_its_container(scratch: str, hold: Hold, launcher: str) -> None:
    one = hold(f"{scratch}/file", *APART)
    words = ("doctor", "--container", str(one.pid))
    done = run(launcher, *words, env=CLEAN_ENV, check=False, timeout=PATIENCE)
    assert f"pid {one.pid}: no answer: a file system holds its execve(2)" in done.stdout, done.stderr


def test_one_that_is_called_nvcd(scratch: str, hold: Hold) -> None:
    one = hold(f"{scratch}/file", *APART, name="nvcd")
    (found,) = [fact for fact in unreached(LinuxKernel()) if fact.mute == one.pid]
    assert "no answer" in found.seen[0] and not found.hidden


def test_doctor_names_its_scope(scratch: str, hold: Hold) -> None:
    name = f"nvc-held-{os.getpid()}.scope"
    with Group.make(2, name) as group:
        one = hold(f"{scratch}/file", *APART)
        group.enter(one.pid)
        try:
            found, silent = scopes(LinuxKernel())
        finally:
            one.end()
    assert name not in found and f"/proc/{one.pid}/root: no answer" in silent[name]


def test_configure(scratch: str, hold: Hold, sim_root: Callable[..., str], launcher: str) -> None:
    one = hold(f"{scratch}/file", *APART)
    said = Configure(launcher, sim_root()).refusal(one.pid, scratch, timeout=PATIENCE)
    assert f"/proc/{one.pid}/root: no answer: a file system holds its execve(2)" in said

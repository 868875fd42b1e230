"""`nvc-cli vgpu run`: its slices are called by their command, or as `--name` says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE
from support.vgpu import cli, listed

from nvc.base.errors import InputError
from nvc.slices.store.programs import check_name

pytestmark = pytest.mark.usefixtures("shim")


@pytest.fixture
def start(launcher: str, sim_root: Callable[..., str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs with a slice that wait for the end of their input."""
    root, started = sim_root(gpus=1), []

    def one(*words: str) -> subprocess.Popen[str]:
        command = [launcher, f"--root={root}", "vgpu", "run", "--memory=1g", *words]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=CLEAN_ENV,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.communicate(timeout=PATIENCE)


def ready(process: subprocess.Popen[str]) -> int:
    """The program's process id, once it runs."""
    assert process.stdout is not None
    return int(process.stdout.readline())


WAIT = ("sh", "-c", "echo $$; read line")


@pytest.fixture
def own(scratch: str) -> str:
    """A command that nobody else on this machine has."""
    path = f"{scratch}/train-{os.getpid()}"
    shutil.copy(shutil.which("sh") or "", path)
    return path


def test_by_command(launcher: str, start: Any, own: str) -> None:
    """A second one of the same command has a number, which stays when the first one ends."""
    base = os.path.basename(own)
    first = start("--", own, "-c", "echo $$; read line")
    pids = [ready(first), ready(start("--", own, "-c", "echo $$; read line"))]
    assert [listed(launcher, pid)["name"] for pid in pids] == [base, f"{base}-2"]
    assert json.loads(cli(launcher, "show", base, "--format=json").stdout)["pids"] == [pids[0]]
    first.communicate(timeout=PATIENCE)
    assert listed(launcher, pids[1])["name"] == f"{base}-2"
    assert ready(start("--", own, "-c", "echo $$; read line")) and cli(launcher, "show", base)


def test_by_name(launcher: str, start: Any) -> None:
    name = f"tuning-{os.getpid()}"
    first = start(f"--name={name}", *WAIT)
    pid = ready(first)
    one = listed(launcher, pid)
    assert (one["name"], one["program"], one["container"], one["state"]) == (name, name, None, "running")
    cli(launcher, "set", name, "--memory=2g")
    assert f"program    {name}" in cli(launcher, "show", name).stdout
    second = start(f"--name={name}", *WAIT)
    _, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1 and f"--name: {name}: another slice is called so" in said
    assert "vgpu ls" in said
    first.communicate(timeout=PATIENCE)
    assert ready(start(f"--name={name}", *WAIT)), "it is free again"


def test_names_that_cannot_be(start: Any) -> None:
    for name in ("4242", "a b", "../x", "-x", "x" * 64, "\x1b"):
        with pytest.raises(InputError, match="want up to 63 letters"):
            check_name(name)
    for name in ("", "../x"):
        process = start(f"--name={name}", "true")
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1 and "want up to 63 letters" in said


def test_slices_that_are_gone_are_left_out(launcher: str, start: Any) -> None:
    """And come last where they are asked for. A program's entry stays where nvc-cli was killed."""
    living = ready(start("--", *WAIT))
    name = f"killed-{os.getpid()}"
    process = start(f"--name={name}", *WAIT)
    pid = ready(process)
    process.kill()
    process.communicate(timeout=PATIENCE)
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(pid, 0)  # it dies with nvc-cli
    names = lambda *words: [  # noqa: E731
        (one["name"], one["state"])
        for one in json.loads(cli(launcher, "ls", "--format=json", *words).stdout)["slices"]
    ]
    assert (
        (name, "gone") not in names() and (name, "gone") in names("--all") and (name, "gone") in names("-a")
    )
    states = [state for _, state in names("-a")]
    assert living and states == sorted(states, reverse=True)
    assert name not in cli(launcher, "ls").stdout and name in cli(launcher, "ls", "-a").stdout
    assert name not in cli(launcher, "top", "--once").stdout
    assert name in cli(launcher, "top", "--once", "-a").stdout
    assert "no process has this slice" in cli(launcher, "set", name, "--memory=1g").stderr
    cli(launcher, "rm", name)

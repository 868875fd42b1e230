"""The runtime directory, where somebody else has made it: the kubelet does for a hostPath, systemd for a socket."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import REPO, run
from support.cdi_claimed import UID, Claimed
from support.cdi_world import World
from support.replay import Starts

from nvc.base.errors import InitializationError
from nvc.base.rundir import SYSTEM, runtime_directory
from nvc.kernel import LinuxKernel
from nvc.slices.store import claims


@pytest.fixture(autouse=True)
def _open() -> None:
    os.chmod(SYSTEM, 0o755)


@pytest.fixture
def claimed(scratch: str, stage: str, sim_root: Callable[..., str], shim: str) -> Iterator[Claimed]:
    yield Claimed(World(scratch, stage, sim_root(gpus=2)))
    claims.release(LinuxKernel(), UID)


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_nobody_else_reaches_the_ledger_of_a_claim(claimed: Any) -> None:
    path = f"{claimed.entry.directory}/ledger/ledger"
    assert _mode(path) == 0o666 and _mode(SYSTEM) == 0o700
    done = run("setpriv", "--reuid=65534", "--clear-groups", "head", "-c1", path, check=False)
    assert "Permission denied" in done.stderr


def test_a_start_without_an_interpreter_closes_it(starts: Starts) -> None:
    starts.start(starts.whole)
    os.chmod(SYSTEM, 0o755)
    starts.start(starts.alone)
    assert _mode(SYSTEM) == 0o700


@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o700), (0, 0o1777), (0, 0o775)])
def test_what_others_could_write_is_refused(owner: int, mode: int) -> None:
    os.chmod(SYSTEM, mode)
    os.chown(SYSTEM, owner, 0)
    with pytest.raises(InitializationError, match="not a directory of this user alone") as found:
        runtime_directory()
    assert found.value.doctor == "inventory"
    assert str(found.value.hint).startswith("remove " if owner else "chmod go-w "), "records of slices are in it"
    assert _mode(SYSTEM) == mode


def test_directories_below_keep_their_modes() -> None:
    """Programs of any user connect to nvcd in one of them."""
    path = runtime_directory("nvcd", "tenant")
    os.chmod(path, 0o755)
    assert runtime_directory("nvcd", "tenant") == path and _mode(path) == 0o755


def test_systemd_makes_it_private_before_a_socket_in_it() -> None:
    with open(f"{REPO}/packaging/systemd/nvcd.socket", encoding="ascii") as unit:
        (before,) = [line.split("=", 1)[1].split() for line in unit if line.startswith("ExecStartPre=")]
    run(*before)
    assert _mode(SYSTEM) == 0o700

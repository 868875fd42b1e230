"""What the driver's MPS says: the state of a server, its clients, and who caused a fault; and what nvcd keeps."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.damage import RECORD

from nvc.daemon.io.loop import Loop
from nvc.daemon.mps.answers import LOG_MAX, culprit, server_status
from nvc.daemon.mps.records import MpsServer, read, write
from nvc.daemon.mps.servers import Servers
from nvc.daemon.mps.shared import SharedServers, Watched
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import RegistryError
from nvc.model.slices.policy import MPS_CLIENTS
from nvc.slices.store.admission import Sharer, check_clients

LOG = "[2026-11-22 10:00:00.123 Server {}] Client {{PID: {}, Context: 1}} encountered a fatal GPU error.\n"


@pytest.mark.parametrize(
    ("text", "state", "clients"),
    [
        ("ACTIVE\n12\n345\n", "ACTIVE", (12, 345)),
        ("Fault\n", "FAULT", ()),
        ("", "", ()),
        ("Cannot find MPS control daemon process\n", "CANNOT FIND MPS CONTROL DAEMON PROCESS", ()),
        ("\x1b[2J\n" + "9" * 40, "[2J", ()),
    ],
)
def test_status(text: str, state: str, clients: tuple[int, ...]) -> None:
    found = server_status(text)
    assert found.clients == clients and found.state.endswith(state)
    assert found.faulted == (state == "FAULT")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOG.format(7, 12), 12),
        ("[Server 7] New client 12 connected\n", 0),
        ("[Server 7] Client {PID: 123, Context: 1} encountered a fatal GPU error.\n", 0),  # not 12
        ("[Server 7] Fatal exception of one of 12, 345\n", 0),
        ("", 0),
    ],
)
def test_the_culprit(scratch: str, text: str, found: int) -> None:
    path = os.path.join(scratch, "server.log")
    before = LOG.format(7, 345)  # of an earlier server
    with open(path, "w", encoding="ascii") as log:
        log.write(before + text)
    assert culprit(path, len(before), frozenset((12, 345))) == found
    with open(path, "w", encoding="ascii") as log:  # it was emptied
        log.write(text)
    assert culprit(path, len(before + text) + 1, frozenset((12, 345))) == found
    assert culprit(f"{path}.gone", 0, frozenset((12,))) == 0


def test_a_log_that_is_emptied_is_read_from_its_beginning(scratch: str) -> None:
    """Its server's lines were behind those of an earlier one, and are not any more."""
    servers = Servers(Loop(), LinuxKernel(), print, str)
    one = servers.servers["shared", "GPU-1"] = MpsServer("shared", "GPU-1", 100, 0, scratch, 0)
    one.pid, one.start, one.seen = os.getpid(), start_of("/proc/self"), 1000
    os.mkdir(f"{scratch}/log")
    with open(one.log, "w", encoding="ascii") as log:
        log.write("x" * (LOG_MAX + 1))
    servers.look(set(), 0)
    assert (os.path.getsize(one.log), one.seen) == (0, 0)


def test_no_more_slices_than_a_server_takes_clients() -> None:
    others = tuple(Sharer(str(number), 0, 1, 0, server="GPU-1") for number in range(MPS_CLIENTS))
    check_clients("GPU-1", others[1:])
    check_clients("GPU-2", others)
    with pytest.raises(RegistryError, match="60 slices share its MPS server"):
        check_clients("GPU-1", others)


@pytest.mark.parametrize("damage", RECORD)
def test_a_record_that_was_spoiled_is_an_error(scratch: str, damage: str) -> None:
    """And not none: a server may run there."""
    write(MpsServer("a", "GPU-1", 3, 4, scratch, 0, 1, 2))
    assert read(scratch) == [1, 2, 3, 4]
    RECORD[damage](f"{scratch}/about")
    with pytest.raises((OSError, ValueError)):
        read(scratch)


def test_an_answer_about_a_server_that_has_ended_forgets_none_of_its_clients() -> None:
    """Who asked before it was killed hears that there is no such server; its end is told with whom it had."""
    shared: Any = SharedServers.__new__(SharedServers)
    watched = Watched(0)
    for text, left in (("INVALID\n", {7: "key"}), ("", {7: "key"}), ("ACTIVE\n", {})):
        watched.clients = {7: "key"}
        shared._answered(None, watched, text)
        assert watched.clients == left

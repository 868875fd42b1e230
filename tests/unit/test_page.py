"""The live page: what it is told of slices and GPUs, who may ask, and how what it knows is kept."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from support import GIB

from nvc.daemon.audit.accountant import Balance, User
from nvc.daemon.audit.nvml_client import DeviceSeen
from nvc.daemon.web import feed, http, rows
from nvc.daemon.web.server import Server, merge
from nvc.discovery.containers import ContainerName
from nvc.model.slices.entry import Entry, EntryDevice
from nvc.model.slices.ledger import Account
from nvc.model.slices.suspension import SUSPENDED, Saved, Suspension
from nvc.slices.policy.utilization import Received
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

GPU = "GPU-00000000-1111-2222-3333-444444444440"
DEVICE = SliceDeviceStatus(
    GPU, "0", "NVIDIA H100", 80 * GIB, 8 * GIB, 0, cores=0, weight=3, policy=2, entitlement=0.75, kept=True
)
ENTRY = Entry("a-1-2-3", "", 7, 1, "", "/lib", 100, (EntryDevice(GPU, "0", 80 * GIB, "NVIDIA H100"),))
TENANT = SliceStatus(
    ENTRY, "a", (7,), (DEVICE,), (), name="shop/web/main", container=ContainerName("docker", "ab" * 32, "web")
)


def test_what_it_does_now() -> None:
    """In the words of `vgpu top`; what nobody knows is null."""
    balance = Balance("a-1-2-3", GPU, "0", 8 * GIB, 2 * GIB, 3 * GIB, (7,))
    now = rows.slice_now(TENANT, DEVICE, Received(0.51239, 0.25, 0), balance, 5 * GIB, 4)
    assert now == ["waiting", 0.512, 0.25, 3 * GIB, 5 * GIB, 4]
    assert rows.slice_now(TENANT, DEVICE, None, None, 0, None) == ["idle", None, None, None, None, None]
    denied = DEVICE.replace(denied=True)
    assert rows.slice_now(TENANT, denied, None, balance, 0, 0)[0] == "denied"


def test_what_is_in_the_host_s_memory() -> None:
    """It is not on the GPU: only what NVML shows there is, as of a process that came later."""
    away = Suspension("a-1-2-3", SUSPENDED, 1, (Saved(70, 1, GPU, 3 * GIB),))
    tenant = TENANT.replace(suspension=away)
    balance = Balance("a-1-2-3", GPU, "0", 8 * GIB, 3 * GIB, GIB, (80,))
    assert rows.slice_now(tenant, DEVICE, None, balance, 0, 0)[3] == GIB
    accounts = (Account(0, 5, "python", (2 * GIB,)), Account(1, 6, "later", (GIB,)))
    found = rows.processes("a", (GPU,), accounts, (User(80, 1, 6, "a", GPU, GIB),), {}, away)
    assert [one["used"][GPU] for one in found] == [0, GIB]


def test_a_gpu() -> None:
    seen = DeviceSeen(GPU, 80 * GIB, 9 * GIB, 40, 3, 0, ())
    had = {(GPU, 12): (0.25, 3), (GPU, 99): (0.5, 1)}
    row = rows.gpu_row(0, "0", "H100", "weight", "by the driver", seen, [[12, "<b>", GIB]], had, GPU)
    assert (row["memory"], row["used"], row["busy"], row["strangersHad"]) == (80 * GIB, 9 * GIB, 40, 0.25)
    row = rows.gpu_row(0, "0", "H100", "", "", None, [], {}, GPU)
    assert [row[name] for name in ("memory", "used", "busy", "strangersHad")] == [None] * 4


def test_processes() -> None:
    """Those in the ledger, and those that only NVML sees; a number inside leads to the one on the host."""
    accounts = (Account(0, 5, "python", (GIB,)), Account(1, 6, "idle", (0,)))
    users = (User(70, 1, 5, "a", GPU, GIB), User(80, 1, 9, "a", GPU, -1), User(90, 1, 5, "b", GPU, 1))
    had = {(GPU, 70): (0.5, 12)}
    first, second, third = rows.processes("a", (GPU,), accounts, users, had)
    assert first == {
        "pid": 70, "inside": 5, "name": "python", "used": {GPU: GIB}, "had": {GPU: 0.5}, "switches": 12,
        "shim": True,
    }  # fmt: skip
    assert second["pid"] is None and second["had"] == {}
    assert (third["pid"], third["name"], third["used"], third["shim"]) == (80, "?", {GPU: 0}, False)


def test_the_name_of_a_stranger_is_one_line() -> None:
    """It turns no other text around."""
    done = threading.Event()
    stranger = threading.Thread(target=done.wait)
    stranger.start()
    with open(f"/proc/self/task/{stranger.native_id}/comm", "wb") as comm:
        comm.write("\x1b\u202e<b>\nok".encode())
    try:
        assert feed._name_of(stranger.native_id or 0) == "??<b>?ok"
    finally:
        done.set()
        stranger.join()


def test_only_what_has_changed() -> None:
    assert rows.changed({"a": 1, "b": [2]}, {"a": 1, "b": [3], "c": None}) == {"b": [3]}
    known: dict[str, Any] = {}
    merge(known, {"at": 1, "gpus": {"g": {"index": "0"}}, "slices": {"s": {}}, "now": {"s": [1]}, "gone": []})
    merge(known, {"at": 2, "gpus": {}, "slices": {}, "now": {"s": [2]}, "gone": [], "processes": {"s": []}})
    assert known["now"] == {"s": [2]} and known["at"] == 2 and known["gpus"] == {"g": {"index": "0"}}
    merge(known, {"at": 3, "gpus": {}, "slices": {}, "now": {}, "gone": ["s"], "processes": {}})
    assert known["slices"] == known["now"] == {} and known["processes"] == {}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:9395", "localhost", "LOCALHOST:80", "[::1]", "[::1]:9395", "10.0.0.7:1"],
)
def test_an_address_can_be_named(host: str) -> None:
    assert http.may_name(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9395", "127.0.0.1.evil.example", "localhost.evil:1", "127.0.0.1:x", ":1"],
)
def test_a_name_of_others_cannot(host: str) -> None:
    """It may lead here by their name server, and then their pages could read this one."""
    assert not http.may_name(host)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\n\r\n", 421),
        (b"POST /state HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/2\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nmore", 413),
        (b"GET /" + b"a" * http.REQUEST_MAX, 413),
        (b"\xff\xfe\r\n\r\n", 400),
    ],
)
def test_requests_that_are_refused(data: bytes, status: int) -> None:
    request = http.parsed(data)
    assert request is not None and request.refused == status
    answer = http.reply(status).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ") and "default-src 'none'" in answer


def test_a_request() -> None:
    head = b"GET /state?open=a-1,b-2,," + b"x" * 200 + b" HTTP/1.1\r\nhost: localhost\r\n"
    head += b"Authorization: Bearer t\r\n"
    assert http.parsed(head) is None
    request = http.parsed(head + b"\r\n")
    assert request is not None and not request.refused
    assert request.path == "/state" and request.opened == ("a-1", "b-2")
    assert request.may_see("t") and not request.may_see("u") and not request.may_see("tt")
    assert not http.Request().may_see("t")


def test_nothing_is_asked_while_nobody_looks() -> None:
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    with ours, theirs, listener:
        server = Server(ours, listener, {}, "t")
        theirs.setblocking(False)
        server._ask(1000.0)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        assert server._pause() is None  # it sleeps until somebody comes
        server.selector.close()

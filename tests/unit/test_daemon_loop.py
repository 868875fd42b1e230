"""nvcd's loop and its listeners, with real descriptors: what is not looked at costs nothing."""

from __future__ import annotations

import gc
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.io.services import CONNECTIONS, RETRY, Service
from nvc.daemon.io.watch import concerns_devices, exits_of


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.epoll.close()


def run_for(loop: Loop, nanoseconds: int) -> None:
    loop.once(time.monotonic_ns() + nanoseconds, lambda now: loop.stop())
    loop.run()
    loop.stopped = False


@pytest.fixture
def listener(tmp_path: object) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(f"{tmp_path}/socket")
        made.listen(128)
        made.setblocking(False)
        yield made


def connect(listener: socket.socket) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.connect(listener.getsockname())
    return made


def test_who_is_paused_and_hangs_up(loop: Loop) -> None:
    """epoll tells of that even where nothing is asked for."""
    ours, theirs = socket.socketpair()
    called: list[int] = []
    with ours, theirs:
        loop.add(ours.fileno(), called.append)
        loop.pause(ours.fileno(), True)
        theirs.send(b"x")
        theirs.close()
        run_for(loop, SECOND // 20)
        assert not called
        loop.handlers[ours.fileno()] = lambda now: loop.stop()
        loop.pause(ours.fileno(), False)
        loop.run()
        loop.pause(ours.fileno(), True)
        loop.remove(ours.fileno())  # while it is paused


def test_without_descriptors(loop: Loop, listener: socket.socket) -> None:
    """Who cannot be taken waits, without keeping the daemon busy, and is taken later."""
    service = Service(loop, listener, b"\n", lambda data, now: b"yes\n", False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(listener) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            before = loop.wakes
            run_for(loop, SECOND // 5)
            assert loop.wakes - before < 20
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.sendall(b"ask\n")
        while not select.select([client], [], [], 0)[0]:
            run_for(loop, SECOND // 5)
        assert client.recv(10) == b"yes\n" and not service.open


def test_an_answer_that_nobody_reads(loop: Loop, listener: socket.socket) -> None:
    """It is closed to make room, and what was to be sent later is not sent to another one."""
    gc.collect()  # no descriptor of another test becomes free meanwhile
    service = Service(loop, listener, b"\n", lambda data, now: bytes(1 << 22), False)
    clients = [connect(listener) for _ in range(CONNECTIONS + 2)]
    start = 1000 * SECOND
    for client in clients[:CONNECTIONS]:
        client.sendall(b"ask\n")
        service._accept(start)
        service._ready(list(service.open)[-1], start)
    oldest = next(iter(service.open))
    service._accept(start + 1)  # the oldest one's place
    assert oldest not in service.open and len(service.open) == CONNECTIONS
    service._accept(start + 2)  # the silent one's place, and the oldest one's number
    assert len(service.open) == CONNECTIONS
    assert service.open[oldest][2] == start + 2
    loop._timed(start + 2 + RETRY)
    clients[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        clients[-1].recv(1)
    for number in list(service.open):
        service._close(number)
    for client in clients:
        client.close()


@pytest.mark.parametrize("name", ["nvidia", "module", "pci", "drm", "net", "nvidia2"])
def test_which_events_are_of_devices(name: str) -> None:
    message = b"add@/devices/x\0ACTION=add\0SUBSYSTEM=" + name.encode() + b"\0SEQNUM=1\0"
    assert concerns_devices(message) == (name in ("nvidia", "module", "pci", "drm"))


def takes(program: bytes, event: bytes) -> bool:
    """What a classic filter says of an event: its few instructions, as the kernel reads them."""
    steps = [struct.unpack_from("=HBBI", program, 8 * place) for place in range(len(program) // 8)]
    place = value = 0
    while True:
        code, yes, no, number = steps[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from(">I", event, number)
        elif code == 0x15:
            place += yes if value == number else no
        else:
            return bool(number)


@pytest.mark.parametrize("count", [0, 1, 2, 250, 251])
def test_which_processes_are_heard_of(count: int) -> None:
    watched = frozenset(range(70000, 70000 + count))
    program = exits_of(watched)
    for pid in (69999, 70000, 70000 + count // 2, 70000 + count - 1, 70000 + count):
        for what in (1, 2, 0x80000000):
            event = bytes(36) + struct.pack("=IIQII", what, 0, 0, pid, pid)
            wanted = what == 0x80000000 and (pid in watched or count > 250)
            assert takes(program, event) == wanted, (pid, what)

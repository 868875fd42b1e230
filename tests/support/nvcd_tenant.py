"""A slice and one process in it, for tests of nvcd: run as a program, it obeys commands from its standard input.

It is what the shim is to nvcd: a process whose mount namespace shows the quota of its slice, and a connection.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time

from nvc.daemon.io.wire import DROP, FREE, GRANT, HELLO, MESSAGE, REFUSED, RELEASE, WANT, WELCOME
from support import PATIENCE
from support.locks import lock

LIBRARIES = "/mnt/lib"
PIDFD_GETFD = 438


def make_slice(devices: list[dict[str, object]]) -> str:
    """Register this process's mount namespace as a slice; its key is returned."""
    from nvc.kernel import private_mounts
    from nvc.slices.model import layout, ledger, quota
    from nvc.slices.model.quota import QuotaDevice
    from nvc.slices.store import process_info, registry
    from nvc.slices.store.registry import Entry, EntryDevice

    private_mounts()
    mount("-t", "tmpfs", "none", "/mnt")
    for name in ("nvc/ledger", "nvc/daemon"):
        os.makedirs(f"{LIBRARIES}/{name}")
    namespace = os.stat("/proc/self/ns/mnt").st_ino
    key = f"{namespace:x}-1-2-{os.getpid():x}"
    directory = f"{registry.base_directory()}/.{key}"
    os.makedirs(directory)
    quotas = tuple(QuotaDevice(**device) for device in devices)  # type: ignore[arg-type]
    fd = os.open(f"{directory}/quota", os.O_RDWR | os.O_CREAT, 0o644)
    quota.write(fd, quotas)
    os.close(fd)
    known = tuple(
        EntryDevice(device.uuid, str(number), 80 << 30, "NVIDIA H100")
        for number, device in enumerate(quotas)
    )
    start = process_info.start_of("/proc/self")
    entry = Entry(key, "", os.getpid(), start, "", LIBRARIES, int(time.time()), known)
    with open(f"{directory}/about", "w", encoding="ascii") as about:
        about.write(registry.text_of(entry))
    os.rename(directory, f"{os.path.dirname(directory)}/{key}")
    with open(f"{LIBRARIES}/nvc/ledger/ledger", "wb") as out:
        out.write(ledger.header())
        out.truncate(layout.LEDGER_SIZE)
    open(f"{LIBRARIES}/nvc/quota", "w", encoding="ascii").close()
    mount("--bind", f"{registry.base_directory()}/{key}/quota", f"{LIBRARIES}/nvc/quota")
    mount("--bind", registry.daemon_directory(), f"{LIBRARIES}/nvc/daemon")
    return key


def keep_books() -> None:
    """A ledger in which this process has a slot, as the shim's would."""
    from nvc.slices.model import layout, ledger

    place = f"{LIBRARIES}/{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"
    fd = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
    header = layout.LEDGER_HEADER.pack(
        layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, 1, 0, 0
    )
    assert len(header) == len(ledger.header())
    os.pwrite(fd, header + layout.SLOT_HEADER.pack(os.getpid(), 0, 0, b"tenant"), 0)
    os.truncate(fd, layout.LEDGER_SIZE)
    lock(fd, 0)  # the descriptor stays open


def mount(*words: str) -> None:
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", *words]) == 0, words


def connect() -> socket.socket:
    """A connection to nvcd that has said hello and was welcomed."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(PATIENCE)
    made.connect(f"{LIBRARIES}/nvc/daemon/socket")
    try:
        made.send(MESSAGE.pack(HELLO, 0, 0, bytes(16), 1, 0))
    except BrokenPipeError:
        pass  # it was refused already
    return made


def connect_elsewhere(count: int) -> int:
    child = os.fork()
    if child == 0:
        welcomes = 0
        try:
            os.makedirs("/mnt/empty", exist_ok=True)
            os.chdir(f"{LIBRARIES}/nvc/daemon")
            os.chroot("/mnt/empty")
            for _ in range(count):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
                    made.settimeout(PATIENCE)
                    made.connect("socket")
                    made.send(MESSAGE.pack(HELLO, 0, 0, bytes(16), 1, 0))
                    welcomes += receive(made)[0] == WELCOME
        finally:
            os._exit(welcomes)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def receive(connection: socket.socket) -> tuple[int, int, bytes, int]:
    """Kind, round, UUID and `a`; kind 0: it is closed."""
    try:
        data = connection.recv(64)
    except ConnectionResetError:
        data = b""
    if not data:
        return 0, 0, b"", 0
    kind, _, round, uuid, a, _ = MESSAGE.unpack(data)
    return kind, round, uuid, a


def send_lingering(connection: socket.socket, messages: list[bytes]) -> int:
    """The errno of the kernel; 0: they are sent."""
    with socket.socket() as listener, socket.socket() as made:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        listener.listen(1)
        made.connect(listener.getsockname())
        never_read.append(listener.accept()[0])
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                made.send(bytes(1 << 16))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))]
        try:
            for message in messages[:-1]:
                connection.send(message)
            connection.sendmsg(messages[-1:], rights)
        except OSError as error:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            return error.errno or -1
    return 0


never_read: list[socket.socket] = []


class Busy:
    """A program that always has work, and does what nvcd says; it connects again when nvcd has gone."""

    def __init__(self, uuids: list[bytes], drain: float) -> None:
        self.uuids, self.drain = uuids, drain
        self.held = dict.fromkeys(uuids, 0)
        self.turns = self.connections = self.alone = 0
        self.begins: list[int] = []  # of turns, nanoseconds
        self.ends: list[int] = []

    def run(self, end: float) -> None:
        while time.monotonic() < end:
            try:
                connection = connect()
                self.connections += 1
                self._talk(connection, end)
                connection.close()
            except OSError:
                self.alone += 1
                select.select([], [], [], 0.01)

    def _talk(self, connection: socket.socket, end: float) -> None:
        connection.setblocking(False)
        for uuid in self.uuids:
            connection.send(MESSAGE.pack(WANT, 0, 0, uuid, 0, 0))
        began: dict[bytes, int] = {}
        due: dict[bytes, tuple[int, int]] = {}  # when a lease ends, and its number
        while (now := time.monotonic()) < end:
            first = min((at for at, _ in due.values()), default=0) / 1e9 or end
            if not select.select([connection], [], [], max(0.0, min(first, end) - now))[0]:
                for uuid, (at, round) in tuple(due.items()):
                    if time.monotonic_ns() >= at:
                        self._release(connection, uuid, round, began, due)
                continue
            kind, round, uuid, length = receive(connection)
            if kind in (0, REFUSED):
                break
            if kind in (FREE, GRANT):
                began[uuid] = time.monotonic_ns()
                self.turns += 1
                self.begins.append(began[uuid])
                if length:
                    due[uuid] = began[uuid] + length, round
            elif kind == DROP and uuid in began:
                self._release(connection, uuid, round, began, due)
        for uuid, since in began.items():
            self.held[uuid] += time.monotonic_ns() - since

    def _release(
        self,
        connection: socket.socket,
        uuid: bytes,
        round: int,
        began: dict[bytes, int],
        due: dict[bytes, tuple[int, int]],
    ) -> None:
        """At the end of a lease's length, or when told to."""
        if self.drain:
            select.select([], [], [], self.drain)
        now = time.monotonic_ns()
        connection.send(MESSAGE.pack(RELEASE, 0, round, uuid, 0, 0))
        self.held[uuid] += now - began.pop(uuid)
        self.ends.append(now)
        due.pop(uuid, None)


def main() -> None:
    devices = json.loads(sys.argv[1])
    key = make_slice(devices)
    from nvc.slices.model.quota import uuid_bytes

    uuids = [uuid_bytes(device["uuid"]) for device in devices]
    kept: list[socket.socket] = []
    answer({"key": key, "pid": os.getpid()})
    for line in sys.stdin:
        command, *words = json.loads(line)
        if command == "busy":  # until when, seconds that draining takes
            busy = Busy(uuids, words[1])
            busy.run(words[0])
            held = [busy.held[uuid] for uuid in uuids]
            found = {"held": held, "turns": busy.turns, "connections": busy.connections}
            answer(found | ({"begins": busy.begins, "ends": busy.ends} if words[2:] else {}))
        elif command == "keep books":
            keep_books()
            answer(None)
        elif command == "connect":
            kept.append(connect())
            answer(receive(kept[-1])[0])
        elif command == "descriptor":  # of the last connection
            answer(kept[-1].fileno())
        elif command == "take":  # another process's connection: its pid and descriptor
            process = os.pidfd_open(words[0])
            kept.append(socket.socket(fileno=ctypes.CDLL(None).syscall(PIDFD_GETFD, process, words[1], 0)))
            os.close(process)
            kept[-1].settimeout(PATIENCE)
            answer(None)
        elif command == "connections":  # so many; how many were welcomed, and not
            kinds = []
            for _ in range(words[0]):
                kept.append(connect())
                kinds.append(receive(kept[-1])[0])
            answer([kinds.count(WELCOME), len(kinds) - kinds.count(WELCOME)])
        elif command == "send":  # a message's fields
            kind, round, place, a, b = words
            kept[-1].send(MESSAGE.pack(kind, 0, round, uuids[place], a, b))
            answer(None)
        elif command == "raw":
            kept[-1].send(bytes.fromhex(words[0]))
            answer(None)
        elif command == "lingering":  # messages, the last with a descriptor whose last close takes a minute
            messages = [bytes.fromhex(word) for word in words]
            answer(send_lingering(kept[-1], messages))
        elif command == "receive":
            kind, round, _, a = receive(kept[-1])
            while kind == WELCOME:  # who waits hears it each second
                kind, round, _, a = receive(kept[-1])
            answer([kind, round, a])
        elif command == "flood":  # until when: as many messages as are taken
            count = 0
            kept[-1].setblocking(False)
            message = MESSAGE.pack(WANT, 0, 0, uuids[0], 0, 0)
            while time.monotonic() < words[0]:
                try:
                    kept[-1].send(message)
                    count += 1
                except BlockingIOError:
                    select.select([], [kept[-1]], [], 0.1)
                except OSError:
                    break
            answer(count)
        elif command == "knock":  # until when, and how many at least: connections that are closed at once
            count = 0
            while time.monotonic() < words[0] or count < words[1]:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as made:
                    if made.connect_ex(f"{LIBRARIES}/nvc/daemon/socket") == 0:
                        count += 1
            answer(count)
        elif command == "elsewhere":  # connections of a process with another root; how many are welcomed
            answer(connect_elsewhere(words[0]))
        elif command == "child":  # its pid; it has all descriptors
            child = os.fork()
            if child == 0:
                signal.pause()
            answer(child)
        elif command == "close":
            for one in kept:
                one.close()
            kept.clear()
            answer(None)


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

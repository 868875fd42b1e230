"""What the kernel tells by itself: processes that end, devices that come and go.

The process connector needs CAP_NET_ADMIN, so it is listened to in a process that has nothing else; the daemon has
other rights, and not that one. Without it nvcd looks once a second, and says so. The sockets are pyroute2's; what
comes through them is read here. A busy host has thousands of processes that begin and end in a second: a filter in
the kernel keeps all from us but those that are watched.

To the daemon it writes lines: `exit PID` of those that are watched, `device`, and `problem TEXT`. From it, it reads
lines `watch PID PID ...`, each in place of the last.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from nvc.base.errors import one_line
from nvc.daemon.io import helper
from nvc.daemon.io.loop import Loop, received
from nvc.kernel import Kernel, privileges

EXIT = 0x80000000  # of enum proc_cn_event (linux/cn_proc.h)
_WHAT = struct.Struct("<I")
_WHAT_OFFSET = 36  # behind struct nlmsghdr and struct cn_msg
_PROCESS = struct.Struct("<II")  # its thread and process number
_PROCESS_OFFSET = 52
_STEP = struct.Struct("=HBBI")
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
_SUBSYSTEMS = (b"nvidia", b"module", b"pci", b"drm")
FILTERED_MAX = 250  # processes: a jump of a filter is one byte; of more, each end is looked at here
LINE_MAX = 1 << 16


def start(kernel: Kernel) -> tuple[int, socket.socket]:
    """The watching process's id, and the socket to it. Called while this process still has its rights."""

    def work(channel: socket.socket, parent: int) -> None:
        helper.confined(kernel, privileges.mask(privileges.NET_ADMIN), parent)
        _serve(channel)

    return helper.start(socket.SOCK_SEQPACKET, work, "nvcd-watch")


def _serve(channel: socket.socket) -> None:
    sockets: list[Any] = []
    for make in (_processes, _devices):
        try:
            sockets.append(make())
        except Exception as error:  # of pyroute2's making, or for want of a right
            sockets.append(None)
            channel.send(f"problem {make.__name__[1:]}: {one_line(error)}".encode())
    processes, devices = sockets
    watched: frozenset[int] = frozenset()
    listening = True
    while True:
        waiting = [channel, *(one.fileno() for one in sockets if one is not None)]
        ready = select.select(waiting, [], [])[0]
        if channel in ready:
            data = channel.recv(LINE_MAX)
            if not data:
                return
            watched = frozenset(int(word) for word in data.split()[1:])
            if processes is not None:
                _filter(processes.fileno(), exits_of(watched))
                if bool(watched) != listening:
                    listening = bool(watched)
                    _tell(processes, listening)
        if devices is not None and devices.fileno() in ready:
            if concerns_devices(_take(devices)):
                channel.send(b"device")
        if processes is not None and processes.fileno() in ready:
            data = _take(processes)
            if len(data) < _PROCESS_OFFSET + _PROCESS.size:
                continue
            what = _WHAT.unpack_from(data, _WHAT_OFFSET)[0]
            thread, process = _PROCESS.unpack_from(data, _PROCESS_OFFSET)
            if what == EXIT and thread == process and process in watched:
                channel.send(b"exit %d" % process)


def concerns_devices(event: bytes) -> bool:
    """Whether one event of the kernel is of a GPU or its driver, or may be."""
    return any(b"\0SUBSYSTEM=" + name + b"\0" in event + b"\0" for name in _SUBSYSTEMS)


def _processes() -> Any:
    from pyroute2.netlink.connector.cn_proc import ProcEventSocket

    made = ProcEventSocket()
    made.bind()
    _filter(made.fileno(), exits_of(frozenset()))
    _tell(made, True)
    return made


def exits_of(watched: frozenset[int]) -> bytes:
    """A classic filter (struct sock_filter of linux/filter.h) that takes the ends of these processes and nothing
    else; where they are too many, the ends of all."""
    load = 0x20  # BPF_LD | BPF_W | BPF_ABS
    equals = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
    answer = 0x06  # BPF_RET | BPF_K
    pids = sorted(watched) if len(watched) <= FILTERED_MAX else []
    steps = [(load, 0, 0, _WHAT_OFFSET)]
    if len(watched) <= FILTERED_MAX:
        steps += [(equals, 0, len(pids) + 1, _swapped(EXIT)), (load, 0, 0, _PROCESS_OFFSET)]
        steps += [(equals, len(pids) - place, 0, _swapped(pid)) for place, pid in enumerate(pids)]
    else:
        steps.append((equals, 1, 0, _swapped(EXIT)))
    steps += [(answer, 0, 0, 0), (answer, 0, 0, 0xFFFFFFFF)]
    return b"".join(_STEP.pack(*step) for step in steps)


def _swapped(number: int) -> int:
    """The number as a socket filter loads it: in the network's order of bytes."""
    return int.from_bytes(number.to_bytes(4, sys.byteorder), "big")


def _filter(fd: int, program: bytes) -> None:
    """Put a filter in the place of the last. Without one it works as well, with more effort."""
    import ctypes

    steps = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(steps))
    with socket.socket(fileno=os.dup(fd)) as same:
        try:
            same.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, about)
        except OSError:  # no room for it: the last one keeps from us whom it does not know
            try:
                same.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            except OSError:
                pass  # there was none


def _tell(processes: Any, listen: bool) -> None:
    """Begin or stop listening for processes. pyroute2's own call waits for an answer that may never come."""
    from pyroute2.netlink import NLMSG_DONE
    from pyroute2.netlink.connector import cn_proc

    message = cn_proc.proc_event_control()
    message["action"] = cn_proc.PROC_CN_MCAST_LISTEN if listen else cn_proc.PROC_CN_MCAST_IGNORE
    message["idx"], message["val"], message["len"] = cn_proc.CN_IDX_PROC, cn_proc.CN_VAL_PROC, 4
    processes.put(message, NLMSG_DONE, msg_flags=0, msg_seq=0)


def _devices() -> Any:
    from pyroute2.netlink.uevent import UeventSocket

    made = UeventSocket()
    made.bind(groups=1)  # the kernel's own, not udev's
    return made


def _take(source: Any) -> bytes:
    try:
        return os.read(source.fileno(), 8192)
    except OSError:  # more than it could keep: what was missed is seen by the next look
        return b""


class Watcher:
    """The daemon's side: calls `told` with the first word of each line, and when it came."""

    def __init__(
        self, loop: Loop, pid: int, channel: socket.socket, told: Callable[[str, int], None],
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.loop = loop
        self.pid = pid
        self.channel = channel
        self.told = told
        self.log = log
        self.problems: list[str] = []
        self._watched: frozenset[int] = frozenset((-1,))
        loop.add(channel.fileno(), self._ready)

    def watch(self, pids: frozenset[int]) -> None:
        """Whose end is to be told."""
        if pids == self._watched or self.pid == 0:
            return
        self._watched = pids
        try:
            self.channel.send(b"watch " + b" ".join(b"%d" % pid for pid in sorted(pids)[:4096]))
        except OSError:
            pass  # it is behind: the next change is sent again

    def _ready(self, now: int) -> None:
        line = received(self.channel, LINE_MAX)
        if line is None:
            return
        word, _, rest = line.decode("ascii", "replace").partition(" ")
        if not word:
            self.loop.remove(self.channel.fileno())
            self.channel.close()
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._problem("the process that watches has ended")
        elif word == "problem":
            self._problem(rest)
        else:
            self.told(word, now)

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self.log(f"{text}: changes are seen once a second only")

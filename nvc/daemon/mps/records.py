"""One MPS server of a slice, and what nvcd keeps of it: the nvcd after it finds the server by that.

    /run/nvc/mps/<key>/<UUID>/about    process, its start, percent, bytes

The file is whole or not there, and is there before the server runs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from nvc.base.errors import DeviceError
from nvc.base.files import closing, replace_file
from nvc.model.slices.entry import open_own

ABOUT_MAX = 256  # bytes
STARTING = "starting"
MIB = 1 << 20
SHARED = "shared"  # in the place of a slice's key
GONE = ".gone-"  # begins the name of a directory that is being removed


@dataclass(eq=False)
class MpsServer:
    """One control daemon."""

    key: str
    uuid: str
    percent: int  # of the GPU's threads
    memory: int  # bytes; 0: no limit
    directory: str
    since: int
    pid: int = 0
    start: int = 0  # of that process, in clock ticks since boot
    state: str = STARTING
    problem: str = ""
    client: int = 0  # the process that sends commands
    seen: int = 0  # bytes of its log from before its server

    @property
    def shared(self) -> bool:
        """Whether slices share it."""
        return self.key == SHARED

    @property
    def log(self) -> str:
        """The file with what it and its servers print."""
        return f"{self.directory}/log/control.log"

    def options(self) -> tuple[str, ...]:
        """The options of the program: in the foreground; -M has one server for clients of all users."""
        return ("-f", "-M") if self.shared else ("-f",)

    def environment(self) -> dict[str, str]:
        """For the control daemon, its servers and who sends it commands."""
        found = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": f"{self.directory}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self.directory}/log",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(self.percent),
        }
        if self.memory:
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={self.memory // MIB}M"
        return found

    def commands(self) -> bytes:
        """What is asked of it once it listens; the second and fourth are answered with what then holds."""
        lines = [
            f"set_default_active_thread_percentage {self.percent}",
            "get_default_active_thread_percentage",
        ]
        if self.memory:
            lines += [f"set_default_device_pinned_mem_limit 0 {self.memory // MIB}M",
                      "get_default_device_pinned_mem_limit 0"]  # fmt: skip
        return "".join(f"{line}\n" for line in lines).encode()


def write(one: MpsServer) -> None:
    """Keep a record in the directory of a server. Raises OSError."""
    text = f"{one.pid} {one.start} {one.percent} {one.memory}\n"
    replace_file(f"{one.directory}/about", text.encode(), 0o600, sync=False)


def read(directory: str) -> list[int] | None:
    """The four numbers in a directory; None: no server was begun there. Raises OSError, ValueError."""
    try:
        fd = open_own(f"{directory}/about")
    except FileNotFoundError:
        return None
    with closing(fd):
        text = os.pread(fd, ABOUT_MAX, 0).decode("ascii")
    words = text.split()
    if len(words) != 4 or not text.endswith("\n") or not all(word.isdigit() for word in words):
        raise ValueError("not a process, its start, percent and bytes")
    return [int(word) for word in words]


def directories(base: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Key and UUID of each server's directory, and the paths of those that are being removed. Raises OSError."""
    names = sorted(os.listdir(base))
    found = []
    for key in names:
        if not key.startswith("."):
            found += [(key, uuid) for uuid in sorted(os.listdir(f"{base}/{key}"))]
    return found, [f"{base}/{name}" for name in names if name.startswith(GONE)]


def empty(directory: str) -> None:
    """Remove what an earlier control daemon has left, but not the directory: containers have it mounted.

    Raises DeviceError.
    """
    try:
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                raise OSError(errno.ENOTEMPTY, f"a container has made the directory {entry.name[:80]!r} there")
            os.unlink(entry.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DeviceError.of("policy concurrent", directory, error, "remove what is in it") from None

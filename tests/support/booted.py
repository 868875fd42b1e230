"""A Debian of its own that systemd has started: what units say of nvcd holds there as it does on a host.

with Booted(directory, installed, "nvcd.socket") as host:
    host.sh("systemctl status nvcd.socket")

systemd is the first process of namespaces of its own, and sees no file system of this machine: its /dev, /tmp,
/run and cgroups are its own, the kernel's settings are read-only.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from types import TracebackType

from . import CLEAN_ENV, PATIENCE, need
from .debian import Debian

#: Where systemd says that it is done, as it does to whoever manages its container (systemd(1)).
NOTIFY = "/run/booted"
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")

BOOT = """
set -e
for at in %s; do
    [ ! -e "$at/cgroup.procs" ] || { mkdir "$at/$1" && echo $$ >"$at/$1/cgroup.procs"; }
done
exec unshare --pid --fork --kill-child --cgroup --ipc --uts --mount --propagation private /bin/sh -ec '
    mount -t proc -o nosuid,nodev,noexec proc /proc
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    mount -t tmpfs -o mode=755,nosuid tmpfs /mnt
    cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /mnt
    mkdir /mnt/pts
    mount -t devpts -o newinstance,ptmxmode=666 devpts /mnt/pts
    ln -s pts/ptmx /mnt/ptmx
    ln -s /proc/self/fd /mnt/fd
    umount -l /dev
    mount --move /mnt /dev
    hybrid= && [ ! -e /sys/fs/cgroup/systemd ] || hybrid=%s
    umount -l /sys
    mount -t sysfs -o ro sysfs /sys
    if [ "$hybrid" ]; then
        mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
        mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
        mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
        mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
    else
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
    fi
    export container=nvc NOTIFY_SOCKET=%s
    exec /lib/systemd/systemd --system --unit=booted.target --log-target=null
'
"""


class Booted(Debian):
    """One whose systemd has started some units. `directory` must be empty or missing.

    With `unified` it has cgroups of version 2 alone, whatever this machine has.
    """

    def __init__(self, directory: str, layers: str, *units: str, unified: bool = False) -> None:
        super().__init__(directory, layers)
        self.units = units
        self.unified = unified
        self.group = f"nvc-booted-{os.getpid()}-{time.monotonic_ns()}"

    def start(self) -> None:
        """Boot. Before this the host is there, without systemd."""
        self.write("/etc/systemd/system/booted.target", f"[Unit]\nRequires={' '.join(self.units)}\n")
        self.write("/root/boot", BOOT % (" ".join(CGROUPS), "" if self.unified else "yes", NOTIFY))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(self.root + NOTIFY)
            notified.settimeout(PATIENCE)
            words = [*super().namespace, "/bin/sh", "/root/boot", self.group]
            with open(os.path.join(self.directory, "boot.log"), "wb") as log:
                self._unshare = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, env=CLEAN_ENV)
            try:
                while b"READY=1" not in notified.recv(4096):
                    pass
            except TimeoutError:
                self._unshare.kill()
                self._unshare.wait()
                with open(os.path.join(self.directory, "boot.log"), encoding="utf-8") as said:
                    raise AssertionError(f"systemd did not start: {said.read()}") from None
        with open(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children", encoding="ascii") as file:
            self._first = int(file.read().split()[0])

    @property
    def namespace(self) -> list[str]:
        """The argv that runs a program there, beside systemd once that has started."""
        if not hasattr(self, "_first"):
            return super().namespace
        return [need("nsenter"), f"--target={self._first}", "--mount", "--pid", "--cgroup", "--ipc", "--uts"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "_first"):
            os.kill(self._first, signal.SIGKILL)  # and all others of its namespace with it
            self._unshare.wait(timeout=PATIENCE)
        for cgroup in CGROUPS:
            for directory, _, _ in os.walk(f"{cgroup}/{self.group}", topdown=False):
                os.rmdir(directory)
        super().__exit__(kind, error, trace)

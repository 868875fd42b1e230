"""A target to configure: a process in a mount namespace and a device cgroup of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from support import CLEAN_ENV, need, run

#: On the host, as an engine does it: the peer opens the rootfs by its host path too.
PREPARE = """
set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/merged"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/merged"
"""
SETUP = """
set -e
mount -t proc proc "$1/merged/proc"
# As a host with NVIDIA's modules has it, which NVIDIA's tool takes for granted.
if [ ! -e "$1/merged/proc/driver/nvidia" ]; then
    mount -t tmpfs -o mode=755 tmpfs "$1/merged/proc/driver"
    mkdir "$1/merged/proc/driver/nvidia"
fi
mount -t tmpfs -o nosuid,mode=755,size=65536k tmpfs "$1/merged/dev"
echo ready
exec cat
"""


def device_hierarchy() -> str:
    """Where cgroups with device rules are made: the v1 `devices` hierarchy, else the v2 one."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        found = [line.split() for line in mounts]
    v1 = [fields[1] for fields in found if fields[2] == "cgroup" and "devices" in fields[3].split(",")]
    v2 = [fields[1] for fields in found if fields[2] == "cgroup2"]
    return (v1 or v2)[0]


class Targets:
    """Makes targets whose rootfs is an overlay, as an engine's is, over one prepared tree."""

    def __init__(self, directory: str, lower: str) -> None:
        self.lower = lower
        self.mount_point = os.path.join(directory, "target")
        self.rootfs = os.path.join(self.mount_point, "merged")
        self.cgroup = os.path.join(device_hierarchy(), f"nvc-bench-{os.getpid()}")
        os.makedirs(self.mount_point)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[int]:
        """The process id of a new target; everything of it is gone afterwards."""
        os.mkdir(self.cgroup)
        run(need("sh"), "-c", PREPARE, "sh", self.mount_point, self.lower)
        command = [need("unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c", SETUP, "sh"]
        command += [self.mount_point, self.lower]
        process = subprocess.Popen(command, env=CLEAN_ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin and process.stdout
        try:
            if process.stdout.readline() != b"ready\n":
                raise SystemExit("bench: cannot make a target: run as root")
            with open(os.path.join(self.cgroup, "cgroup.procs"), "w", encoding="ascii") as procs:
                procs.write(str(process.pid))
            yield process.pid
        finally:
            process.stdin.close()  # its `cat` ends
            process.stdout.close()
            process.wait()
            run(need("umount"), "--recursive", self.mount_point)
            os.rmdir(self.cgroup)

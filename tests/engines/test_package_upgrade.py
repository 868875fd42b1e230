"""An upgrade beside a container with a slice: its process keeps its library and its limit."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from support import CLEAN_ENV, PATIENCE
from support.debian import Debian
from support.packages import NEWER, deb
from support.vgpushim import OUT_OF_MEMORY, compile_tool

pytestmark = pytest.mark.nightly

FIRST = "/usr/share/nvc/first-container"


class Tenant:
    """tests/native/vgpu_tool.c in a container with a slice."""

    def __init__(self, debian: Debian, memory: str) -> None:
        command = [
            FIRST,
            "--root",
            "/srv/driver",
            "--memory",
            memory,
            "--with",
            "/root/vgpu_tool",
            "vgpu_tool",
        ]
        self.process = subprocess.Popen(
            [*debian.namespace, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=CLEAN_ENV,
        )

    def ask(self, command: str) -> list[str]:
        """The driver's result, and what it says."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=PATIENCE)


def shim(debian: Debian) -> str:
    """The inode of the library that new containers get."""
    return debian.sh("stat -L -c %i /usr/lib/nvc/vgpu/current/libcuda.so").stdout.strip()


def mapped(pid: int) -> set[str]:
    """The inodes of the libcuda that a process runs."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return {
            line.split()[4]
            for line in maps
            if "/libcuda.so" in line and "/nvc/" not in line.split(None, 5)[5]
        }


def container_pid(debian: Debian) -> int:
    """The one container's process."""
    (found,) = json.loads(debian.sh("runc list --format json").stdout)
    return int(found["pid"])


def test_a_running_slice(installed: str, newer: str, scratch: str) -> None:
    tool = compile_tool(scratch)
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.put(tool, "/root")
        debian.put(deb(newer), "/root")
        debian.sh("nvc-cli sim create /srv/driver --gpus 1")
        tenant = Tenant(debian, "4GiB")
        for command in ("init", "primary 0", "alloc a 1g"):
            assert tenant.ask(command)[0] == "0", command
        pid, old = container_pid(debian), shim(debian)
        assert mapped(pid) == {old}

        debian.sh(f"dpkg -i /root/nvc_{NEWER}*.deb")
        assert shim(debian) != old
        assert mapped(pid) == {old}
        assert int(tenant.ask("alloc b 3g")[0]) == OUT_OF_MEMORY
        assert tenant.ask("alloc c 2g")[0] == "0"
        assert tenant.ask("info")[2] == str(4 << 30)

        # The new version knows the old one's slice, and changes it.
        debian.sh(f"nvc-cli --root /srv/driver vgpu set {pid} --memory 2GiB")
        assert tenant.ask("free c")[0] == "0"
        assert int(tenant.ask("alloc c 2g")[0]) == OUT_OF_MEMORY
        assert tenant.ask("info")[2] == str(2 << 30)

        # A process that is started in it later has them too.
        name = os.path.basename(json.loads(debian.sh("runc list --format json").stdout)[0]["bundle"])
        assert "2048MiB" in debian.sh(f"runc exec {name} nvidia-smi").stdout
        assert tenant.end() == 0
        assert "4096MiB" in debian.sh(f"{FIRST} --root /srv/driver --memory 4GiB").stdout


def test_starts_during_upgrades(packages: str, installed: str, newer: str, scratch: str) -> None:
    """Every container start beside an upgrade, and beside the way back, finds one whole version."""
    words = "--root /srv/driver configure --dry-run --vgpu-memory 1GiB --device all --compute /run/rootfs"
    loop = f"while [ ! -e /run/stop ]; do nvc-cli {words} >/run/plan || exit; grep -q libcuda /run/plan; echo; done"
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.put(deb(newer), "/root")
        debian.sh("nvc-cli sim create /srv/driver --gpus 1; mkdir -p /run/rootfs/etc /run/rootfs/usr/lib")
        starts = subprocess.Popen(
            [*debian.namespace, "/bin/sh", "-ec", loop],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=CLEAN_ENV,
        )
        for _ in range(3):
            for package in (f"/root/nvc_{NEWER}*.deb", f"/root/{os.path.basename(deb(packages))}"):
                debian.sh(f"dpkg -i {package}")
        debian.sh("touch /run/stop")
        done, wrong = starts.communicate(timeout=PATIENCE)
        assert starts.returncode == 0 and not wrong, wrong
        assert len(done) > 6, "none of them took place beside an upgrade"


def test_removed_under_a_running_slice(installed: str, scratch: str) -> None:
    tool = compile_tool(scratch)
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.put(tool, "/root")
        debian.sh("nvc-cli sim create /srv/driver --gpus 1")
        debian.sh("mv /usr/share/nvc/first-container /root/")
        debian.sh("ln -s /root/first-container /usr/share/nvc/")
        tenant = Tenant(debian, "4GiB")
        for command in ("init", "primary 0", "alloc a 1g"):
            assert tenant.ask(command)[0] == "0", command
        debian.sh("dpkg --purge nvc")
        assert int(tenant.ask("alloc b 3g")[0]) == OUT_OF_MEMORY
        assert tenant.ask("alloc b 1g")[0] == "0"
        assert tenant.end() == 0

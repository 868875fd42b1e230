"""Podman 5.8 without root, by CDI: whole GPUs, slices, and what a session without a runtime directory is told."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.clients import client_ran
from support.engines import CONFIG_TOML, DIRECT, PODMAN, Host
from support.owndev import DEV
from support.reachable import reachable

GENERATIONS = ("sid", "newest")
UID, HOME = 4000, "/srv/home"
SIZES = '[[nvc.vgpu]]\nname = "small"\nmemory = "4GiB"\n'
MEMORY = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits"
USER = f"""
echo 'lab:x:{UID}:{UID}::{HOME}:/bin/sh' >> /etc/passwd
echo 'lab:x:{UID}:' >> /etc/group
mkdir -p {HOME}/tmp
cp -a /run/rootfs {HOME}/rootfs
chown -R {UID}:{UID} {HOME}
"""


def test_version(host: Host) -> None:
    client_ran("Podman", host.sh("podman --version").stdout, "user", "CDI and slices without root")


@pytest.fixture(scope="module")
def user(host: Host) -> Iterator[Host]:
    """The host with a user, specifications, and nodes in /dev."""
    reachable(host)
    host.sh(DEV)
    host.sh(USER)
    host.write("/etc/nvc/config.toml", CONFIG_TOML + SIZES)
    host.sh("nvc-cli --root /srv/sim cdi refresh")
    yield host
    # podman leaves a process that keeps the user's namespaces, in the directory in which it was started.
    device = int(host.sh("stat -c %d /srv").stdout)
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is out of reach
            if os.stat(f"/proc/{pid}/cwd").st_dev == device and os.stat(f"/proc/{pid}").st_uid == UID:
                os.kill(int(pid), signal.SIGKILL)


def podman(host: Host, device: str, script: str, variables: str = "") -> subprocess.CompletedProcess[str]:
    """Run a shell script in a container of the user's."""
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    options = f"--rm --network host --runtime runc {limits} --device {device} --rootfs {HOME}/rootfs"
    environment = f"HOME={HOME} TMPDIR={HOME}/tmp PATH=/usr/local/bin:/usr/bin:/bin {variables}"
    command = f"env -i {environment} podman {PODMAN} run {DIRECT} {options} sh -c {shlex.quote(script)}"
    return host.sh(f"cd {HOME}; setpriv --reuid {UID} --regid {UID} --clear-groups {command}", check=False)


def test_a_whole_gpu(user: Host) -> None:
    done = podman(user, "nvidia.com/gpu=1", "nvidia-smi -L | wc -l; ls /dev | grep nvidia[0-9]")
    assert done.stdout.split() == ["1", "nvidia1"], done.stderr


def test_a_slice_needs_a_directory_of_the_user(user: Host) -> None:
    """The line names it and what makes it; a directory that XDG_RUNTIME_DIR names is not looked at."""
    user.sh(f"mkdir -p {HOME}/run; chown {UID}:{UID} {HOME}/run; chmod 700 {HOME}/run")
    for variables in ("", f"XDG_RUNTIME_DIR={HOME}/run"):
        done = podman(user, "nvidia.com/vgpu=0:small", "echo started", variables)
        assert done.returncode != 0 and "started" not in done.stdout
        assert f"read policies: /run/user/{UID}/nvc/vgpu-policy: cannot be made" in done.stderr
        assert (
            f"/run/user/{UID} must be a directory of the user: `loginctl enable-linger USER`" in done.stderr
        )
        assert "[NVC-1201: nvc-cli doctor host]" in done.stderr
    user.sh(f"mkdir -p /run/user/{UID}; chown {UID}:{UID} /run/user/{UID}; chmod 700 /run/user/{UID}")
    done = podman(user, "nvidia.com/vgpu=0:small", MEMORY, f"XDG_RUNTIME_DIR=/run/user/{UID}")
    assert done.stdout.split() == ["4096"], done.stderr
    user.sh(f"rm -rf /run/user/{UID}")

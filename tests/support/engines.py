"""A host of its own for engines: real daemons on a machine whose /etc, /run and programs are the test's alone.

with Host(directory) as host:
    host.simulate(gpus=2)
    host.sh("nvc-cli runtime configure --engine docker; systemctl start docker")
    host.sh("docker run --rm --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all nvc-test nvidia-smi -L").stdout

Everything runs in one private mount namespace. /etc, /var/lib and /usr/share/containers are overlays, the stage is
over /usr/local: files are where documentation says they are without a trace on the machine; /run and /srv are
empty. The one stand-in is `systemctl`, which starts, stops and restarts the daemons of this host
(tests/support/systemctl.py).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from types import TracebackType
from typing import Any

from . import CLEAN_ENV, PATIENCE, REPO, STAGE, generations, need, run
from .begun import Begun
from .covered import uncover
from .rootfs import make_rootfs

#: Where the simulated driver is on the test's host; its configuration says so.
DRIVER = "/srv/sim"
IMAGE = "nvc-test"
#: Options of every podman command here: no systemd, no overlay on an overlay.
PODMAN = "--cgroup-manager cgroupfs --storage-driver vfs --events-backend none"
#: Of `podman run` where its output is read: the container writes straight to it. Conmon 2.1.6 hands nothing on of
#: a container that has ended when conmon first looks: it has not accepted podman's connection by then.
DIRECT = "--log-driver passthrough"
#: What dockerd needs to know of a machine that is not its own: neither bridge nor firewall, and no storage driver
#: that would lie on an overlay itself.
DAEMON_JSON = """{
    "bridge": "none",
    "iptables": false,
    "storage-driver": "vfs"
}
"""
CONTAINERD_TOML = """version = 2

[plugins."io.containerd.grpc.v1.cri"]
  # There is no pod network on this host.
  disable_tcp_service = true
"""
#: Podman finds these by paths of its own, not on its PATH.
CONTAINERS_CONF = """[engine]
conmon_path = ["/usr/local/bin/conmon"]
[engine.runtimes]
crun = ["/usr/local/bin/crun"]
runc = ["/usr/local/bin/runc"]
"""
CONFIG_TOML = f"""[nvidia-container-cli]
root = "{DRIVER}"
load-kmods = false
"""
MOUNTS = """
set -e
overlay() {
    mkdir -p "$1/upper-$3" "$1/work-$3"
    mount -t overlay -o "lowerdir=$2,upperdir=$1/upper-$3,workdir=$1/work-$3" overlay "$4"
}
overlay "$1" /etc etc /etc
overlay "$1" /var/lib lib /var/lib
overlay "$1" "$2:/usr/local" local /usr/local
mkdir -p /usr/share/containers
overlay "$1" /usr/share/containers share /usr/share/containers
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /srv
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
uncover # the stage refers to the checkout by its path
mkdir -p /run/lock /usr/local/sbin
for name in docker dockerd containerd containerd-shim-runc-v2 ctr crictl crio runc crun podman conmon systemctl; do
    rm -f "/usr/local/bin/$name" "/usr/local/sbin/$name" # the distribution's are wanted
done
rm -f /usr/local/bin/nvidia-* /usr/local/sbin/nvidia-*
# What somebody did with engines on this machine is none of the host's: neither settings nor images.
rm -rf /etc/docker /etc/containerd /etc/crio /etc/containers/containers.conf* /etc/containers/networks /etc/cni
rm -rf /etc/nvc /etc/cdi /var/lib/nvc /usr/share/containers/oci
for name in docker containerd containers; do
    mkdir -p "/var/lib/$name"
    mount -t tmpfs -o mode=711 tmpfs "/var/lib/$name"
done
echo ready
exec cat
"""


class Host:
    """The namespace, held by a process. `directory` must be empty, and gets what is written.

    `generation` says which engines it has (tests/support/generations.py).
    """

    def __init__(self, directory: str, generation: str = generations.DEBIAN) -> None:
        self.directory = directory
        self.generation = generation
        self._holder: subprocess.Popen[str] | None = None
        self._begun: Begun | None = None

    def __enter__(self) -> Host:
        command = [need("unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c"]
        self._holder = subprocess.Popen(
            [*command, uncover(REPO) + MOUNTS, "sh", self.directory, STAGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=CLEAN_ENV,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "cannot make a host: run as root"
        script = os.path.join(REPO, "tests/support/systemctl.py")
        self.write(
            "/usr/local/sbin/systemctl",
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(script)} "$@"\n',
            0o755,
        )
        for name, path in generations.programs(self.generation).items():
            where = "libexec/podman" if name == "netavark" else "bin"
            self.sh(f"mkdir -p /usr/local/{where}; ln -s {shlex.quote(path)} /usr/local/{where}/{name}")
        with open(os.path.join(REPO, "packaging/first-container"), encoding="utf-8") as example:
            self.write("/usr/local/share/nvc/first-container", example.read(), 0o755)
        self.write("/etc/docker/daemon.json", DAEMON_JSON)
        if self.generation == generations.DEBIAN:
            self.write("/etc/containerd/config.toml", CONTAINERD_TOML)
        else:
            self.write("/etc/containers/containers.conf", CONTAINERS_CONF)
        self.write("/etc/nvc/config.toml", CONFIG_TOML)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._holder is not None
        if self._begun is not None:
            self._begun.end()
        self.sh("! ls /run/*.main-pid || systemctl stop docker containerd crio", check=False)
        self._holder.communicate()  # its `cat` ends, and every mount goes with the namespace

    @property
    def namespace(self) -> list[str]:
        """The argv that runs a program there."""
        assert self._holder is not None
        return [need("nsenter"), f"--mount=/proc/{self._holder.pid}/ns/mnt", "--wd=/"]

    def sh(
        self, script: str, check: bool = True, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Run shell lines there; the first that fails ends them."""
        # Podman 5 warns at each call of a host with cgroups of version 1.
        env = {**CLEAN_ENV, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        return run(*self.namespace, "/bin/sh", "-ec", script, check=check, timeout=timeout, env=env)

    def doctor(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What `nvc-cli` does there with these words, the options of doctor and what precedes it among them."""
        if self._begun is None:
            self._begun = Begun("/usr/local", self.namespace)
        return self._begun(*words, check=False)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Make a file there."""
        script = 'mkdir -p "${1%/*}"; cat > "$1"; chmod "$2" "$1"'
        run(*self.namespace, "/bin/sh", "-ec", script, "sh", path, f"{mode:o}", stdin=None, input=text)

    def read(self, path: str) -> str:
        """The content of a file there."""
        return run(*self.namespace, "/bin/cat", path).stdout

    def simulate(self, **wanted: Any) -> None:
        """Make its driver a simulated one; options of `nvc-cli sim create`, such as gpus=2."""
        options = " ".join(f"--{name}={value}" for name, value in wanted.items())
        self.sh(f"nvc-cli sim create {DRIVER} {options}")

    def rootfs(self) -> str:
        """A root file system for `docker import`, podman and ctr; its path there."""
        path = "/run/rootfs"
        made = os.path.join(self.directory, "rootfs")
        if not os.path.isdir(made):
            make_rootfs(made)
            self.sh(f"mkdir -p {path}; cp -a {made}/. {path}")
        return path

    def image(self) -> None:
        """Give the docker daemon, which must run, the image IMAGE."""
        self.sh(f"tar -C {self.rootfs()} -c . | docker import - {IMAGE}")

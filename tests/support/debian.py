"""A clean Debian of its own: laid out once by debootstrap, kept, and started from as often as a test likes.

with Debian(directory, ready()) as debian:
    debian.put(package, "/root")
    debian.sh("apt-get install -y /root/nvc_*.deb")

What debootstrap made is the lower layer of an overlay; whatever a test changes is in memory, or with `kept` in
`directory`, as another's layer. Processes see the overlay as their root, in a mount namespace with nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from types import TracebackType

from . import CLEAN_ENV, need, run
from .cache import kept
from .engines import Host
from .fetch import fetch
from .mirror import mirror

#: Where a test may make one.
DRIVER = "/srv/driver"
#: What the package depends on and recommends.
WANTED = "python3 runc python3-prctl"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3"
ENTER = """
set -e
[ "$3" ] || mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
pivot_root . mnt
exec chroot . /bin/sh -ec 'umount -l /mnt; echo ready; exec cat'
"""


def clean() -> str:
    """The layers of a Debian without anything more than systemd; made at the first call, for every checkout."""
    release, source, parts = mirror()
    return kept(repr(("clean", release, source, parts, WANTED)), f"Debian's {release}", _debootstrap)


def ready() -> str:
    """The layers of a Debian that has what the package depends on; made at the first call, for every checkout."""
    lower = clean()
    layer = kept(repr(("ready", lower)), f"Debian with {WANTED}", lambda new, _: _install(new, lower))
    return f"{layer}/upper:{lower}"


def _debootstrap(root: str, _: str) -> None:
    release, source, parts = mirror()
    include = "systemd,ca-certificates" if source.startswith("https:") else "systemd"
    with tempfile.TemporaryDirectory(prefix="nvc-debootstrap-") as directory:
        link = f"{directory}/root"  # debootstrap fails at a path with a space
        os.symlink(root, link)
        words = ["--variant=minbase", f"--components={parts}", f"--include={include}", release, link, source]
        run(need("debootstrap"), *words, env=dict(os.environ), timeout=600)
    command = f"{APT} update && {APT} install -y --download-only {WANTED}"
    fetch(f"{WANTED} of Debian's {release}", need("chroot"), root, "/bin/sh", "-ec", command)
    # Nobody needs what a power failure would leave.
    with open(f"{root}/etc/dpkg/dpkg.cfg.d/unsafe", "w", encoding="ascii") as file:
        file.write("force-unsafe-io\n")


def _install(layer: str, lower: str) -> None:
    with Debian(layer, lower, kept=True) as debian:
        debian.sh(f"{APT} install -y --no-download {WANTED}", timeout=300)


class Debian(Host):
    """The namespace, held by a process. `directory` must be empty or missing."""

    def __init__(self, directory: str, layers: str, kept: bool = False) -> None:
        super().__init__(directory)
        self.layers = layers
        self.kept = kept

    def __enter__(self) -> Debian:
        os.makedirs(self.directory, exist_ok=True)
        command = [need("unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c", ENTER, "sh"]
        self._holder = subprocess.Popen(
            [*command, self.directory, self.layers, "kept" if self.kept else ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=CLEAN_ENV,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "cannot make a Debian: run as root"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._holder is not None
        self._holder.communicate()  # its `cat` ends, and every mount goes with the namespace

    @property
    def namespace(self) -> list[str]:
        """The argv that runs a program there. Its directory is the root: another would be this machine's."""
        assert self._holder is not None
        return [need("nsenter"), f"--mount=/proc/{self._holder.pid}/ns/mnt"]

    @property
    def root(self) -> str:
        """Its root directory, as this namespace sees it."""
        assert self._holder is not None
        return f"/proc/{self._holder.pid}/root"

    @property
    def layer(self) -> str:
        """The layers for another Debian that begins with what this one has become, once it has ended."""
        return f"{self.directory}/upper:{self.layers}"

    def put(self, path: str, directory: str) -> None:
        """Copy a file there."""
        shutil.copy(path, self.root + directory)

    def named(self) -> list[str]:
        """The paths on its disk that are called after nvc or NVIDIA, outside of /root and a simulated driver."""
        names = "-name 'nvc*' -o -name '_nvc*' -o -name '*nvidia*'"
        others = f"-path /root -o -path {DRIVER}"
        return self.sh(f"find / -xdev \\( {others} \\) -prune -o \\( {names} \\) -print").stdout.splitlines()

    def files(self) -> set[str]:
        """Every path on its disk: /run, /tmp and the like are others'."""
        return set(self.sh("find / -xdev").stdout.splitlines())

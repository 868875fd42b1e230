"""Containers for the fault harness, made and thrown away in milliseconds, and what can be seen of each.

They live in a mount namespace with an empty /run/nvc: nothing that is killed there is missed elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from typing import NamedTuple

from nvc.kernel import bpf
from support.device_cgroup import DOCKER, Group, load, runc_shape
from support.rootfs import make_rootfs

RUN = "/run/nvc"
#: Files of a slice, of which no two are the same.
UNIQUE = ("quota", "ledger")
CACHE = ".nvc-ld.so.cache"  # see native/core/apply/_apply.h
_libc = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS = 0x00020000
_BIND, _REMOUNT, _READ_ONLY, _PRIVATE, _ALL_BELOW = 4096, 32, 1, 1 << 18, 16384
_CONTENT = 1 << 16  # bytes of a file that are compared
_LIBRARIES = "/usr/lib/{}-linux-gnu"


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    words = [text.encode() if text else None for text in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def unshare_mounts() -> None:
    """Give this process a mount namespace that nobody sees."""
    if _libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", flags=_ALL_BELOW | _PRIVATE)


def own_mounts(journal: bool) -> None:
    """The same, with an empty runtime directory, or none and no place for one."""
    unshare_mounts()
    if journal:
        os.makedirs(RUN, exist_ok=True)
        mount("none", RUN, "tmpfs", data="mode=0700")
    else:
        mount("none", os.path.dirname(RUN), "tmpfs", _READ_ONLY)


def make_template(directory: str, driver_root: str) -> None:
    """An image that needs every kind of operation. Nothing runs in it, so its large files are stubs."""
    make_rootfs(directory)
    for path, _, names in os.walk(directory):
        for name in names:
            file = os.path.join(path, name)
            if not os.path.islink(file) and os.path.getsize(file) > _CONTENT:
                os.truncate(file, 64)
    with open(f"{directory}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    libraries = _LIBRARIES.format(os.uname().machine)
    os.symlink("libcuda.so.1.0", f"{directory}{libraries}/libcuda.so.1")  # to be replaced
    with open(f"{directory}{libraries}/libnvidia-ml.so.1", "w", encoding="ascii") as out:
        out.write("stale\n")  # to be covered
    compat = f"{directory}/usr/local/cuda/compat"
    os.makedirs(compat)
    source = os.path.realpath(f"{driver_root}{libraries}/libcuda.so.1")
    shutil.copy(source, f"{compat}/libcuda.so.999.10.02")


class Look(NamedTuple):
    """What a container is: the files of its rootfs, its mounts, its device rules."""

    files: dict[str, tuple[object, ...]]
    mounts: list[str]
    rules: list[str]

    def differences(self, other: Look) -> list[str]:
        """What is in one of them only, as a few short lines."""
        found = [
            f"{name}: {self.files.get(name)} / {other.files.get(name)}"
            for name in sorted({*self.files, *other.files})
            if self.files.get(name) != other.files.get(name)
        ]
        for mine, theirs in ((self.mounts, other.mounts), (self.rules, other.rules)):
            found += [f"first only: {line}" for line in mine if line not in theirs]
            found += [f"second only: {line}" for line in theirs if line not in mine]
        if not found and self != other:
            found.append("as many times mounted")
        return found[:6]

    def written(self) -> Look:
        """With the loader cache written that is bound over the old one: that is done where it cannot be written, as
        in a read-only volume of which no writable mount can be had for a moment."""
        others = [line for line in self.mounts if not line.startswith(f"/{CACHE} ")]
        if others == self.mounts:
            return self
        files = {name: about for name, about in self.files.items() if os.path.basename(name) != CACHE}
        covered, _, *rest = files["/etc/ld.so.cache"]
        return Look(
            {**files, "/etc/ld.so.cache": (covered, stat.S_IFREG | 0o644, *rest)}, others, self.rules
        )


class Container:
    """A process in a mount namespace with a rootfs of its own, as a runtime has it before it pivots."""

    def __init__(
        self,
        template: str,
        rootfs: str,
        version: int,
        read_only: bool,
        serial: int,
        files: tuple[str, ...] = (),
    ) -> None:
        self.rootfs = rootfs
        self.files = (
            files  # of the host, which an engine has mounted on files of the image's directory of libraries
        )
        self._stack = contextlib.ExitStack()
        name = f"nvc-faults-{os.getpid()}-{serial}"
        self.group = self._stack.enter_context(Group.make(version, name))
        if version == 1:
            self.group.write("devices.deny", "a")
            for rule in ("c 1:3 rwm", "c 1:5 rwm", "c *:* m", "b *:* m"):
                self.group.write("devices.allow", rule)
        else:
            program = load(runc_shape(DOCKER))
            self.group.attach(program, bpf.ALLOW_MULTI)
            os.close(program)
        ready, tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            self._live(template, read_only, tell)
        os.close(tell)
        self.group.enter(self.pid)
        told = os.read(ready, 200)
        os.close(ready)
        assert told == b"ready", told.decode()

    def _live(self, template: str, read_only: bool, tell: int) -> None:
        """The process: it mounts, says that it is ready, and waits to be killed."""
        try:
            _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            unshare_mounts()
            base = os.path.dirname(self.rootfs)
            mount("none", base, "tmpfs")
            for name in (self.rootfs, f"{base}/upper", f"{base}/work"):
                os.mkdir(name)
            layers = f"lowerdir={template},upperdir={base}/upper,workdir={base}/work"
            mount("overlay", self.rootfs, "overlay", data=layers)
            mount("proc", f"{self.rootfs}/proc", "proc")
            mount("none", f"{self.rootfs}/dev", "tmpfs", data="mode=755")
            if self.files:
                os.mknod(f"{self.rootfs}/dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 0))
            for file in self.files:
                self._mount_library(file)
            for root in ("", self.rootfs) if self.files else ():
                _load_driver(f"{root}/proc/driver")
            if read_only:
                mount("none", self.rootfs, flags=_REMOUNT | _BIND | _READ_ONLY)
            os.write(tell, b"ready")
            while True:
                signal.pause()
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode()[:200])
        finally:
            os._exit(1)

    def _mount_library(self, file: str) -> None:
        directory = self.rootfs + _LIBRARIES.format(os.uname().machine)
        target = f"{directory}/{os.path.basename(file)}"
        with open(target, "wb"):
            pass
        mount(file, target, flags=_BIND)

    def look(self) -> Look:
        """What it is now."""
        if self.group.version == 1:
            rules = self.group.read("devices.list")
        else:
            rules = []
            for number in self.group.attached:
                descriptor = bpf.open_program(number)
                rules.append(f"{bpf.identify_program(descriptor).tag:x}")
                os.close(descriptor)
        return Look(_files(f"/proc/{self.pid}/root{self.rootfs}"), _mounts(self.pid, self.rootfs), rules)

    def close(self) -> None:
        """End it; its mounts go with it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._stack.close()


def _load_driver(directory: str) -> None:
    """What the driver has below /proc/driver."""
    mount("none", directory, "tmpfs")
    os.makedirs(f"{directory}/nvidia/gpus")
    for name, text in (("params", "ModifyDeviceFiles: 1\n"), ("version", "580\n")):
        with open(f"{directory}/nvidia/{name}", "w", encoding="ascii") as out:
            out.write(text)


def _mounts(pid: int, rootfs: str) -> list[str]:
    """The mounts in the rootfs without what is different each time: numbers of mounts and of nameless devices."""
    found = []
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            fields, _, kind = line.rstrip("\n").partition(" - ")
            _, _, _, root, point, options = fields.split(" ")[:6]
            if point.startswith(rootfs):
                if root.startswith("/vgpu/"):
                    root = f"/vgpu/KEY/{os.path.basename(root)}"
                found.append(f"{root} {point} {options} {kind.split(' ')[0]}")
    return sorted(found)


def _files(top: str) -> dict[str, tuple[object, ...]]:
    """Everything below the rootfs, of /proc only what nvc makes there."""
    found: dict[str, tuple[object, ...]] = {}
    device = os.stat(top).st_dev
    pending = [top]
    while pending:
        directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                if directory == f"{top}/proc" and entry.name != "driver":
                    continue
                st = entry.stat(follow_symlinks=False)
                detail: object = None
                if stat.S_ISLNK(st.st_mode):
                    detail = os.readlink(entry.path)
                elif entry.name in UNIQUE:
                    detail = st.st_size
                elif stat.S_ISREG(st.st_mode):
                    detail = _content(entry.path, st)
                elif stat.S_ISDIR(st.st_mode):
                    pending.append(entry.path)
                elif stat.S_ISCHR(st.st_mode):
                    detail = st.st_rdev
                here = st.st_dev == device
                found[entry.path[len(top) :]] = (here, st.st_mode, st.st_uid, st.st_gid, detail)
    return found


_known: dict[tuple[int, int, int, int], str] = {}


def _content(path: str, st: os.stat_result) -> str:
    """Size and hash of a file; of the driver's and the template's libraries, which stay, it is kept."""
    key = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)
    if st.st_size > 4096 and key in _known:
        return _known[key]
    with open(path, "rb") as file:
        text = f"{st.st_size}:{hashlib.blake2b(file.read(_CONTENT), digest_size=8).hexdigest()}"
    _known[key] = text
    return text


def runtime_files() -> Iterator[str]:
    """The names below /run/nvc, those of directories too."""
    for path, directories, names in os.walk(RUN):
        for name in (*directories, *names):
            parts = os.path.relpath(os.path.join(path, name), RUN).split("/")
            if parts[0] == "vgpu" and parts[1:] and not parts[1].startswith("."):
                parts[1] = "KEY"
            yield "/".join(parts)


def runtime_content() -> dict[str, bytes]:
    """The files below /run/nvc with what is in them, but for those of slices."""
    found = {}
    for path, _, names in os.walk(RUN):
        for name in names:
            file = os.path.join(path, name)
            if not path.startswith(f"{RUN}/vgpu/"):
                with open(file, "rb") as content:
                    found[os.path.relpath(file, RUN)] = content.read()
    return found


def empty_runtime() -> None:
    """Remove everything below /run/nvc."""
    if not os.path.exists(RUN):
        return
    with os.scandir(RUN) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

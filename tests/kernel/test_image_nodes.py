"""No inode of an image is opened before it is known to be a regular file: to open a device may be to use it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import run
from support.configure import Configure
from support.plans import apply, plan_of
from support.rootfs import LIBS

from nvc.base.errors import ContainerError, NvcError
from nvc.discovery.driver.compat import compat_libraries
from nvc.kernel import O_PATH, LinuxKernel
from nvc.plan.ops import Tmpfs
from nvc.request.oci import read_bundle
from nvc.slices.admin.check import check_files
from nvc.slices.make.shadow_libraries import find_shadow_libraries

IN_OPEN = 0x20  # inotify(7); O_PATH is no opening
EVENT = struct.Struct("iIII")
PLACES = ("etc/ld.so.cache", "usr/local/cuda/compat/libcuda.so.999.1.1", "usr/lib/libcuda.so.1", "config.json")


def test_in_a_tmpfs_that_looks_like_an_earlier_one(runc_bundle: Any, debian: str, scratch: str) -> None:
    """Whoever is root in a privileged container makes one, with a device in the place of a file."""
    plan = plan_of(f"{scratch}/driver").replace(ops=(Tmpfs("/etc/like", (), (("file", b"x"),)),))
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    os.makedirs(f"{debian}/etc/like")
    bundle = runc_bundle(debian)
    with bundle.created("runc") as container:
        made = "mount -t tmpfs -o size=4m,nr_inodes=8192,mode=555 nvc /etc/like && mknod /etc/like/file c 1 3"
        run("nsenter", "-t", str(container.pid), "-m", "sh", "-ec", made)
        path = f"/proc/{container.pid}/root/etc/like/file"
        assert libc.inotify_add_watch(watch, path.encode(), IN_OPEN) >= 0
        with pytest.raises(NvcError, match="replace in tmpfs: file: file exists"):
            apply(plan, container.pid, debian)
        with pytest.raises(BlockingIOError):
            os.read(watch, 4096)
    os.close(watch)


class Watched:
    """Devices in the places of files, and whether somebody opens them."""

    def __init__(self, rootfs: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for place in PLACES:
            path = os.path.join(rootfs, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                os.unlink(path)
            os.mknod(path, 0o20666, os.makedev(1, 3))
            assert self._libc.inotify_add_watch(self.fd, path.encode(), IN_OPEN) >= 0

    def opened(self) -> str:
        """The first that was, since the last question."""
        try:
            events = EVENT.iter_unpack(os.read(self.fd, 4096))
        except BlockingIOError:
            return ""
        # That one was removed is told, too.
        return next((PLACES[number - 1] for number, mask, _, _ in events if mask & IN_OPEN), "")


@pytest.fixture
def watched(debian: str) -> Iterator[Watched]:
    made = Watched(debian)
    yield made
    os.close(made.fd)


def test_what_is_watched_is_seen(watched: Watched, debian: str) -> None:
    os.close(os.open(f"{debian}/{PLACES[0]}", os.O_RDONLY))
    assert watched.opened() == PLACES[0] and watched.opened() == ""


def bundle(_: Any, root: int) -> None:
    """As of a user's rootless engine, by `doctor`."""
    with pytest.raises(ContainerError, match="not a regular file"):
        read_bundle(f"/proc/self/fd/{root}")


LOOKS: dict[str, Callable[[Any, int], object]] = {
    "copies": lambda kernel, root: find_shadow_libraries(root, LIBS),
    "compat": lambda kernel, root: compat_libraries(kernel, root, "535.1"),
    "bundle": bundle,
    "check": lambda kernel, root: check_files(kernel, root, LIBS),
}


@pytest.mark.parametrize("look", LOOKS)
def test_by_whoever_looks_into_an_image(watched: Watched, debian: str, look: str) -> None:
    root = os.open(debian, O_PATH | os.O_DIRECTORY)
    LOOKS[look](LinuxKernel(), root)
    os.close(root)
    assert watched.opened() == ""


def test_by_a_start(
    watched: Watched, debian: str, runc_bundle: Callable[..., Any], configure: Configure, shim: str
) -> None:
    """With the loader's cache written anew, and a slice."""
    with runc_bundle(debian).created("runc") as container:
        configure(container.pid, debian, ("--device=all", "--compute", "--utility", "--vgpu-memory=1g"))
        assert watched.opened() == ""
        assert os.path.isfile(f"{debian}/etc/ld.so.cache")

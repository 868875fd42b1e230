"""The kernel's version, and what comes back from system calls."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from nvc.base.errors import InitializationError
from nvc.kernel import LinuxKernel, check_floor


@pytest.mark.parametrize(
    "release", ["5.12.0", "5.12", "5.15.0-91-generic", "6.1.0+deb", "10.0.1", "custom", "6", ""]
)
def test_new_enough(release: str) -> None:
    check_floor(release)


@pytest.mark.parametrize("release", ["5.11.22", "4.18.0-553.el8.x86_64", "3.10.0", "5.4.0-1-amd64"])
def test_too_old(release: str) -> None:
    with pytest.raises(InitializationError, match="5.12 or newer") as caught:
        check_floor(release)
    assert release in str(caught.value)


def test_errors_are_oserrors_of_the_right_kind(tmp_path: os.PathLike[str]) -> None:
    kernel = LinuxKernel()
    root = os.open(tmp_path, os.O_PATH)
    with pytest.raises(FileNotFoundError):
        kernel.open_in_root(root, "missing", os.O_RDONLY)
    with pytest.raises(ProcessLookupError):
        kernel.pidfd_open(2**22 + 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        kernel.is_mount_root(-1)
    os.close(root)


def test_links_stay_below_the_root(tmp_path: os.PathLike[str]) -> None:
    kernel = LinuxKernel()
    os.symlink("/" + "../" * 20 + "etc/passwd", os.path.join(tmp_path, "climb"))
    os.symlink("/proc/self/root/etc/passwd", os.path.join(tmp_path, "magic"))
    root = os.open(tmp_path, os.O_PATH)
    for name in ("climb", "magic", "../../etc/passwd"):
        with pytest.raises(OSError):
            kernel.open_in_root(root, name, os.O_RDONLY)
    with pytest.raises(OSError, match="symbolic links"):
        kernel.open_in_root(root, "climb", os.O_RDONLY, follow=False)
    os.close(root)


def test_a_lock_is_waited_for_by_the_clock(tmp_path: os.PathLike[str]) -> None:
    """Not by the number of pauses: each signal ends one at once."""
    kernel, seconds = LinuxKernel(), 0.3
    path = os.path.join(tmp_path, "lock")
    one, other = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    kernel.lock(one, 0)
    over, main = threading.Event(), threading.get_ident()

    def disturb() -> None:
        while not over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=disturb)
    try:
        began = time.monotonic()
        thread.start()
        with pytest.raises(TimeoutError):
            kernel.lock(other, seconds)
        assert time.monotonic() - began >= seconds
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        os.close(one)
        os.close(other)

"""A container whose file system never answers holds nobody up for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support import CLEAN_ENV, REPO
from support.configure import Configure
from support.faults_world import mount, unshare_mounts
from support.plans import LIBS, apply, plan_of
from support.prestart import at_prestart

from nvc.apply.target import SELF, open_target
from nvc.base.errors import ContainerError
from nvc.kernel import LinuxKernel
from nvc.slices.store import registry

SERVER = (sys.executable, os.path.join(REPO, "tests/support/silentfs.py"))


@pytest.mark.parametrize("words, least", [(["--timeout=1"], 2.5), (["--timeout", "2"], 5.5)], ids=["C", "Python"])
def test_a_file_system_that_hangs(
    words: list[str], least: float, scratch: str, sim_root: Any, launcher: str
) -> None:
    """A FUSE file system without a server: whoever looks at a name in it waits, and only a kill ends that."""
    rootfs = f"{scratch}/rootfs"
    os.mkdir(rootfs)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            unshare_mounts()
            server = os.open("/dev/fuse", os.O_RDWR)
            mount("hangs", rootfs, "fuse", data=f"fd={server},rootmode=40000,user_id=0,group_id=0")
            os.write(tell, b"ready")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 5) == b"ready"
        # Three times this ends it. By Python, NVML has this long, on a machine that may be busy.
        before = time.monotonic()
        done = Configure(launcher, sim_root(gpus=1), *words)(pid, rootfs, check=False)
        assert done.returncode == -signal.SIGALRM, done
        assert least < time.monotonic() - before < 10 * least
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_server_that_has_read_the_request(runc_bundle: Any, scratch: str) -> None:
    """No signal ends who waits for it: the applier is left behind."""
    with at_prestart(runc_bundle(), "runc", "true") as held:
        os.makedirs(held.rootfs + LIBS, exist_ok=True)
        words = ("nsenter", "-t", str(held.pid), "-m", *SERVER, held.rootfs + LIBS)
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=CLEAN_ENV) as server:
            try:
                assert server.stdout is not None and server.stdout.readline() == b"ready\n"
                with pytest.raises(ContainerError, match="timed out"):
                    apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs, timeout=0.1)
                assert server.poll() is None
            finally:
                server.kill()
        held.release(check=False)


def test_nobody_is_asked_under_the_registrys_lock(scratch: str) -> None:
    """The slices of all tenants wait for it."""

    class Unlocked(LinuxKernel):
        def open_in_root(self, root: int, path: str, flags: int, follow: bool = True) -> int:
            os.close(registry.locked(LinuxKernel(), 0.0))
            return super().open_in_root(root, path, flags, follow)

    slice: Any = SimpleNamespace(devices=(), holds="", server="", isolation="", held=None)
    with open_target(LinuxKernel(), SELF, scratch) as target:
        registry.enter(LinuxKernel(), target, slice, LIBS)
        registry.enter(Unlocked(), target, slice, LIBS)()

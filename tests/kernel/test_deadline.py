"""A container whose file system never answers holds nobody up for ever."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from support.configure import Configure
from support.faults_world import mount, unshare_mounts


@pytest.mark.parametrize("words, least", [(["--timeout=1"], 2.5), (["--timeout", "3"], 8.5)], ids=["C", "Python"])
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

"""What root in a container does to the files of its slice: the quota stays the host's, and the slice counts.

The container has the capabilities that engines grant by default, and no filter of system calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support import GIB
from support.bundle import Container
from support.configure import BASIC, Configure
from support.on_quota import DENIED, ON_QUOTA
from support.rootfs import as_debian
from support.vgpu import Inside, ensure_shim, entry_of, limits_of

from nvc.kernel import LinuxKernel
from nvc.slices.store import registry
from nvc.slices.store.liveness import living

OUT_OF_MEMORY = 2



@pytest.fixture
def sliced(
    stage: str,
    scratch: str,
    runc_bundle: Any,
    rootfs: Any,
    sim_root: Callable[..., str],
    launcher: str,
) -> Iterator[Container]:
    """A running container with 4 GiB of a GPU."""
    ensure_shim(stage, scratch)
    with ExitStack() as stack:
        path = as_debian(rootfs())
        container: Container = stack.enter_context(runc_bundle(path).created("runc"))
        container.start()
        wanted = ("--device=0", *BASIC[1:], "--vgpu-memory=4GiB")
        Configure(launcher, sim_root())(container.pid, path, wanted)
        yield container
    registry.prune(LinuxKernel(), registry.base_directory())


def test_the_quota_stays_the_hosts(sliced: Container, tool: str) -> None:
    entry = entry_of(sliced.pid)
    with open(entry.quota, "rb") as file:
        before = file.read()
    for name, script in ON_QUOTA.items():
        done = sliced.exec(script, check=False)
        assert done.returncode == 1 and DENIED.search(done.stderr), (
            f"{name}: {done.returncode} {done.stderr}"
        )
        with open(entry.quota, "rb") as file:
            assert file.read() == before, name
    assert limits_of(sliced.pid) == [4 * GIB]
    assert sliced.pid in living(LinuxKernel(), (entry,))[entry.key].pids
    assert os.stat(entry.quota).st_uid == 0 and os.stat(entry.quota).st_mode & 0o777 == 0o644
    inside = Inside(sliced, tool).start()
    assert inside.code("alloc a 4g") == OUT_OF_MEMORY
    inside.ask("alloc b 3g")
    inside.end()


MPS = "export CUDA_MPS_PIPE_DIRECTORY=/tmp CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=80G CUDA_MPS_CLIENT_PRIORITY=0"


@pytest.mark.parametrize("limit", ["ulimit -n 8", "ulimit -v 1048576", "ulimit -u 3", "ulimit -f 0", MPS])
def test_limits_of_the_system(sliced: Container, tool: str, limit: str) -> None:
    """A program with next to nothing of a resource, or variables of MPS, gets no more of the GPU than another."""
    with open(f"{sliced.bundle.rootfs}/tmp/few", "w", encoding="ascii") as script:
        script.write(f"#!/bin/sh\n{limit}\nexec /tmp/vgpu_tool\n")
    os.chmod(script.name, 0o755)
    Inside(sliced, tool).end()  # it puts the program there
    words = "printf 'init\\nprimary 0\\nalloc a 3g\\nalloc b 3g\\n' | /tmp/few"
    answers = [line.split()[0] for line in sliced.exec(words, check=False).stdout.splitlines()]
    assert answers.count("0") <= 3 and answers[3:] != ["0"]

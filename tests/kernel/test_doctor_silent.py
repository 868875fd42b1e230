"""doctor beside a container whose /dev is a file system that never answers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from support import CLEAN_ENV, PATIENCE, REPO
from support.device_cgroup import Group

SILENT = f"exec {shlex.join((sys.executable, os.path.join(REPO, 'tests/support/silentfs.py'), '/dev'))}"
ORDINARY = "mount -t tmpfs none /dev; touch /dev/nvidiactl; echo ready; exec cat"
LOOK = (
    "from nvc.doctor.host.system import scopes; from nvc.kernel import LinuxKernel; print(scopes(LinuxKernel()))"
)


@pytest.mark.parametrize(
    ("program", "found"), [(SILENT, False), (ORDINARY, True)], ids=["silent", "ordinary"]
)
def test_a_dev_that_never_answers(program: str, found: bool) -> None:
    """Its container is left out, and nobody waits for it."""
    name = f"nvc-silent-{os.getpid()}.scope"
    pipe = subprocess.PIPE
    words = ("unshare", "--mount", "sh", "-c", program)
    with Group.make(2, name) as group:
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=CLEAN_ENV) as container:
            try:
                assert container.stdout is not None and container.stdout.readline() == b"ready\n"
                group.enter(container.pid)
                look = (sys.executable, "-c", LOOK)
                with subprocess.Popen(look, stdout=pipe, text=True, cwd=REPO, env=CLEAN_ENV) as doctor:
                    try:
                        said, _ = doctor.communicate(timeout=PATIENCE)
                    finally:  # who waits for the server ends with it, and not before
                        container.kill()
                assert (name in said) == found
            finally:
                container.kill()

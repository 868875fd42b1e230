"""Slices where the driver root is on an overlay, as where nvc is in a container itself, and below chroot(2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, run
from support.processes import in_namespace
from support.rootfs import LIBS

pytestmark = pytest.mark.usefixtures("shim")
MOUNT = """
mkdir {0}/upper {0}/work {0}/merged
mount -t overlay -o lowerdir={1},upperdir={0}/upper,workdir={0}/work none {0}/merged
"""
#: Loads the driver's libraries as a program does, then has itself looked at.
LOAD = """
import ctypes, os, subprocess, sys
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    ctypes.CDLL(name)
sys.exit(subprocess.run(sys.argv[1:] + [str(os.getpid())], env={}).returncode)
"""


@pytest.fixture
def place(scratch: str, sim_root: Callable[..., str]) -> Iterator[list[str]]:
    """Words by which a command is run where the driver root is on an overlay, at `merged` in `scratch`."""
    with in_namespace(MOUNT.format(scratch, sim_root(gpus=1))) as pid:
        yield ["nsenter", "-t", str(pid), "-m"]


def test_check(place: list[str], launcher: str, scratch: str) -> None:
    """The shim is seen to be active; a copy of the driver's library that is removed after loading is named."""
    root = f"{scratch}/merged"
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{root}{LIBS}"}
    sliced = [*place, launcher, f"--root={root}", "vgpu", "run", "--memory=1g", "--", "python3", "-c"]
    done = run(*sliced, LOAD, launcher, "vgpu", "check", env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "") and ": active" in done.stdout, done.stdout + done.stderr
    copy = f"{scratch}/libcuda.so.copy"
    run(*place, "cp", "-L", f"{root}{LIBS}/libcuda.so.1", copy)
    around = f"import ctypes, os; ctypes.CDLL({copy!r}); os.unlink({copy!r})\n" + LOAD
    done = run(*sliced, around, launcher, "vgpu", "check", env=env, check=False)
    assert done.returncode == 1 and f"not covered  {copy}" in done.stdout, done.stdout + done.stderr


#: Runs "$@" below chroot(2), in a directory with everything that this machine has, which is no mount point itself.
CHROOT = """
mount --make-rshared /
mount -t tmpfs none {0}
mkdir {0}/system
for path in /*; do
    if [ -L "$path" ]; then cp -P "$path" {0}/system
    elif [ -d "$path" ]; then mkdir "{0}/system$path"; mount --rbind "$path" "{0}/system$path"; fi
done
before=$(cat /proc/self/mountinfo)
chroot {0}/system "$@"
[ "$before" = "$(cat /proc/self/mountinfo)" ] && echo nothing got out
"""


def test_below_chroot(launcher: str, driver: str, scratch: str) -> None:
    """The root directory is no mount point there. What a slice mounts stays in it, though mounts are shared."""
    os.mkdir(f"{scratch}/new")
    script = CHROOT.format(f"{scratch}/new")
    done = run(
        *("unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh"),
        *(launcher, f"--root={driver}", "vgpu", "run", "--memory=1g", "--"),
        *("sh", "-c", 'pwd; ls "$0"; nvidia-smi', f"{driver}{LIBS}/nvc"),
        cwd=scratch, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    assert "quota" in lines and "/ 1024MiB" in done.stdout, done.stdout
    assert lines[-1] == "nothing got out" and lines[0] == "/"

"""`nvc-cli configure` without a container: only on request, and taken back by --undo, whatever happened since."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, need, run
from support.hook import mounted
from support.nvcd import PATHS
from support.plans import snapshot
from support.rootfs import LIBS, as_debian

WORDS = ("--device=all", "--compute", "--utility")
UNDONE = "nothing to undo\n"
#: nvc-cli that dies with its applier, as if both were killed.
MORTAL = """
import os, sys
from nvc.apply import executor
executor._repair = lambda *_: os._exit(9)
from nvc_cli.boot import main
main()
"""
#: Where the applier is killed: at this system call, for that time.
MOMENTS = (
    ("move_mount", 9),
    ("symlinkat", 3),
    ("dup", 1),
)
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


class Tree:
    """A root file system of the host, and what it was like before."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.before = snapshot(path), mounted(path)

    def is_as_before(self) -> bool:
        return (snapshot(self.path), mounted(self.path)) == self.before


@pytest.fixture
def tree(rootfs: Callable[..., str]) -> Iterator[Tree]:
    """It has a loader cache of its own, and a link in the way."""
    path = as_debian(rootfs())
    os.makedirs(f"{path}{LIBS}", exist_ok=True)
    os.symlink("libcuda.so.1.of-the-image", f"{path}{LIBS}/libcuda.so.1")
    yield Tree(path)
    umount(path)


def umount(path: str) -> None:
    """Everything below it."""
    while left := mounted(path):
        run("umount", "--lazy", left[-1].split()[2])


@pytest.fixture
def cli(launcher: str, driver: str) -> Cli:
    def call(
        *words: str, check: bool = True, head: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        program = head or (launcher,)
        return run(*program, f"--root={driver}", "configure", *words, check=check,
                   env={**CLEAN_ENV, "PYTHONPATH": ":".join(PATHS)})  # fmt: skip

    return call


def test_not_by_mistake(cli: Cli, tree: Tree) -> None:
    done = cli(*WORDS, tree.path, check=False)
    assert done.returncode == 1 and tree.is_as_before()
    assert done.stderr.startswith(
        "nvc-cli: input error: configure: no --pid: this would mount on the host; name"
    )
    for words in (("--host", "--pid=1"), ("--undo", "--pid=1"), ("--undo", "--device=0")):
        assert "not together with --" in cli(*words, tree.path, check=False).stderr
    assert "bind " in cli("--dry-run", *WORDS, tree.path).stdout and tree.is_as_before()


def test_no_slice(cli: Cli, tree: Tree, launcher: str) -> None:
    """Every process of the host would be in it. A plan can be seen all the same."""
    words = ("--vgpu-memory=1GiB", *WORDS, tree.path)
    alone = (need("unshare"), "--mount", "--pid", "--fork", "--mount-proc", launcher)
    for done in (cli("--host", *words, check=False), cli("--no-cgroups", *words, check=False, head=alone)):
        assert done.returncode == 1 and tree.is_as_before()
        assert "every process of the host's mount namespace would be in it; start" in done.stderr
    assert not any("-host" in name for name in glob.glob("/run/nvc/vgpu/*"))
    assert "bind " in cli("--dry-run", *words).stdout


def test_callers_of_nvidia_s(cli: Cli, tree: Tree) -> None:
    """Their call, as LXC's hook makes it, works as it did: in a mount namespace of its own without a word."""
    for words in (("--ldconfig=@/sbin/ldconfig",), ("--no-cgroups",), ("--pid=0",)):
        assert cli(*words, *WORDS, tree.path).stderr == ""
        assert mounted(tree.path)
        umount(tree.path)


def test_their_call_in_the_first_process_s_mounts(cli: Cli, tree: Tree, launcher: str) -> None:
    """There the mounts stay: it says so, and they can be undone."""
    script = f'"$@" && "{launcher}" configure --undo "{tree.path}" && cat /proc/self/mountinfo'
    alone = (need("unshare"), "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", launcher)
    for words, told in ((("--no-cgroups",), True), (("--no-cgroups", "--pid=0"), False)):
        done = cli(*words, *WORDS, tree.path, head=alone)
        assert ("no --pid: these mounts are on this host, until `configure --undo" in done.stderr) == told
        assert tree.path not in done.stdout and tree.is_as_before()


def test_what_a_caller_mounted_is_not_undone(cli: Cli, tree: Tree) -> None:
    """Nothing is known of it, and it ends with the mount namespace. That is said, and no success."""
    cli("--no-cgroups", *WORDS, tree.path)
    done = cli("--undo", tree.path, check=False)
    assert done.returncode == 1 and mounted(tree.path)
    assert f"{tree.path}: a caller's run has mounted {tree.path}/proc/driver" in done.stderr
    umount(tree.path)
    assert cli("--undo", tree.path).stderr.endswith(UNDONE)


def test_done_and_undone(cli: Cli, tree: Tree) -> None:
    assert cli("--undo", tree.path).stderr.endswith(UNDONE) and tree.is_as_before()
    assert cli("--host", *WORDS, tree.path).stderr == ""
    assert len(mounted(tree.path)) > 20
    shown = run("chroot", tree.path, "/usr/bin/nvidia-smi", "-L").stdout
    assert shown.startswith("GPU 0: ")
    assert cli("--undo", tree.path).stderr == ""
    assert tree.is_as_before()
    assert cli("--undo", tree.path).stderr.endswith(UNDONE) and tree.is_as_before()


def test_after_a_boot(cli: Cli, tree: Tree) -> None:
    """It empties /run and ends all mounts; what was made for them is on the disk."""
    cli("--host", *WORDS, tree.path)
    umount(tree.path)
    run("sh", "-c", "rm -r /run/nvc/*")
    assert not tree.is_as_before()
    cli("--undo", tree.path)
    assert tree.is_as_before()


def test_twice_with_other_words(cli: Cli, tree: Tree) -> None:
    """One undo takes everything back: the second call has replaced the first one's changes."""
    cli("--host", *WORDS, tree.path)
    first = mounted(tree.path)
    cli("--host", *WORDS, tree.path)
    assert len(mounted(tree.path)) == len(first)
    cli("--host", "--device=0", "--utility", tree.path)
    assert not [line for line in mounted(tree.path) if "libcuda" in line]
    cli("--undo", "--host", tree.path)
    assert tree.is_as_before()


def test_what_others_made_meanwhile_stays(cli: Cli, tree: Tree, scratch: str) -> None:
    cli("--host", *WORDS, tree.path)
    own = {f"{LIBS}/libown.so": "own", "/dev/own": "own"}
    for name, content in own.items():
        with open(tree.path + name, "w", encoding="ascii") as out:
            out.write(content)
    os.mkdir(f"{tree.path}/proc/own")
    with open(f"{scratch}/note", "w", encoding="ascii") as out:
        out.write("mine")
    smi = f"{tree.path}/usr/bin/nvidia-smi"
    run("umount", smi)
    run("mount", "--bind", f"{scratch}/note", smi)
    run("mount", "--bind", f"{scratch}/note", f"{tree.path}/dev/own")
    os.unlink(f"{tree.path}{LIBS}/libnvidia-ml.so.1")
    os.symlink("elsewhere", f"{tree.path}{LIBS}/libnvidia-ml.so.1")
    cli("--undo", tree.path)
    assert len(mounted(tree.path)) == 2
    run("umount", smi)
    run("umount", f"{tree.path}/dev/own")
    left = snapshot(tree.path).keys() - tree.before[0].keys()
    assert left == {f"{LIBS}/libown.so"[1:], "dev/own", "proc/own", f"{LIBS}/libnvidia-ml.so.1"[1:]} | (
        left & {"usr/bin/nvidia-smi"}
    )
    assert os.readlink(f"{tree.path}{LIBS}/libnvidia-ml.so.1") == "elsewhere"


@pytest.mark.parametrize(("call", "when"), MOMENTS)
def test_killed_in_the_middle(cli: Cli, tree: Tree, call: str, when: int) -> None:
    """Of configure, with nobody left to repair: the undo does."""
    strace = (need("strace"), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
              "-e", f"inject={call}:signal=SIGKILL:when={when}")  # fmt: skip
    mortal = (*strace, sys.executable, "-c", MORTAL)
    assert cli("--host", *WORDS, tree.path, check=False, head=mortal).returncode == 9
    cli("--undo", tree.path)
    assert tree.is_as_before()
    assert cli("--undo", tree.path).stderr.endswith(UNDONE)


@pytest.mark.parametrize(
    ("call", "when"), [("umount2", 12), ("renameat", 1)]
)
def test_an_undo_that_is_killed(cli: Cli, tree: Tree, call: str, when: int) -> None:
    """It says so, and the next one goes on."""
    cli("--host", *WORDS, tree.path)
    strace = (need("strace"), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
              "-e", f"inject={call}:signal=SIGKILL:when={when}")  # fmt: skip
    mortal = (*strace, sys.executable, "-c", MORTAL)
    done = cli("--undo", tree.path, check=False, head=mortal)
    assert done.returncode == 1 and "container error: repair an interrupted run" in done.stderr
    assert glob.glob("/var/lib/nvc/containers/*-host")
    cli("--undo", tree.path)
    assert tree.is_as_before() and not glob.glob("/var/lib/nvc/containers/*-host")

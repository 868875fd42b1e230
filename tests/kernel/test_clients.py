"""Calls as programs make them that know nvidia-container-cli: enroot, LXC, soperator, Charliecloud, Apptainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support import need, run
from support.bundle import Bundle
from support.hook import mounted
from support.plans import snapshot
from support.rootfs import LIBS

from nvc.frontends.runtime.spec import Spec, apply_edits

CALL = ("configure", "--no-cgroups", "--device=all", "--compute", "--utility")


class Standalone:
    """nvidia-container-cli without --pid, in a mount namespace of its own on a root file system."""

    def __init__(self, launcher: str, driver: str, rootfs: str) -> None:
        self.words = (launcher, f"--root={driver}")
        self.rootfs = rootfs

    def __call__(
        self, *words: str, before: str = "", then: str = "", head: tuple[str, ...] = (), **options: Any
    ) -> Any:
        """Configure between two shell scripts in which $1 is the root file system; `head` is before the program."""
        script = f'{before or ":"}; R=$1; shift; "$@" "$R" && {{ set -- "$R"; {then or ":"}; }}'
        call = (*head, *self.words, *CALL, *words)
        return run("unshare", "--mount", "sh", "-c", script, "sh", self.rootfs, *call, **options)


@pytest.fixture
def standalone(launcher: str, driver: str, debian: str) -> Standalone:
    return Standalone(launcher, driver, debian)


def test_a_caller_can_keep_the_loader_cache(standalone: Standalone) -> None:
    """With --ldconfig=/usr/bin/true, as soperator does for a root file system that hosts share."""
    cache = f"{standalone.rootfs}/etc/ld.so.cache"
    before = os.stat(cache)
    standalone("--ldconfig=/usr/bin/true")
    assert os.stat(cache) == before
    standalone("--ldconfig=@/sbin/ldconfig")
    assert os.stat(cache) != before


def test_a_caller_that_keeps_the_cache_gets_the_files_of_list_alone(
    standalone: Standalone, launcher: str, driver: str
) -> None:
    """soperator makes a placeholder for each line of `list`, and takes small files for failed mounts."""
    tree = standalone.rootfs
    before = names(tree)
    standalone("--ldconfig=/usr/bin/true", "--graphics", "--display", "--video")
    new = {name for name in names(tree) - before if os.path.isfile(f"{tree}/{name}")}
    made = {os.path.basename(name) for name in new if not os.path.islink(f"{tree}/{name}")}
    listed = {os.path.basename(line) for line in run(launcher, f"--root={driver}", "list").stdout.splitlines()}
    assert made - listed == set() and "nvidia-xconfig" in made
    assert {"libEGL_nvidia.so.580.159.04", "libnvidia-egl-gbm.so.1.1.2"} <= made
    standalone("--ldconfig=@/sbin/ldconfig", "--graphics")
    assert os.path.exists(f"{tree}/usr/share/glvnd/egl_vendor.d/10_nvidia.json")


def test_what_is_left_in_an_image_has_the_mode_of_the_driver_s_file(
    standalone: Standalone, driver: str
) -> None:
    """So a start without GPUs finds a program that succeeds. Clients compare the modes, too."""
    standalone()
    smi = f"{standalone.rootfs}/usr/bin/nvidia-smi"
    assert os.stat(smi).st_mode == os.stat(f"{driver}/usr/bin/nvidia-smi").st_mode & ~0o022
    library = f"{LIBS}/libcuda.so.580.159.04"
    assert os.stat(standalone.rootfs + library).st_mode & 0o777 == 0o644
    assert os.stat(f"{standalone.rootfs}/dev/nvidia0").st_mode & 0o777 == 0o644
    assert run("sh", "-c", f"{smi} -L").stdout == ""


def test_placeholders_of_a_caller_are_no_files_of_the_image(standalone: Standalone) -> None:
    """Those of soperator hold a few words."""
    for name, said in (("soperator gpu placeholder\\n", False), ("#!/bin/sh\\n" + "# a program\\n" * 9, True)):
        path = f"{standalone.rootfs}/usr/bin/nvidia-smi"
        with open(path, "w", encoding="ascii") as out:
            out.write(name)
        assert ("is covered: /usr/bin/nvidia-smi" in standalone().stderr) == said


def inject(what: str) -> tuple[str, ...]:
    """In front of a program: what strace makes of one of its system calls."""
    name = what.partition(":")[0]
    return need("strace"), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={what}"


def names(tree: str, below: str = "") -> set[str]:
    """What a tree has, without what holds other mounts in a container."""
    return {name for name in snapshot(tree + below) if not name.startswith(("proc/", "dev/"))}


def test_another_host_s_mounts_stay_when_a_start_fails(standalone: Standalone) -> None:
    """Both use the root file system; of one that fails the names stay, since a mount goes when its name goes."""
    tree = standalone.rootfs
    before = names(tree)
    read_only = 'mount --bind "$1/run" "$1/run" && mount -o remount,bind,ro "$1/run"'
    failed = standalone(before=read_only, check=False)
    assert failed.returncode == 1 and "read-only file system" in failed.stderr
    left = names(tree) - before
    assert {f"{LIBS[1:]}/libcuda.so.580.159.04", "usr/bin/nvidia-smi"} <= left
    assert all(os.path.islink(f"{tree}/{name}") or not os.path.getsize(f"{tree}/{name}") or
               os.path.isdir(f"{tree}/{name}") for name in left)  # fmt: skip
    assert standalone(then='chroot "$1" nvidia-smi -L').stdout.count("GPU ") == 2


def test_success_is_said_of_mounts_that_are_there(standalone: Standalone) -> None:
    """Here the kernel only says that it has made the seventh one."""
    done = standalone(head=inject("move_mount:retval=0:when=7"), check=False)
    assert done.returncode == 1 and "has removed or covered what was mounted there" in done.stderr


def test_on_a_file_system_of_many_hosts_names_stay(
    launcher: str, driver: str, runc_bundle: Callable[..., Bundle], debian: str
) -> None:
    """Those of a container, too: it fails at its 20th mount."""
    before = names(debian)
    nfs = "fstatfs:poke_exit=@arg2=6969000000000000"
    for words, stay in (((), False), (("-e", "trace=fstatfs,move_mount", "-e", f"inject={nfs}"), True)):
        with runc_bundle(debian).created("runc") as container:
            container.start()
            head = (*inject("move_mount:error=EIO:when=20"), *words)
            call = (launcher, f"--root={driver}", *CALL, f"--pid={container.pid}", debian)
            done = run(*head, *call, check=False)
        assert "input/output error" in done.stderr
        assert (names(debian) > before) == stay
        assert stay or names(debian) == before


@pytest.mark.parametrize("propagation", ["private", "slave", "shared"])
def test_a_root_directory_that_is_no_mount(
    launcher: str, driver: str, debian: str, shared: str, propagation: str
) -> None:
    """As gVisor has it for plain bundles: a process in a mount namespace of its own, and a directory."""
    tree = shutil.copytree(debian, f"{shared}/rootfs", symlinks=True)
    held = subprocess.Popen(
        [need("unshare"), "--mount", f"--propagation={propagation}", "sh", "-c", "echo; read end"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with held:
        assert held.stdout is not None and held.stdout.readline()
        inside = ("nsenter", f"--target={held.pid}", "--mount")
        done = run(launcher, f"--root={driver}", *CALL, f"--pid={held.pid}", tree, check=False)
        if propagation == "shared":
            assert done.returncode == 1 and "would appear on the host" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert run(*inside, "chroot", tree, "nvidia-smi", "-L").stdout.count("GPU ") == 2
        assert mounted(tree) == []
        held.communicate(b"\n")


def test_the_first_process_of_a_pid_namespace(standalone: Standalone) -> None:
    """Its parent has no number there."""
    alone = ("unshare", "--pid", "--fork", "--kill-child")
    assert standalone(head=alone, then='chroot "$1" nvidia-smi -L').stdout.count("GPU ") == 2


def test_a_log_on_a_terminal_that_is_not_there(launcher: str, driver: str) -> None:
    """As in the command of reports of faults, in a pipeline: it goes on, and warns once."""
    words = (launcher, f"--root={driver}", "--debug=/dev/tty", "info")
    done = run(*words, start_new_session=True)
    assert "GPU UUID" in done.stdout
    assert done.stderr.count("nothing is logged") == 1
    other = run(*words[:2], "--debug=/nowhere/log", "info", check=False)
    assert other.returncode == 1 and "open the debug log: /nowhere/log" in other.stderr


def document(launcher: str, driver: str, *words: str) -> dict[str, Any]:
    return json.loads(run(launcher, f"--root={driver}", "cdi", "generate", *words).stdout)


@pytest.mark.parametrize("words", [(), ("--disable-hook=create-symlinks",)])
def test_names_of_libraries_are_there_once(
    runc_bundle: Callable[..., Bundle], debian: str, launcher: str, driver: str, words: tuple[str, ...]
) -> None:
    """As links of the hook, or as mounts where it is left out. The hook for the loader cache works with both."""
    made = document(launcher, driver, *words)
    everything = next(device for device in made["devices"] if device["name"] == "all")
    bundle = runc_bundle(debian)
    for edits in (made["containerEdits"], everything["containerEdits"]):
        apply_edits(Spec(bundle.config), edits)
    script = f"nvidia-smi -L; readlink {LIBS}/libcuda.so.1; grep -c libcuda.so /proc/mounts"
    *gpus, count = bundle.run("runc", script).stdout.splitlines()
    assert len([line for line in gpus if line.startswith("GPU ")]) == 2
    assert ("libcuda.so.580.159.04" in gpus, count) == ((False, "2") if words else (True, "1"))


@pytest.mark.parametrize("when", [1, 3])
def test_two_hosts_at_the_same_moment(standalone: Standalone, when: int) -> None:
    """A link that the other one has just made is no failure, and each writes a loader cache of its own."""
    other = f"{standalone.rootfs}/etc/.nvc-ld.so.cache"
    with open(other, "w", encoding="ascii") as out:
        out.write("half of it")
    before = os.stat(other)
    standalone(head=inject(f"symlinkat:error=EEXIST:when={when}"))
    assert os.stat(other) == before
    assert [name for name in os.listdir(f"{standalone.rootfs}/etc") if "nvc" in name] == [os.path.basename(other)]
    with open(f"{standalone.rootfs}/etc/ld.so.cache", "rb") as cache:
        assert b"libcuda.so.1" in cache.read()

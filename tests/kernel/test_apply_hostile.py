"""Hostile root file systems: nothing outside is touched, and a failure leaves the container as it was."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import tempfile
import threading
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, run
from support.plans import LIBS, apply, exchange, identity, mounts, plan_of, snapshot
from support.prestart import at_prestart
from support.simdriver import SOURCES, WARN

from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.model.facts import Identity
from nvc.plan.ops import BindFile, Symlink

#: Every path that the plan creates, mounts on, links or replaces, and their parents.
PATHS = [
    "usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/libt0.so.1.0",
    "usr/lib/x86_64-linux-gnu/libt0.so.1", "etc", "etc/ld.so.cache",
]  # fmt: skip


def replace(path: str, text: str) -> None:
    """Put a link where a file or directory may be."""
    if os.path.lexists(path):
        os.rename(path, path + ".was")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(text, path)


@pytest.fixture
def outside(scratch: str) -> str:
    """A directory of the host that a container must not reach, with a file of each name that could be hit."""
    path = f"{scratch}/outside"
    os.makedirs(f"{path}/lib/x86_64-linux-gnu")
    for name in ("ld.so.cache", "libt0.so.1.0", "libt0.so.1", "lib/x86_64-linux-gnu/libt0.so.1.0"):
        with open(f"{path}/{name}", "w", encoding="ascii") as out:
            out.write("host\n")
    return path


@pytest.mark.parametrize(
    ("path", "climb"), [*zip(PATHS, itertools.cycle(("", "/" + "../" * 12, "../" * 12))), (PATHS[2], "")]
)
def test_links_out_of_the_root_stay_inside(
    runc_bundle: Any, scratch: str, outside: str, path: str, climb: str
) -> None:
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "true") as held:
        before, host_mounts = snapshot(outside), mounts(os.getpid())
        replace(f"{held.rootfs}/{path}", (climb + outside).replace("//", "/"))
        try:
            apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs)
        except NvcError as error:
            assert "\n" not in str(error)
        assert snapshot(outside) == before
        assert mounts(os.getpid()) == host_mounts
        assert [line for line in mounts(held.pid) if line.split()[2].startswith(outside)] == []
        held.release(check=False)


def test_a_racing_link_never_leads_outside(runc_bundle: Any, scratch: str, outside: str) -> None:
    """A thread swaps the library directory for a link to the host's while plans are applied again and again."""
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "true") as held:
        directory, stop = held.rootfs + LIBS, threading.Event()
        os.makedirs(directory, exist_ok=True)
        target = f"{outside}/lib/x86_64-linux-gnu"
        climbing = "/" + "../" * 12 + target.lstrip("/")
        before = snapshot(outside)

        os.symlink(climbing, directory + ".link")

        def swap() -> None:
            while not stop.is_set():
                exchange(directory, directory + ".link")

        racer = threading.Thread(target=swap)
        racer.start()
        outcomes = {"done": 0, "refused": 0}
        try:
            plan = plan_of(f"{scratch}/driver")
            for _ in range(10):
                try:
                    apply(plan, held.pid, held.rootfs)
                    outcomes["done"] += 1
                except NvcError:
                    outcomes["refused"] += 1
        finally:
            stop.set()
            racer.join()
        assert snapshot(outside) == before
        assert not [line for line in mounts(held.pid) if line.split()[2].startswith(outside)]
        assert sum(outcomes.values()) == 10
        held.release(check=False)


def test_an_undo_leaves_what_somebody_else_made_meanwhile(runc_bundle: Any, rootfs: Any, scratch: str) -> None:
    """Each directory and file that is missing appears just before it is made: the error takes none of them away."""
    library = f"{scratch}/made_before.so"
    run("gcc", *WARN, "-shared", "-fPIC", "-o", library, f"{SOURCES}/made_before.c", "-ldl")
    with at_prestart(runc_bundle(rootfs(glibc=False)), "runc", "true") as held:
        places = [f"{held.rootfs}{path}" for path in (LIBS, f"{LIBS}/libt0.so.1.0")]
        assert not any(map(os.path.lexists, places))
        env = {**CLEAN_ENV, "PYTHONPATH": f"{REPO}:{REPO}/tests", "LD_PRELOAD": library}
        words = (sys.executable, "-m", "support.apply_once", f"{scratch}/driver", str(held.pid), held.rootfs)
        done = run(*words, "refused", check=False, env=env)
        assert done.returncode == 1 and "/etc" in done.stderr, done.stderr
        assert all(map(os.path.lexists, places))
        held.release(check=False)


def make_fifo(path: str) -> None:
    os.mkfifo(path)


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        fd = os.open(os.path.dirname(path), os.O_PATH)
        listener.bind(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
        os.close(fd)


def make_loop(path: str) -> None:
    os.symlink(os.path.basename(path), path)


REFUSED = [
    (os.mkdir, f"{LIBS}/libt5.so.1.0", "is a directory"),
    (make_loop, f"{LIBS}/libt5.so.1.0", "symbolic links"),
    (os.mkdir, f"{LIBS}/libt5.so.1", "file exists"),
    (make_fifo, f"{LIBS}/libt5.so.1", "file exists"),
    (make_fifo, "/usr/lib/x86_64-linux-gnu", "not a directory"),
    (os.mkdir, "/etc/ld.so.cache", "is a directory"),
]


@pytest.mark.parametrize(("make", "path", "cause"), REFUSED)
def test_what_cannot_be_done_changes_nothing(
    runc_bundle: Any, scratch: str, make: Any, path: str, cause: str
) -> None:
    bundle = runc_bundle()
    plan = plan_of(f"{scratch}/driver")
    with at_prestart(bundle, "runc", "true") as held:
        where = held.rootfs + path
        os.makedirs(os.path.dirname(where), exist_ok=True)
        if os.path.lexists(where):
            os.rename(where, where + ".was")
        make(where)
        before = snapshot(held.rootfs), mounts(held.pid)
        with pytest.raises(NvcError) as caught:
            apply(plan, held.pid, held.rootfs)
        assert (snapshot(held.rootfs), mounts(held.pid)) == before
        text = str(caught.value)
        assert cause in text and "\n" not in text and path in text
        held.release(check=False)


@pytest.mark.parametrize("make", [make_fifo, make_socket])
def test_fifos_and_sockets_are_mounted_over_without_opening(
    runc_bundle: Any, scratch: str, make: Any
) -> None:
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", f"cat {LIBS}/libt5.so.1; cat /etc/ld.so.cache | wc -c") as held:
        os.makedirs(held.rootfs + LIBS, exist_ok=True)
        make(f"{held.rootfs}{LIBS}/libt5.so.1.0")
        os.unlink(f"{held.rootfs}/etc/ld.so.cache")
        make(f"{held.rootfs}/etc/ld.so.cache")
        apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs, timeout=5)
        assert held.release().stdout.startswith("library 5")


def test_a_library_baked_into_the_image_is_covered(runc_bundle: Any, scratch: str) -> None:
    """As after `docker commit`: an old library under the SONAME itself, a dangling link, an old link."""
    bundle = runc_bundle()
    script = f"cd {LIBS}; cat libt1.so.1; cat libt2.so.1; readlink libt3.so.1; cat libt4.so.1.0"
    with at_prestart(bundle, "runc", script) as held:
        base = held.rootfs + LIBS
        os.makedirs(base, exist_ok=True)
        with open(f"{base}/libt1.so.1", "w", encoding="ascii") as out:
            out.write("stale\n")
        os.symlink("libt2.so.0.9", f"{base}/libt2.so.1")
        os.symlink("libt3.so.0.9", f"{base}/libt3.so.1")
        os.symlink("elsewhere.so", f"{base}/libt4.so.1.0")
        outcome = apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs)
        assert any("libt1.so.1" in line for line in outcome.warnings)
        assert apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs).changes == 0
        assert held.release().stdout == "library 1library 2libt3.so.1.0\nlibrary 4"
    with open(f"{base}/libt1.so.1", encoding="ascii") as text:
        assert text.read() == "stale\n"


def test_a_planted_temporary_never_becomes_the_link(runc_bundle: Any, scratch: str) -> None:
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", f"cat {LIBS}/libt3.so.1; readlink {LIBS}/libt3.so.1") as held:
        base = held.rootfs + LIBS
        os.makedirs(base, exist_ok=True)
        os.symlink("libt3.so.0.9", f"{base}/libt3.so.1")
        with open(f"{base}/.nvc-link-libt3.so.1", "w", encoding="ascii") as out:
            out.write("planted\n")
        apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs)
        assert held.release().stdout == "library 3libt3.so.1.0\n"


def test_dangling_directory_links_are_followed_inside(runc_bundle: Any, scratch: str) -> None:
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "cat /opt/real/deep/file") as held:
        os.makedirs(f"{held.rootfs}/opt")
        os.symlink("/opt/real", f"{held.rootfs}/opt/alias")
        source = f"{scratch}/driver/lib/libt0.so.1.0"
        plan = plan_of(f"{scratch}/driver")
        st = os.stat(source)
        bind = BindFile(
            "/lib/libt0.so.1.0", "/opt/alias/deep/file",
            Identity(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns),
        )  # fmt: skip
        apply(plan.replace(ops=(bind,)), held.pid, held.rootfs)
        assert held.release().stdout == "library 0"


def test_a_dangling_link_to_several_missing_directories(runc_bundle: Any, scratch: str) -> None:
    """One that leads to another such link is followed; one that never ends is refused."""
    bundle = runc_bundle()
    plan = plan_of(f"{scratch}/driver")
    with at_prestart(bundle, "runc", "cat /srv/far/away/deep/file") as held:
        os.makedirs(f"{held.rootfs}/opt")
        for text, name in (
            ("/opt/b/one/two", "alias"),
            ("../srv/far/away", "b"),
            ("d/x", "c"),
            ("c/x", "d"),
        ):
            os.symlink(text, f"{held.rootfs}/opt/{name}")
        source = f"{scratch}/driver/lib/libt0.so.1.0"
        before = snapshot(held.rootfs), mounts(held.pid)
        bind = BindFile("/lib/libt0.so.1.0", "/opt/c/file", identity(source))
        with pytest.raises(NvcError) as caught:
            apply(plan.replace(ops=(bind,)), held.pid, held.rootfs)
        assert "too many levels of symbolic links" in str(caught.value)
        assert (snapshot(held.rootfs), mounts(held.pid)) == before
        for target in ("/opt/b/deep/file", "/opt/alias/file"):
            apply(plan.replace(ops=(bind.replace(target=target),)), held.pid, held.rootfs)
        assert held.release().stdout == "library 0"
        assert os.path.isfile(f"{held.rootfs}/srv/far/away/one/two/file")


def test_names_with_newlines_stay_on_one_line(runc_bundle: Any, scratch: str) -> None:
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "true") as held:
        plan = plan_of(f"{scratch}/driver")
        os.makedirs(f"{held.rootfs}/opt/a\nerror: forged")
        plan = plan.replace(ops=(Symlink("x", "/opt/a\nerror: forged"),))
        with pytest.raises(NvcError) as caught:
            apply(plan, held.pid, held.rootfs)
        assert "\n" not in str(caught.value)


def test_a_rootfs_of_somebody_else_is_refused(runc_bundle: Any, scratch: str) -> None:
    bundle, other = runc_bundle(), runc_bundle()
    plan = plan_of(f"{scratch}/driver")
    with at_prestart(bundle, "runc", "true") as held:
        with pytest.raises(ContainerError, match="same container"):
            apply(plan, held.pid, other.rootfs)
        with pytest.raises(ContainerError, match="mount namespace"):
            apply(plan, os.getpid(), held.rootfs)
        with pytest.raises(ContainerError, match="no such file"):
            apply(plan, held.pid, "/nowhere")
        with tempfile.TemporaryDirectory(dir="/tmp") as seen:  # by the parent of this process too, which 0 means
            os.symlink("/", f"{seen}/alias")
            for bad in ("/", "///", "relative", "", "/.", "/proc/..", f"{seen}/alias", f"{seen}/alias/."):
                for pid in (held.pid, 0):
                    with pytest.raises(InputError):
                        apply(plan, pid, bad)
    with bundle.created("runc") as container:
        with pytest.raises(ContainerError, match="same container"):
            apply(plan, container.pid, other.rootfs)
        pid = container.pid
    with pytest.raises(ContainerError, match="has ended"):
        apply(plan, pid, bundle.rootfs)


def test_runs_on_one_rootfs_are_serialised(runc_bundle: Any, scratch: str) -> None:
    bundle = runc_bundle()
    plan = plan_of(f"{scratch}/driver")
    with at_prestart(bundle, "runc", "true") as held:
        outcomes: list[int] = []
        pids = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = 42 if apply(plan, held.pid, held.rootfs).changes == 0 else 43
                finally:
                    os._exit(code)
            pids.append(pid)
        for pid in pids:
            outcomes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert sorted(outcomes) == [42, 42, 42, 42, 42, 43]

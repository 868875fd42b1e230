"""Bad calls and hostile surroundings of `nvc-cli configure`: one line, exit 1, an unchanged container."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from typing import Any

from support.configure import Configure
from support.plans import mounts, snapshot
from support.prestart import at_prestart

from nvc.apply.target import open_target
from nvc.kernel import LinuxKernel

POISON = "import os\nos.close(os.open('/tmp/poisoned', os.O_CREAT, 0o600))\nraise SystemExit('poisoned')\n"

BAD_WORDS = [
    (("--device=7",), "device error: 7: unknown device"),
    (("--device=" + "x" * 5000,), "unknown device"),
    (("--device=0\nforged",), "unknown device"),
    (("--device=all", "--require=cuda>=99.0"), "requirement error: unsatisfied condition: cuda>=99.0"),
    (("--device=all", "--require=unicorns>1"), "invalid expression"),
    (("--device=all", "--mig-config=0"), "mig-config error"),
    (("--device=all", "--imex-channel=2", "--utility"), "imex"),
]


def test_bad_words(runc_bundle: Any, sim_root: Any, launcher: str) -> None:
    bundle = runc_bundle()
    configure = Configure(launcher, sim_root(gpus=1))
    with at_prestart(bundle, "runc", "true") as held:
        before = snapshot(bundle.rootfs), mounts(held.pid)
        for words, cause in BAD_WORDS:
            assert cause.lower() in configure.refusal(held.pid, bundle.rootfs, words).lower()
            assert (snapshot(bundle.rootfs), mounts(held.pid)) == before, words


def test_bad_containers(runc_bundle: Any, rootfs: Any, sim_root: Any, launcher: str) -> None:
    configure = Configure(launcher, sim_root(gpus=1))
    bundle = runc_bundle()
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert "container error" in configure.refusal(ended.pid, bundle.rootfs)
    assert "mount namespace" in configure.refusal(os.getpid(), bundle.rootfs)
    assert "invalid rootfs" in configure.refusal(os.getpid(), "/")
    with at_prestart(bundle, "runc", "true") as held:
        assert "same container" in configure.refusal(held.pid, rootfs())


def test_a_node_that_is_not_the_drivers(runc_bundle: Any, sim_root: Any, launcher: str) -> None:
    """Found by the long way as by a kept inventory."""
    root = sim_root(gpus=1)
    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "true") as held:
        configure = Configure(launcher, root)
        configure(held.pid, bundle.rootfs)
        os.unlink(f"{root}/dev/nvidia0")
        os.mknod(f"{root}/dev/nvidia0", 0o20666, os.makedev(1, 3))
        for options in ((), ("--no-inventory",)):
            line = Configure(launcher, root, *options).refusal(held.pid, bundle.rootfs)
            assert "/dev/nvidia0" in line


def test_nothing_of_the_container_is_executed(
    runc_bundle: Any, sim_root: Any, launcher: str, stage: str
) -> None:
    """A standard library, a package tree and loader files of the container's own, where the host's are."""
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = False
    places = {sysconfig.get_path("stdlib"), os.path.dirname(os.__file__), "/usr/lib/python3.11", *sys.path}
    places |= {f"{stage}/lib/nvc/python/nvc", f"{stage}/lib/nvc/python/nvc/apply"}
    names = ("traceback", "os", "io", "codecs", "json/__init__", "encodings/__init__", "linecache", "struct")
    for place in places:
        for name in (*names, "executor", "errors", "site", "sitecustomize"):
            path = f"{bundle.rootfs}{place}/{name}.py"
            if place.startswith("/"):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="ascii") as out:
                    out.write(POISON)
    with open(f"{bundle.rootfs}/etc/ld.so.preload", "w", encoding="ascii") as out:
        out.write("/poison.so\n")
    with at_prestart(bundle, "runc", "true") as held:
        configure = Configure(launcher, sim_root(gpus=1))
        before = {name for name in snapshot(bundle.rootfs) if name.endswith(".pyc")}
        configure(held.pid, bundle.rootfs)
        os.mkdir(f"{bundle.rootfs}/usr/bin/nvidia-debugdump.d")
        os.makedirs(f"{bundle.rootfs}/etc/nvidia/nvidia-application-profiles-rc.d")
        with open(f"{bundle.rootfs}/usr/lib64/libnvidia-ngx.so.1", "wb") as out:
            out.write(b"")
        configure.refusal(held.pid, f"{bundle.rootfs}/usr")
        assert not os.path.exists("/tmp/poisoned")
        assert not os.path.exists(f"{bundle.rootfs}/tmp/poisoned")
        assert {name for name in snapshot(bundle.rootfs) if name.endswith(".pyc")} == before
        held.release(check=False)


def test_a_slow_applier_is_stopped(runc_bundle: Any, sim_root: Any, launcher: str) -> None:
    """Held by another run's lock for longer than --timeout allows.

    Three times --timeout ends the whole run: a busy machine has twice that for all but the wait.
    """
    import fcntl

    bundle = runc_bundle()
    with at_prestart(bundle, "runc", "true") as held:
        target = open_target(LinuxKernel(), held.pid, bundle.rootfs)
        lock = f"/run/nvc/containers/{target.key(LinuxKernel())}"
        target.close()
        os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
        with open(lock, "w", encoding="ascii") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            root = sim_root(gpus=1)
            refusal = Configure(launcher, root, "--timeout=2").refusal(held.pid, bundle.rootfs)
            assert "lock container" in refusal
        Configure(launcher, root)(held.pid, bundle.rootfs)
        assert not os.path.exists(lock)

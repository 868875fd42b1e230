"""Device rules of cgroup v2 in starts that the launcher does again: the group's program, in real containers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from support.bundle import Bundle
from support.configure import Configure
from support.device_cgroup import DOCKER, SHAPES, hierarchy, load
from support.replay import NO_PYTHON, Starts

from nvc.kernel import bpf

OPEN = "for n in 0 1; do cat /dev/nvidia$n; done; cat /dev/full | head -c1; true"


def test_device_rules_of_version_2(starts: Starts) -> None:
    """No driver answers behind a simulated node: ENXIO where the cgroup allows, EPERM where it denies."""
    said = {which: starts.hooked(which, OPEN, unified=True).stderr for which in ("whole", "alone")}
    assert said["alone"] == said["whole"]
    assert said["alone"].count("No such device or address") == 2
    one = ["NVIDIA_VISIBLE_DEVICES=0"]
    script = "busybox mknod /dev/nvidia1 c 195 1; " + OPEN
    rights = dict.fromkeys(("bounding", "effective", "permitted"), ["CAP_MKNOD"])
    for which in ("whole", "alone"):
        bundle = starts.image()
        bundle.unified = True
        bundle.config["process"]["env"] += one
        bundle.config["process"]["capabilities"] = rights
        bundle.config["linux"]["resources"]["devices"].append(
            {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "m"}
        )
        bundle.hook("prestart", starts.hooks[which][0], starts.hooks[which], ["PATH=/usr/bin:/bin"])
        errors = bundle.run("runc", script).stderr.splitlines()
        assert "No such device or address" in errors[0] and "Operation not permitted" in errors[1], errors


@contextlib.contextmanager
def _group(pid: int) -> Iterator[int]:
    """The directory of the process's group of version 2."""
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as lines:
        path = next(line.rstrip("\n")[3:] for line in lines if line.startswith("0::"))
    with hierarchy(2) as mount:
        directory = os.open(f"{mount}{path}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


def _programs(pid: int) -> tuple[int, ...]:
    with _group(pid) as directory:
        return bpf.attached(directory)[0]


UNIFIED = 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'


def _unified(configure: Configure) -> Configure:
    """The same where /sys/fs/cgroup is that of version 2 alone."""
    made = Configure(configure.launcher, "/")
    made.command = [
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "/bin/sh",
        "-c",
        UNIFIED,
        "sh",
        *configure.command,
    ]
    return made


@pytest.mark.parametrize("privileged", [False, True])
def test_the_program_of_a_group(starts: Starts, privileged: bool) -> None:
    """One that denies is replaced once; one that allows everything stays; after a failure the old one is back."""
    whole, alone = _unified(starts.whole), _unified(starts.alone)

    def image(obstacle: str = "") -> Bundle:
        bundle = starts.image()
        bundle.unified = True
        if privileged:
            bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
        if obstacle:
            os.makedirs(bundle.rootfs + obstacle)
        return bundle

    bundle = image()
    with bundle.created("runc") as container:
        whole(container.pid, bundle.rootfs)
    bundle = image()
    with bundle.created("runc") as container:
        before = _programs(container.pid)
        alone(container.pid, bundle.rootfs)
        after = _programs(container.pid)
        assert len(after) == 1 and (after == before) is privileged
        alone(container.pid, bundle.rootfs)
        assert _programs(container.pid) == after
    bundle = image("/usr/bin/nvidia-smi")
    with bundle.created("runc") as container:
        before = _programs(container.pid)
        assert alone(container.pid, bundle.rootfs, check=False).returncode != 0
        assert _programs(container.pid) == before


def test_two_programs_are_pythons(starts: Starts) -> None:
    bundles = [starts.image(), starts.image()]
    bundles[0].unified = bundles[1].unified = True
    with bundles[0].created("runc") as container:
        _unified(starts.whole)(container.pid, bundles[0].rootfs)
    with bundles[1].created("runc") as container:
        with _group(container.pid) as directory:
            bpf.attach(directory, load(SHAPES["runc"](DOCKER)), bpf.ALLOW_MULTI)
        before = _programs(container.pid)
        done = _unified(starts.alone)(container.pid, bundles[1].rootfs, check=False)
        assert len(before) == 2 and NO_PYTHON in done.stderr and _programs(container.pid) == before

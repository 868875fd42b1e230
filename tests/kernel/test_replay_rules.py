"""Device rules of cgroup v2 in starts that the launcher does again: the group's program, in real containers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from support.builds import kept
from support.bundle import Bundle
from support.configure import Configure
from support.device_cgroup import DOCKER, SHAPES, hierarchy, load
from support.faults import build_tool, read_calls
from support.replay import NO_PYTHON, Starts

from nvc.base.files import closing
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
    with closing(directory):
        yield directory


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


def test_a_program_that_stays_after_a_failure_is_told(starts: Starts, scratch: str) -> None:
    """The image has a directory where a file goes, and the last call, which puts the old program back, fails."""
    tool, log = kept("faults", build_tool), f"{scratch}/calls"
    _configured(_unified(starts.whole), starts.image())
    told = "nvc-cli: warning: undo device rules: Operation not permitted: the container may still use its devices"
    back, done, said = _configured(_traced(starts, tool, "-l", log), _unfit(starts))
    assert back and not done and told not in said
    last = [call for call in read_calls(log) if call.name == "bpf"][-1]
    fault = f"{last.process}:{last.number}:first"
    back, done, said = _configured(_traced(starts, tool, "-f", fault), _unfit(starts))
    assert not back and not done and told in said


def _traced(starts: Starts, *words: str) -> Configure:
    """The program without Python, below the harness of faults."""
    configure = _unified(starts.alone)
    place = len(configure.command) - len(starts.alone.command)
    configure.command[place:place] = words
    return configure


def _unfit(starts: Starts) -> Bundle:
    bundle = starts.image()
    os.makedirs(f"{bundle.rootfs}/usr/bin/nvidia-smi")
    return bundle


def _configured(configure: Configure, bundle: Bundle) -> tuple[bool, bool, str]:
    """Whether a container has the program that it had before; whether that went well; standard error."""
    bundle.unified = True
    with bundle.created("runc") as container:
        before = _programs(container.pid)
        done = configure(container.pid, bundle.rootfs, check=False)
        return _programs(container.pid) == before, NO_PYTHON not in done.stderr, done.stderr

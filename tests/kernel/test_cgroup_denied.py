"""What is said of the devices of a container whose device programs cannot all be judged."""

from __future__ import annotations

import contextlib
import subprocess

from support.device_cgroup import CHAR, DOCKER, GPU, OTHER, Group, Prober, load, runc_shape

from nvc.apply.cgroup.denied import Judgement, judge
from nvc.discovery.containers.running import RunningContainer
from nvc.doctor import UNKNOWN, Finding
from nvc.doctor.container import CHECKS
from nvc.doctor.context import Context
from nvc.kernel import LinuxKernel, bpf
from nvc.model.request import DriverOptions

#: Calls bpf_ktime_get_ns() and allows all: what a call does is not in a dump.
CALLS = [(0x85, 0, 0, 0, 5), (0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]
DEV = (
    "mount -t tmpfs none /dev; mknod /dev/nvidia0 c 195 0; mknod /dev/nvidia1 c 195 1; echo ready; exec cat"
)
GIVEN = runc_shape([*DOCKER, (True, CHAR, *GPU, 7)])


def judged(group: Group) -> Judgement:
    with Prober(group) as inside:
        return judge(LinuxKernel(), inside.pid, (GPU, OTHER))


def test_programs_that_can_be_read(group: Group) -> None:
    group.attach(load(GIVEN), bpf.ALLOW_MULTI)
    found = judged(group)
    assert found.denied == (OTHER,) and found.unknown == ()


def test_one_that_cannot_be_read_is_not_one_that_allows(group: Group) -> None:
    number = group.attach(load(CALLS), bpf.ALLOW_MULTI)
    found = judged(group)
    assert found.denied == () and found.unknown == (GPU, OTHER)
    assert found.cause.startswith(f"device program {number}: it uses calls")


def test_one_that_denies_decides(group: Group) -> None:
    """Each program must allow a device, so what another one says changes nothing."""
    group.attach(load(CALLS), bpf.ALLOW_MULTI)
    group.attach(load(GIVEN), bpf.ALLOW_MULTI)
    found = judged(group)
    assert found.denied == (OTHER,) and found.unknown == (GPU,)


def said(group: Group) -> list[Finding]:
    """What doctor finds of a process with a /dev of its own."""
    pipe = subprocess.PIPE
    check = next(check for check in CHECKS if check.name == "container.rules")
    with subprocess.Popen(("unshare", "--mount", "sh", "-c", DEV), stdin=pipe, stdout=pipe) as container:
        try:
            assert container.stdout is not None and container.stdout.readline() == b"ready\n"
            group.enter(container.pid)
            context = Context(LinuxKernel(), DriverOptions())
            context.container = RunningContainer(str(container.pid), container.pid)
            with contextlib.closing(context):
                return list(check.run(context))
        finally:
            container.kill()


def test_doctor_says_what_it_cannot_tell(group: Group) -> None:
    group.attach(load(CALLS), bpf.ALLOW_MULTI)
    (finding,) = said(group)
    assert finding.status == UNKNOWN
    assert finding.text.startswith(
        "whether its cgroup allows /dev/nvidia0, /dev/nvidia1 is not known: device program"
    )


def test_doctor_says_both(group: Group) -> None:
    group.attach(load(CALLS), bpf.ALLOW_MULTI)
    group.attach(load(GIVEN), bpf.ALLOW_MULTI)
    denied, unknown = said(group)
    assert "denies /dev/nvidia1" in denied.text and "allows /dev/nvidia0 is" in unknown.text

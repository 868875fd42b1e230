"""The probe against NVML libraries that hang, crash, lie and try to get away: real processes in a chroot."""

from __future__ import annotations

import os
import select
import signal
import socket
import time

import pytest
from support.drivertree import ARCH, LIBS, DriverTree
from support.nvml import NvmlTree, built, nvml_tree
from support.processes import children, enter_user_namespace, in_child

from nvc.base.errors import InitializationError, NvcError
from nvc.base.files import closing
from nvc.discovery.driver.places import DIRECTORIES
from nvc.discovery.nvml.questions import described
from nvc.discovery.nvml.wire import ProbeReply, parse_reply
from nvc.kernel import probe as probe_module
from nvc.kernel.probe import ANSWER_LIMIT, IDS_CHANGE, IDS_TRY, Probe, start_probe

__all__ = ["built", "nvml_tree"]

NAMES = ("libnvidia-ml.so.1", *(f"{directory}/libnvidia-ml.so.1" for directory in DIRECTORIES[ARCH]))
NOBODY = 65534
PATIENCE = 20.0  # seconds; nothing below should need more than one


def start(tree: DriverTree, timeout: float = PATIENCE, ids: int = IDS_TRY, uid: int = NOBODY) -> Probe:
    with tree.root() as root:
        return start_probe(root.fd, ids, uid, uid, described(NAMES), timeout)


def ask(tree: DriverTree, timeout: float = PATIENCE, ids: int = IDS_TRY, uid: int = NOBODY) -> ProbeReply:
    """The parsed answer of a probe, of which nothing is left afterwards."""
    before = children()
    probe = start(tree, timeout, ids, uid)
    alive = os.pidfd_open(probe.pid)
    try:
        return parse_reply(probe.result())
    finally:
        probe.close()
        assert has_ended(alive)
        os.close(alive)
        probe_module._reap_ended()  # one that was still ending when it was closed
        assert children() <= before


def has_ended(pidfd: int) -> bool:
    """Whether the process ends while we have patience."""
    waiter = select.poll()
    waiter.register(pidfd, select.POLLIN)
    return waiter.poll(int(PATIENCE * 1000)) != []


def failure(tree: DriverTree, timeout: float = PATIENCE) -> str:
    with pytest.raises(NvcError) as caught:
        ask(tree, timeout)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sound_library_is_asked_everything(nvml_tree: NvmlTree) -> None:
    reply = ask(nvml_tree())
    (gpu,) = reply.gpus
    assert (reply.driver_version, reply.cuda_version, reply.simulated) == ("580.159.04", "13.0", False)
    assert reply.library == f"{LIBS}/libnvidia-ml.so.1"
    assert gpu.uuid == "GPU-00000000-1111-2222-3333-000000000000"
    assert (gpu.minor, gpu.address, gpu.name) == (0, (0, 0x1B, 0), "Test GPU")
    assert (gpu.brand, gpu.architecture, gpu.mig_capable) == ("Nvidia", "9.0", False)


def test_the_probe_has_no_rights_left(nvml_tree: NvmlTree) -> None:
    os.environ["NVC_TEST_SECRET"] = "x"
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    groups = os.getgroups()
    os.setgroups([0, 1, 2])
    try:
        (gpu,) = ask(nvml_tree("TELL")).gpus
        (own,) = ask(nvml_tree("TELL"), ids=IDS_CHANGE, uid=1234).gpus
        (root,) = ask(nvml_tree("TELL"), ids=IDS_CHANGE, uid=0).gpus
    finally:
        os.setgroups(groups)
        os.close(extra)
        del os.environ["NVC_TEST_SECRET"]
    confined = "bounding=0 caps=0 fds=0 env=0 privs=0 core=0 groups=0 fork=0 ids="
    assert gpu.name == f"{confined}{NOBODY}:{NOBODY}"
    assert own.name == f"{confined}1234:1234"
    assert root.name == f"{confined}0:0"


def test_a_hang_ends_at_the_deadline(nvml_tree: NvmlTree) -> None:
    for trouble in ("HANG", "HANG_SIGNALS", "SPIN"):
        tree = nvml_tree(trouble)
        before = time.monotonic()
        text = failure(tree, timeout=0.3)
        assert text.startswith(
            "initialization error: driver rpc error: timed out; NVML did not answer within 0.3 s"
        )
        assert time.monotonic() - before > 0.25


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("CRASH", "initialization error: driver rpc error: probe terminated by SIGSEGV; "),
        ("EXIT", "initialization error: driver rpc error: probe exited with status 3 and no answer; "),
        ("GARBAGE", "detection error: driver rpc error: malformed answer: not JSON at line 1 column 1; "),
        ("FORGE", "detection error: driver rpc error: malformed answer: 5: not a list of 12; "),
        ("FLOOD", f"initialization error: driver rpc error: answer larger than {ANSWER_LIMIT} bytes; "),
        ("ENDLESS", "detection error: driver rpc error: malformed answer: driver version; "),
        ("MANY", "detection error: driver error: too many devices: 65, at most 64"),
        ("EAT", "initialization error: nvml error: insufficient memory"),
    ],
)
def test_each_trouble_has_its_own_line(nvml_tree: NvmlTree, trouble: str, message: str) -> None:
    assert failure(nvml_tree(trouble)).startswith(message)


def test_no_process_can_be_started_in_the_probe(nvml_tree: NvmlTree) -> None:
    """A child could outlive the probe and hold its stream open."""
    assert len(ask(nvml_tree("SPAWN")).gpus) == 1


def test_a_lost_gpu_does_not_hide_the_others(nvml_tree: NvmlTree) -> None:
    reply = ask(nvml_tree("LOST"))
    assert [gpu.index for gpu in reply.gpus] == [0, 2]
    assert reply.warnings == ("GPU 1 is left out: nvmlDeviceGetUUID: gpu is lost",)


def test_mig_devices_are_found_beyond_gaps(nvml_tree: NvmlTree) -> None:
    (gpu,) = ask(nvml_tree("GAPS")).gpus
    assert gpu.mig_enabled
    assert [(mig.index, mig.gpu_instance) for mig in gpu.mig] == [(1, 8), (3, 10), (5, 12)]


def test_no_library_at_all(scratch: str) -> None:
    assert failure(DriverTree(f"{scratch}/empty")).startswith(
        "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: "
        "no such file or directory; install the driver"
    )


def test_a_library_that_cannot_be_loaded_says_why(scratch: str) -> None:
    tree = DriverTree(f"{scratch}/broken")
    tree.file(f"{LIBS}/libnvidia-ml.so.1", b"\x7fELF")
    assert f"load library failed: {LIBS}/libnvidia-ml.so.1: file too short" in failure(tree)


def test_a_root_that_is_no_directory(scratch: str) -> None:
    with closing(os.open(DriverTree(scratch).file("/file"), os.O_PATH)) as fd:
        probe = start_probe(fd, IDS_TRY, NOBODY, NOBODY, described(NAMES), PATIENCE)
    with probe:
        with pytest.raises(InitializationError, match="confine driver probe: chroot: not a directory"):
            parse_reply(probe.result())


def test_without_a_root_of_its_own_the_probe_stays(nvml_tree: NvmlTree) -> None:
    name = f"{nvml_tree().path}{LIBS}/libnvidia-ml.so.1"
    with start_probe(-1, IDS_TRY, NOBODY, NOBODY, described((name,)), PATIENCE) as probe:
        assert parse_reply(probe.result()).library == name


def test_the_probe_dies_with_its_parent(nvml_tree: NvmlTree) -> None:
    tree = nvml_tree("HANG_SIGNALS")
    ours, theirs = socket.socketpair()
    parent = os.fork()
    if parent == 0:
        theirs.send(str(start(tree).pid).encode())
        theirs.recv(1)
        os._exit(0)
    probe = os.pidfd_open(int(ours.recv(32)))
    try:
        waiter = select.poll()
        waiter.register(probe, select.POLLIN)
        assert waiter.poll(0) == []
        ours.send(b"x")
        os.waitpid(parent, 0)
        assert has_ended(probe)
    finally:
        os.close(probe)
        ours.close()
        theirs.close()


def test_a_stream_that_somebody_else_holds_is_read_to_the_probes_end() -> None:
    ours, theirs = socket.socketpair()
    holder, wake = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(wake)
        if os.fork() == 0:  # keeps `theirs` until the test is over
            os.read(holder, 1)
            os._exit(0)
        theirs.send(b"answer")
        os._exit(0)
    theirs.close()
    os.close(holder)
    probe = Probe(pid, ours.detach(), os.pidfd_open(pid), PATIENCE)
    try:
        assert probe.result() == b"answer"
    finally:
        probe.close()
        os.close(wake)


def test_an_inherited_sigchld_setting_does_not_matter(nvml_tree: NvmlTree) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "SIGSEGV" in failure(nvml_tree("CRASH"))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_signal_interrupts_the_wait_and_the_probe_is_reaped(nvml_tree: NvmlTree) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            ask(nvml_tree("HANG"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ids_that_were_asked_for_and_cannot_be_had_are_an_error(nvml_tree: NvmlTree) -> None:
    tree = nvml_tree("TELL")

    def inside() -> str:
        enter_user_namespace(setgroups=False)
        return ask(tree, ids=IDS_CHANGE).gpus[0].name

    assert "confine driver probe: drop ids: operation not permitted" in in_child(inside)

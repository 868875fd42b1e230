"""The tracer's pins, rights and losses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import REPO, run, until
from support.processes import in_child
from support.tracing import Caller, build_calls, changed, unmount, wait_for

from nvc.base.errors import TracerError
from nvc.kernel import LinuxKernel, private_mounts, tracer, tracing, writable_over
from nvc.kernel.clocks import process_began
from nvc.kernel.objects import EXITED
from nvc.kernel.tracer import Tracer, status_at


def pins(directory: str) -> dict[str, list[str]]:
    return {
        name: sorted(os.listdir(f"{directory}/{name}"))
        for name in os.listdir(directory)
        if name.startswith(("maps-", "links-"))
    }


def test_what_is_pinned_is_taken(bpffs: str) -> None:
    Tracer.open(bpffs).close()
    before = pins(bpffs)
    assert sorted(before.values()) == [
        ["births", "counts", "guards", "objects", "owners", "ring", "settings", "spaces"],
        ["sched_process_exit", "sched_process_fork", "sys_exit"],
    ]
    inodes = {path: os.stat(f"{bpffs}/{path}").st_ino for path in before}
    Tracer.open(bpffs).close()
    assert pins(bpffs) == before
    assert {path: os.stat(f"{bpffs}/{path}").st_ino for path in before} == inodes


@pytest.mark.parametrize(
    ("release", "at"), [("5.10.0-33-amd64", 8), ("5.11", 16), ("6.1.0-40", 16), ("4.18.0-553.el8", 8)]
)
def test_where_a_task_says_that_its_call_is_of_32_bits(release: str, at: int) -> None:
    assert status_at(release) == at
    with pytest.raises(OSError, match="names no version"):
        status_at("linux")


def test_since_when_calls_are_seen(bpffs: str, tmp_path: Any) -> None:
    """What a process made before that is not known. What is pinned goes on, so that nothing is lost with it."""
    before = process_began(os.getpid())
    first = Tracer.open(bpffs)
    again, since = Tracer.open(bpffs), first.since
    assert before is not None and before < since == again.since
    other = Tracer.open(bpffs, changed(tmp_path))
    assert other.since > since
    for each in (first, again, other):
        each.close()


def test_another_version_takes_over_what_is_known(bpffs: str, tmp_path: Any) -> None:
    first = Tracer.open(bpffs)
    with Caller(build_calls("64")) as caller:
        first.guard(caller.pid, True)
        first.close()
        before = pins(bpffs)
        second = Tracer.open(bpffs, changed(tmp_path))
        after = pins(bpffs)
        assert len(after) == 2 and after.keys() != before.keys()
        assert caller.pid in second.guarded()
        caller.tell("break plain")
        assert caller.all() == []
        assert kills(second, caller) in (1, 2)

    def once() -> bool:
        """Whether one program tells of a kill: the kernel detaches the other some time after its link is gone."""
        with Caller(build_calls("64")) as caller:
            second.guard(caller.pid, True)
            caller.tell("break plain")
            assert caller.all() == []
            return kills(second, caller) == 1

    until(once)
    second.close()


def kills(tracer_: Tracer, caller: Caller) -> int:
    """How often the tracer tells that it killed a process, which has ended."""
    return sum(each.kind == tracer.KILLED for each in wait_for(tracer_, EXITED, caller.pid))


def test_an_unfinished_start_is_made_good(bpffs: str) -> None:
    Tracer.open(bpffs).close()
    links = next(name for name in os.listdir(bpffs) if name.startswith("links-"))
    os.unlink(f"{bpffs}/{links}/sys_exit")
    os.mkdir(f"{bpffs}/links-of-nobody")
    os.mkdir(f"{bpffs}/maps-0")
    made = Tracer.open(bpffs)
    assert len(pins(bpffs)) == 2
    with Caller(build_calls("64")) as caller:
        made.guard(caller.pid, True)
        caller.tell("break plain")
        assert caller.all() == []
    made.close()


def test_mount_namespaces_do_not_see_each_other(tmp_path: Any) -> None:
    directory = str(tmp_path / "bpf")
    os.mkdir(directory)

    def elsewhere() -> str:
        private_mounts()
        writable_over(str(tmp_path))
        made = Tracer.open(directory)
        made.guard(os.getpid(), True)
        return str(sorted(made.guarded()) == [os.getpid()])

    ours = Tracer.open(directory)
    assert in_child(elsewhere) == "True"
    assert ours.guarded() == frozenset()
    with Caller(build_calls("64")) as caller:
        ours.guard(caller.pid, True)
        caller.tell("break plain")
        assert caller.all() == []
    ours.close()
    unmount(directory)


def test_rights_that_are_missing_are_named(bpffs: str) -> None:
    def without(*numbers: int) -> Callable[[], str]:
        def work() -> str:
            kernel = LinuxKernel()
            _, keep = kernel.capget()
            for number in numbers:
                keep &= ~(1 << number)
            kernel.capset(keep)
            return str(Tracer.open(bpffs))

        return work

    text = in_child(without(38, 39, 21))
    assert "CAP_BPF" in text and "CAP_PERFMON" in text and "CAP_SYS_ADMIN" in text and "PTRACE" not in text
    text = in_child(without(19))
    assert "missing: CAP_SYS_PTRACE (to take a process's descriptor)" in text and "CAP_BPF" not in text
    assert pins(bpffs) == {}


def test_a_pid_namespace_is_named() -> None:
    assert tracer.missing_rights() == ()
    code = "from nvc.kernel.tracer import missing_rights; print(*missing_rights())"
    done = run("unshare", "--pid", "--fork", sys.executable, "-c", code, cwd=REPO)
    assert done.stdout.startswith("the host's pid namespace (")


def test_a_program_that_is_not_there_or_not_whole_is_named(bpffs: str, tmp_path: Any) -> None:
    with pytest.raises(TracerError, match=r"read tracer: /nowhere.bin: no such file .*install nvc again"):
        Tracer.open(bpffs, "/nowhere.bin")
    cut = tmp_path / "cut.bin"
    cut.write_bytes(Path(tracer.flat_path()).read_bytes()[:-8])
    with pytest.raises(TracerError, match="is not whole"):
        Tracer.open(bpffs, str(cut))


@pytest.mark.parametrize("machine", ("x86_64", "aarch64"))
def test_the_verifier_takes_the_program_of_each_machine(machine: str) -> None:
    """Which does not depend on the machine; aarch64's is not attached here."""
    flat = tracing.parse(Path(REPO, f"nvc/tracer-{machine}.bin").read_bytes())
    maps = [tracing.Map.create(shape) for shape in flat.maps]
    for program in flat.programs:
        os.close(tracing.load(program, flat.license, maps))
    for each in maps:
        os.close(each.fd)


def test_the_verifier_is_quoted(bpffs: str, tmp_path: Any) -> None:
    data = Path(tracer.flat_path()).read_bytes()
    head, _, code = data.partition(b"\n")
    bad = tmp_path / "bad.bin"
    bad.write_bytes(head + b"\n" + bytes(8) + code[8:])
    with pytest.raises(TracerError, match=r"load tracer: after_call: invalid argument \(.+\)"):
        Tracer.open(bpffs, str(bad))
    assert not [name for name in pins(bpffs) if name.startswith("links-")]

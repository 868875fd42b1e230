"""A guarded process that starts or stops channels is killed before its call returns, in whatever way it calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.nightly import few
from support.tracing import Caller, build_calls, changed, wait_for

from nvc.daemon.time.timing import Timing
from nvc.kernel.objects import EXITED, KILLED
from nvc.kernel.pid_space import Space, pid_space
from nvc.kernel.tracer import Tracer

WAYS_64 = ("plain", "xfer", "type", "thread", "fork", "vfork", "parent", "grandchild", "high", "int80")
WAYS_32 = ("plain", "xfer", "thread", "fork", "vfork", "parent", "grandchild")
#: What is written by a parent whose child did it.
PARENTS = {
    "fork": "killed 9",
    "vfork": "killed 9",
    "parent": "over",
    "grandchild": "killed 9",
}


CALLS = [("64", way) for way in WAYS_64] + [("32", way) for way in WAYS_32]


@pytest.mark.parametrize(("bits", "way"), CALLS)
def test_a_guarded_process_is_killed(tracer: Tracer, bits: str, way: str) -> None:
    with Caller(build_calls(bits)) as caller:
        tracer.guard(caller.pid, True, (1 << 30) - 1)
        caller.tell(f"break {way}")
        if way in PARENTS:
            caller.expect(PARENTS[way])
        assert "survived" not in caller.all()
        killed = [each for each in tracer.news() if each.kind == KILLED]
        assert [(each.client, each.handle) for each in killed] == [(1, 2)]
        assert killed[0].slice == (1 << 30) - 1
        assert (killed[0].pid == caller.pid) == (way not in PARENTS)
        if way not in PARENTS:
            assert caller.process.wait() == -9


@pytest.mark.parametrize(("bits", "way"), few(CALLS, 4))
def test_others_go_on(tracer: Tracer, bits: str, way: str) -> None:
    with Caller(build_calls(bits)) as caller, Caller(build_calls(bits)) as guarded:
        tracer.guard(guarded.pid, True)
        caller.tell(f"break {way}")
        caller.expect("survived")
        tracer.guard(caller.pid, True)
        tracer.guard(caller.pid, False)
        caller.tell(f"break {way}")
        assert "survived" in caller.all()
        assert not [each for each in tracer.news() if each.kind == KILLED]


def test_who_is_exempt_goes_on(tracer: Tracer) -> None:
    with Caller(build_calls("64")) as caller:
        tracer.guard(caller.pid, True)
        tracer.exempt(caller.pid)
        assert tracer.guarded() == frozenset()
        assert caller.ask("break plain") == ["survived"]


def test_an_exemption_ends_with_its_process(bpffs: str) -> None:
    """Also while nobody runs: a tenant's process may have the number next."""
    tracer = Tracer.open(bpffs)
    flags = tracer._maps["guards"]
    with Caller(build_calls("64")) as caller, Caller(build_calls("64")) as guarded:
        tracer.exempt(caller.pid)
        tracer.guard(guarded.pid, True)
        assert flags.get(caller.pid.to_bytes(4, "little")) is not None
    assert flags.get(caller.pid.to_bytes(4, "little")) is None
    assert guarded.pid in tracer.guarded()
    tracer.objects()
    assert tracer.guarded() == frozenset()
    tracer.close()


def test_a_process_stays_guarded_without_its_first_thread(tracer: Tracer) -> None:
    with Caller(build_calls("64")) as caller:
        tracer.guard(caller.pid, True)
        caller.tell("leave")
        caller.expect("left")
        with open(f"/proc/{caller.pid}/task/{caller.pid}/stat") as file:
            while " Z " not in file.read():
                file.seek(0)
        tracer.news()
        assert tracer.leaving
        assert caller.pid in tracer.guarded()
        caller.tell("break plain")
        assert caller.all() == []
        assert caller.process.wait() == -9
        wait_for(tracer, EXITED, caller.pid)
        assert not tracer.leaving
        assert caller.pid not in tracer.guarded()


def test_a_program_that_another_thread_executes_stays_guarded(tracer: Tracer) -> None:
    with Caller(build_calls("64")) as caller:
        tracer.guard(caller.pid, True)
        caller.tell("exec")
        caller.expect("ready")
        assert not [each for each in tracer.news() if each.kind == EXITED]
        caller.tell("break plain")
        assert caller.all() == []
        assert caller.process.wait() == -9


def test_what_a_guarded_process_starts_is_guarded(tracer: Tracer) -> None:
    """By a program between them that never calls the driver, and has ended."""
    script = 'read line; (printf "break plain\\n" | "$0" /dev/null); echo $?'
    command = ["sh", "-c", script, build_calls("64")]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tracer.guard(shell.pid, True)
    out, _ = shell.communicate("\n")
    assert out.split() == ["ready", "137"]


def test_the_first_process_of_a_container_is_killed_too(tracer: Tracer) -> None:
    """Other signals do not end it by default."""
    script = 'read line; printf "break plain\\nbreak plain\\n" | unshare --pid --fork "$0" /dev/null'
    command = ["sh", "-c", script, build_calls("64")]
    shell = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    tracer.guard(shell.pid, True)
    out, _ = shell.communicate("\n")
    assert out.split() == ["ready"]
    assert [each.kind for each in tracer.news() if each.kind == KILLED] == [KILLED]


def test_whoever_enters_a_pid_namespace_is_killed_at_the_first_call(tracer: Tracer) -> None:
    """As by `docker exec`: it is no child of a guarded process, and has made no object."""
    pipe = subprocess.PIPE
    words = ("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec cat")
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as container:
        assert container.stdout is not None and container.stdout.readline() == b"ready\n"
        with open(f"/proc/{container.pid}/task/{container.pid}/children") as file:
            first = int(file.read())

        def entered(*more: str) -> str:
            enter = ("nsenter", f"--target={first}", *more, build_calls("64"), "/dev/null")
            return subprocess.run(enter, input="break plain\n", stdout=pipe, text=True).stdout

        space = pid_space(first)
        assert space is not None and pid_space(os.getpid()) is None
        assert entered("--pid") == "ready\nsurvived\n"
        tracer.guard_spaces([Space(space[0], space[1] - 1), Space(*space, 7)])
        assert entered("--pid") == "ready\n"
        assert [each.kind for each in tracer.news() if each.kind == KILLED] == [KILLED]
        assert entered("--mount") == "ready\nsurvived\n"
        tracer.guard_spaces([])
        assert entered("--pid") == "ready\nsurvived\n"
        container.stdin.close()  # type: ignore[union-attr]


def test_the_guard_holds_while_nobody_runs(bpffs: str) -> None:
    first = Tracer.open(bpffs)
    with Caller(build_calls("64")) as caller:
        first.guard(caller.pid, True)
        first.close()
        caller.tell("break plain")
        assert caller.all() == []
        again = Tracer.open(bpffs)
        assert caller.pid in again.guarded() or EXITED in {each.kind for each in again.news()}
        again.close()


def test_a_full_table_of_guards_is_said_and_stops_nobody_else(bpffs: str, tmp_path: Path) -> None:
    tracer = Tracer.open(bpffs, changed(tmp_path, guards=4))
    timing: Any = Timing.__new__(Timing)
    said: set[str] = set()
    timing.tracer, timing.guarded, timing.unguarded = tracer, set(), set()
    timing.slices, timing.spaces = SimpleNamespace(say=said.add, whose="slice {} (web)".format), {}
    pids = range(5_000_000, 5_000_006)  # more than the kernel gives
    timing._guard(dict.fromkeys(pids, "slice-a"))
    assert tracer.guarded() == timing.guarded and len(timing.guarded) == 4
    assert timing.unguarded == {"slice-a"}
    (line,) = said
    assert line.startswith("slice slice-a (web) has processes that the tracer cannot guard: ")
    assert "--pids-limit" in line
    ended = min(timing.guarded)
    tracer.guard(ended, False)
    timing.guarded.discard(ended)
    timing.unguarded.clear()
    timing._guard(dict.fromkeys(pids[4:], "slice-b"))
    assert tracer.guarded() == timing.guarded and len(timing.guarded) == 4 and len(said) == 2
    tracer.close()

"""A start that the launcher does again: if its applier fails, Python starts over, and nothing is there twice."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.builds import kept
from support.device_cgroup import hierarchy
from support.faults import build_tool, read_calls
from support.plans import mounts, snapshot
from support.replay import Starts

from nvc.kernel import bpf

#: Runs the hook with a fault, which must happen, or with a log; exits as the hook does.
TRACED = """#!/bin/sh
said=$('{tool}' {words} '{hook}' "$@") || exit 99
said=${{said##*end }}
exit ${{said%% *}}
"""


def rules(pid: int) -> list[str]:
    """What the device programs of the process's group are."""
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as lines:
        path = next(line.rstrip("\n")[3:] for line in lines if line.startswith("0::"))
    found = []
    with hierarchy(2) as mount:
        directory = os.open(f"{mount}{path}", os.O_RDONLY | os.O_DIRECTORY)
        for number in bpf.attached(directory)[0]:
            program = bpf.open_program(number)
            found.append(f"{bpf.identify_program(program).tag:x}")
            os.close(program)
        os.close(directory)
    return found


def hooked(starts: Starts, tool: str, words: str) -> tuple[Any, ...]:
    """What a container has whose hook runs in the harness of faults."""
    bundle = starts.image()
    bundle.unified = True
    bundle.config["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    program, hook = f"{bundle.directory}/hook", starts.hooks["whole"]
    with open(program, "w", encoding="utf-8") as out:
        out.write(TRACED.format(tool=tool, words=words, hook=hook[0]))
    os.chmod(program, 0o755)
    bundle.hook("prestart", program, [program, *hook[1:]], ["PATH=/usr/bin:/bin"])
    with bundle.created("runc") as container:
        lines = [
            line.split(" ", 1)[1].replace(f"/{os.path.basename(bundle.rootfs)} ", "/ROOTFS ")
            for line in mounts(container.pid)
        ]
        return sorted(lines), snapshot(bundle.rootfs), rules(container.pid)


@pytest.fixture(scope="module")
def tool() -> str:
    return kept("faults", build_tool)


def test_what_python_does_again_is_done_once(starts: Starts, tool: str, scratch: str) -> None:
    log = f"{scratch}/calls"
    assert starts.hooked("whole", unified=True).stdout == "2\n"  # leaves the record
    usual = hooked(starts, tool, f"-l {log}")
    calls = list(read_calls(log))
    assert not any(call.name == "execve" for call in calls), "an interpreter was started"
    assert len(usual[2]) == 1
    for name in ("move_mount", "symlinkat"):
        call = [call for call in calls if call.process == "0.1" and call.name == name][-1]
        for action in ("kill", "first"):
            fault = f"-f {call.process}:{call.number}:{action}"
            assert hooked(starts, tool, fault) == usual, fault

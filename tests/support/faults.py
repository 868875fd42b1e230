"""The fault harness: one system call of a container start fails, or ends a process; nothing half-done may stay.

    world = World(SCENARIOS["first"], directory, tool, prefix, driver_root)    # in a process of its own
    for fault in world.faults():
        print(fault, world.attempt(fault))    # what is wrong; [] if all is well

support/faults_run.py tries all of them, tests/kernel/test_faults.py some.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from support import CLEAN_ENV, REPO, run
from support.faults_world import (
    RUN,
    Container,
    Look,
    empty_runtime,
    make_template,
    own_mounts,
    runtime_content,
    runtime_files,
)

ACTIONS = ("first", "second", "kill", "tree", "interrupt")
TIMEOUT = 30  # seconds
TIMED_OUT = -1  # in place of an exit status
#: The archive of nvc's modules: before the first of them is read, the interpreter itself is at work.
_PROGRAM = "lib/nvc/hot.bin"


def build_tool(directory: str) -> str:
    """tests/native/faults.c as a program."""
    tool = os.path.join(directory, "faults")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra")
    sources = [os.path.join(REPO, "tests/native", name) for name in ("faults.c", "faults_tracee.c")]
    run("gcc", *flags, "-o", tool, *sources)
    return tool


class Call(NamedTuple):
    """A system call of a run without a fault."""

    process: str
    number: int
    name: str
    first: int  # errors that it can be made to fail with; 0: it never fails
    second: int
    path: str
    part: str  # launcher, interpreter or nvc


class Fault(NamedTuple):
    """One thing that goes wrong."""

    call: Call
    action: str

    def __str__(self) -> str:
        call = self.call
        what = " ".join(filter(None, (call.name, call.path)))
        return f"{call.process}:{call.number}:{self.action} {what} ({call.part})"


class Scenario(NamedTuple):
    """A way to start a container."""

    name: str
    hook: bool  # nvc-hook, else nvc-cli configure
    inventory: bool  # an earlier start has found the driver
    cgroup: int
    read_only: bool
    slice: bool = False
    cdi: bool = False  # nvc-cdi-hook, in the container's mount namespace
    journal: bool = True  # else there is nowhere to keep one


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("first", hook=False, inventory=False, cgroup=1, read_only=False),
        Scenario("again", hook=False, inventory=True, cgroup=2, read_only=True),
        Scenario("hook", hook=True, inventory=True, cgroup=2, read_only=False),
        Scenario("slice", hook=True, inventory=True, cgroup=1, read_only=False, slice=True),
        Scenario("cdi", hook=True, inventory=False, cgroup=2, read_only=False, cdi=True),
        Scenario("cdi-read-only", hook=True, inventory=False, cgroup=2, read_only=True, cdi=True),
        Scenario(
            "cdi-no-journal", hook=True, inventory=False, cgroup=2, read_only=False, cdi=True, journal=False
        ),
    )
}


LIBRARIES = f"/usr/lib/{os.uname().machine}-linux-gnu"


def cdi_steps(version: str) -> list[str]:
    """Words of a call of nvc-cdi-hook, which needs no interpreter for it."""
    return [
        "slice-memory", "--driver-root=/", "create-symlinks", f"--link=libcuda.so.1::{LIBRARIES}/libcuda.so",
        "--link=../x::/new/directory/link", "enable-cuda-compat", f"--host-driver-version={version}",
        "update-ldcache", f"--folder={LIBRARIES}", "update-application-profile",
        "disable-device-node-modification",
    ]  # fmt: skip


class Done(NamedTuple):
    """How a run ended."""

    made: bool  # the fault was
    status: int  # 128 + signal of one that was killed
    left: int  # processes that lived on
    text: str  # standard error


class World:
    """One scenario's container starts, one after another, in a process with mounts of its own."""

    def __init__(self, scenario: Scenario, directory: str, tool: str, prefix: str, driver_root: str) -> None:
        self.scenario = scenario
        self.directory = os.path.join(directory, f"world-{os.getpid()}")
        self.tool = tool
        self.serial = 0
        for name in ("", "/base", "/bundle"):
            os.mkdir(self.directory + name)
        self.template = f"{self.directory}/template"
        self.rootfs = f"{self.directory}/base/rootfs"
        self.libraries: tuple[str, ...] = ()
        self.command = self._command(prefix, driver_root)
        own_mounts(scenario.journal)
        make_template(self.template, driver_root)
        self.warnings = ""  # of a start in which nothing goes wrong
        self.kept: dict[str, bytes] = {}
        self._learn()

    def _command(self, prefix: str, driver_root: str) -> list[str]:
        if not self.scenario.hook:
            program = os.path.join(prefix, "bin/nvc-cli")
            return [program, f"--root={driver_root}", "configure", "--device=all", "--compute", "--utility"]
        config = f"{self.directory}/config.toml"
        with open(config, "w", encoding="utf-8") as out:
            out.write(f'[nvidia-container-cli]\nroot = "{driver_root}"\nload-kmods = false\n')
        env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
        if self.scenario.slice:
            env += ["NVC_VGPU_MEMORY=8GiB"]
        document = {
            "ociVersion": "1.0.2",
            "root": {"path": self.rootfs},
            "process": {"env": env, "capabilities": {"bounding": []}},
            "linux": {"resources": {"devices": []}},
        }
        with open(f"{self.directory}/bundle/config.json", "w", encoding="utf-8") as out:
            json.dump(document, out)
        if self.scenario.cdi:
            self.libraries = tuple(
                os.path.realpath(f"{driver_root}{LIBRARIES}/{name}")
                for name in ("libcuda.so.1", "libnvidia-ml.so.1")
            )
            version = self.libraries[0].rpartition(".so.")[2]
            return [os.path.join(prefix, "bin/nvc-cdi-hook"), *cdi_steps(version)]
        return [os.path.join(prefix, "bin/nvc-hook"), "-config", config, "prestart"]

    def _learn(self) -> None:
        """Two starts without a fault: what a container is before and after, and what is kept from them."""
        container = self.container()
        self.before = container.look()
        self._must_do(container)
        self.after = container.look()
        container.close()
        assert self.after != self.before
        assert self.scenario.cdi or len(self.after.mounts) > len(self.before.mounts) + 10
        self.files = sorted(runtime_files())
        self.content = runtime_content()
        if self.scenario.inventory:
            self.kept = {
                name: data for name, data in self.content.items() if name.startswith(("inventory", "config"))
            }
        container = self.container()
        log = f"{self.directory}/calls"
        self._must_do(container, log)
        # Processes run beside each other: only the order within each is the same every time.
        self.calls = tuple(sorted(read_calls(log), key=lambda call: (call.process, call.number)))
        container.close()

    def _must_do(self, container: Container, log: str = "") -> None:
        done = self.start(container, log=log)
        if done != Done(False, 0, 0, self.warnings):
            self.warnings = done.text
            assert done == Done(False, 0, 0, self.warnings), done

    def container(self) -> Container:
        """A fresh one, as the runtime directory is."""
        empty_runtime()
        for name, content in self.kept.items():
            with open(os.path.join(RUN, name), "xb") as out:
                os.fchmod(out.fileno(), 0o600)
                out.write(content)
        self.serial += 1
        scenario = self.scenario
        return Container(
            self.template, self.rootfs, scenario.cgroup, scenario.read_only, self.serial, self.libraries
        )

    def start(self, container: Container, fault: str = "", log: str = "") -> Done:
        """Start a container, once."""
        if self.scenario.hook:
            words = self.command
            with open(f"{self.directory}/state.json", "w", encoding="utf-8") as out:
                bundle = f"{self.directory}/bundle"
                json.dump(
                    {"ociVersion": "1.0.2", "id": "faults", "pid": container.pid, "bundle": bundle}, out
                )
        else:
            words = [*self.command, f"--pid={container.pid}", container.rootfs]
            with open(f"{self.directory}/state.json", "w", encoding="utf-8") as out:
                out.write("{}")
        inside = ["nsenter", f"--mount=/proc/{container.pid}/ns/mnt"] if self.scenario.cdi else []
        words = [*inside, *words] if not (fault or log) else words
        traced = [*inside, self.tool, "-t", str(TIMEOUT), *(("-f", fault) if fault else ("-l", log))]
        with open(f"{self.directory}/state.json", "rb") as stdin:
            if not (fault or log):
                done = subprocess.run(words, stdin=stdin, capture_output=True, env=CLEAN_ENV, check=False)
                return Done(False, done.returncode, 0, _text(done))
            done = subprocess.run(
                [*traced, *words], stdin=stdin, capture_output=True, env=CLEAN_ENV, check=False
            )
        assert done.returncode in (0, 3, 4), _text(done)
        if done.returncode == 4:
            return Done(True, TIMED_OUT, 0, _text(done))
        text, status, left = read_end(_text(done))
        return Done(bool(fault) and done.returncode == 0, status, left, text)

    def faults(self, actions: tuple[str, ...] = ACTIONS) -> list[Fault]:
        """Everything that can go wrong, in order.

        The launcher and the interpreter do the same in every scenario: they are left to the first.
        """
        return [
            Fault(call, action)
            for call in self.calls
            if call.part == "nvc" or self.scenario.name == "first" or self.scenario.cdi
            for action in actions
            if _possible(call, action)
        ]

    def attempt(self, fault: Fault) -> list[str]:
        """What is wrong when a start meets the fault: nothing, if all is well."""
        container = self.container()
        try:
            done = self.start(container, f"{fault.call.process}:{fault.call.number}:{fault.action}")
            if not done.made:
                return (
                    [] if done.status == 0 and container.look() == self.after else ["missed: " + done.text]
                )
            look = container.look()
            found = [*self._judge(fault, done, look)]
            if not found and self._is_fresh(look) or self._is_done(look):
                return found  # as it was, or as it shall be: what the next start does is known
            again = self.start(container)
            if again[:3] != (False, 0, 0) or again.text not in ("", self.warnings):
                found.append(f"the next start: exit {again.status}, {again.text}")
            last = container.look()
            if last.written() != self.after:
                found += ["the next start leaves it incomplete", *last.differences(self.after)]
            left = sorted({*runtime_files()} ^ {*self.files})
            if left:
                found.append(f"in {RUN}: {' '.join(left)}")
            return found
        finally:
            container.close()

    def _is_fresh(self, look: Look) -> bool:
        """Whether the start has left no trace at all."""
        return look == self.before and runtime_content() == self.kept

    def _is_done(self, look: Look) -> bool:
        """Whether nothing tells it from a start without a fault."""
        return (
            look == self.after
            and sorted(runtime_files()) == self.files
            and runtime_content() == self.content
        )

    def _judge(self, fault: Fault, done: Done, look: Look) -> Iterator[str]:
        if done.status == TIMED_OUT:
            yield f"no end after {TIMEOUT} s"
        elif done.left:
            yield f"{done.left} processes left"
        if done.status > 128 + 2:
            expected = fault.action in ("kill", "tree") or fault.call.part == "interpreter"
            if not expected:
                yield f"killed by signal {done.status - 128}"
            return
        if fault.call.part != "interpreter":
            yield from judge_text(done.status, done.text)
        if (
            done.status == 0
            and look.written() != self.after
            and not done.text.startswith("nvc-cli: warning: ")
        ):
            yield from ["said to be done, but", *look.differences(self.after)]
        if done.status != 0 and look != self.before:
            yield from [f"failed ({done.text}), but", *look.differences(self.before)]


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr + done.stdout).decode("utf-8", "replace")


def judge_text(status: int, text: str) -> Iterator[str]:
    """What is wrong with the message of a start that has ended by itself."""
    lines = text.splitlines()
    if "Traceback" in text or "internal error" in text:
        yield f"not handled: {lines[0]} ... {lines[-1]}"
    elif status not in (0, 130) and (len(lines) != 1 or lines[0].count(": ") < 3):
        yield f"exit {status}, not one clear line: {text!r}"


def _possible(call: Call, action: str) -> bool:
    if action == "first":
        return call.first > 0
    if action == "second":
        return call.second > 0
    if action == "interrupt":
        return call.process == "0" and call.part == "nvc"
    return action == "kill" or call.process != "0"  # the end of the command is the end of all


def read_calls(log: str) -> Iterator[Call]:
    """The calls of a log that tests/native/faults.c wrote."""
    part, executed, opened = "launcher", False, False
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind != "call":
                continue
            process, number, name, first, second, path = rest.split(" ")
            if process == "0" and part == "launcher" and name == "brk" and executed:
                part = "interpreter"
            elif process == "0" and part == "interpreter" and name == "pread64" and opened:
                part = "nvc"
            opened |= path.endswith(_PROGRAM) and part == "interpreter"
            executed |= name == "execve"
            yield Call(process, int(number), name, int(first), int(second), path, part)


def read_end(text: str) -> tuple[str, int, int]:
    """What the command wrote, its exit status, and how many processes outlived it."""
    written, _, last = text.rpartition("end ")
    status, left = last.split()
    return written, int(status), int(left)

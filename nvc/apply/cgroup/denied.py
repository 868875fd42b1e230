"""Which devices a process may not open, as its device cgroup has it."""

from __future__ import annotations

import os

from nvc.apply.cgroup import v1
from nvc.apply.cgroup.evaluate import verdict
from nvc.apply.cgroup.extend import Unreadable, readable
from nvc.apply.cgroup.find import device_cgroup, read_all
from nvc.apply.cgroup.program import Instruction, Rule
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kernel import O_PATH, Kernel, bpf


class Judgement(Value):
    """What a device cgroup says of some devices. What is in neither tuple is allowed."""

    place: str = ""  # where the cgroup has its rules; "" where nothing restricts the process
    denied: tuple[Rule, ...] = ()
    unknown: tuple[Rule, ...] = ()  # no program surely denies them, and one cannot be judged
    cause: str = ""  # why one cannot be


def judge(kernel: Kernel, pid: int, rules: tuple[Rule, ...]) -> Judgement:
    """What the cgroup of a process says of `rules`.

    Raises MountError or OSError where the cgroup itself cannot be read.
    """
    with closing(os.open(f"/proc/{pid}", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as proc:
        cgroup = device_cgroup(kernel, proc)
    if cgroup is None:
        return Judgement()
    with cgroup:
        if cgroup.version == 1:
            return _by_list(cgroup.directory, f"{cgroup.path}/devices.list", rules)
        return _by_programs(cgroup.directory, cgroup.path, rules)


def _by_list(directory: int, place: str, rules: tuple[Rule, ...]) -> Judgement:
    entries = v1.parse(read_all(os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)))
    everything = any(entry[0] == "a" for entry in entries)
    return Judgement(
        place, tuple(rule for rule in rules if not everything and v1.lacking(entries, rule) is not None)
    )


def _by_programs(directory: int, place: str, rules: tuple[Rule, ...]) -> Judgement:
    """Every program must allow a device: one that denies decides. One that cannot be judged leaves it open."""
    programs: list[list[Instruction]] = []
    cause = ""
    for number in bpf.attached(directory, effective=True)[0]:
        fd = bpf.open_program(number)
        try:
            programs.append(readable(bpf.read_program(fd)))
        except Unreadable as problem:
            cause = f"device program {number}: {problem.cause}"
        finally:
            os.close(fd)
    denied, unknown = [], []
    for rule in rules:
        verdicts = [verdict(code, rule) for code in programs]
        if False in verdicts:
            denied.append(rule)
        elif cause or None in verdicts:
            unknown.append(rule)
    cause = cause or "a device program has instructions that nvc does not know"
    return Judgement(place, tuple(denied), tuple(unknown), cause)

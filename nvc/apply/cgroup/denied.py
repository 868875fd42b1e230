"""Which devices a process may not open, as its device cgroup has it."""

from __future__ import annotations

import os

from nvc.apply.cgroup import v1
from nvc.apply.cgroup.evaluate import allows
from nvc.apply.cgroup.extend import Unreadable, readable
from nvc.apply.cgroup.find import device_cgroup, read_all
from nvc.kernel import O_PATH, bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Rule
    from nvc.kernel import Kernel


def denied(kernel: Kernel, pid: int, rules: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], str]:
    """The `rules` that the cgroup of a process does not allow, and where that cgroup has its own.

    Programs that cannot be read count as such that allow. Raises MountError or OSError where the cgroup itself
    cannot be read.
    """
    proc = os.open(f"/proc/{pid}", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        cgroup = device_cgroup(kernel, proc)
    finally:
        os.close(proc)
    if cgroup is None:
        return (), ""
    try:
        if cgroup.version == 1:
            return _by_list(cgroup.directory, rules), f"{cgroup.path}/devices.list"
        return _by_programs(cgroup.directory, rules), cgroup.path
    finally:
        cgroup.close()


def _by_list(directory: int, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    entries = v1.parse(read_all(os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)))
    everything = any(entry[0] == "a" for entry in entries)
    return tuple(rule for rule in rules if not everything and v1.lacking(entries, rule) is not None)


def _by_programs(directory: int, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    programs = []
    for number in bpf.attached(directory, effective=True)[0]:
        fd = bpf.open_program(number)
        try:
            programs.append(readable(bpf.read_program(fd)))
        except Unreadable:
            continue
        finally:
            os.close(fd)
    return tuple(rule for rule in rules if not all(allows(code, (rule,)) for code in programs))

"""A process in execve(2) holds who looks at most of its /proc: only nvc.kernel.processes looks at that.

Measured on Linux 6.18 with a process of support/held.py. Its `cmdline` it can hold by the lock of its memory.
"""

from __future__ import annotations

import re

from support.sources import read, sources

#: What is below /proc/PID that no process can hold.
FREE = frozenset("cgroup comm fdinfo limits mountinfo oom_score_adj schedstat status task uid_map gid_map".split())
#: A path below a process's directory: what stands for the process, and the next name.
PATH = re.compile(r"/proc/(?:\{[^{}]+\}|%[du]|[1-9][0-9]*)/([a-z_]+)")
#: Files that are held, below whatever directory; and below one that is open.
BELOW = re.compile(
    r"[}s]/((?:stat|environ|maps|smaps|auxv|syscall|wchan|mem|pagemap|exe|cwd|io|ns/\w+)\b)(?=[\"'])"
    r"|[\"'](ns/[\w%]+|stat|environ|maps|exe|cwd|root|mem)[\"'],[^\n]*(?:dir_fd|O_)"
)
#: Calls that wait like those files do.
CALLS = re.compile(r"\b(?:SYS_)?(pidfd_getfd|process_vm_readv|kcmp|process_madvise)\b(?=,|\((?!\d\)))")
OURS = ("nvc/", "cli/", "hooks/", "native/launcher/", "native/core/")
OTHERS = ("nvc/testing/", "nvc/kernel/processes.py")
#: Where it is right, by file and what is looked at.
REASONS = {
    "native/core/files/patience.c fd": "of its own child, which is in no execve(2)",
    "native/core/files/patience.c pidfd_getfd": "in the child, and from it",
    "native/launcher/cdi/target.c ns": "before Linux 6.11, until the alarm",
    "native/launcher/replay/target.c root": "of a runtime's process, or by a child",
    "nvc/daemon/audit/holders.py fd": "their names: open_files opens them",
    "nvc/daemon/suspend/threads.py stat": "in nvcd-suspend and nvcd-idle: nvcd kills who does not answer",
    "nvc/daemon/suspend/threads.py syscall": "likewise",
    "nvc/daemon/suspend/threads.py maps": "likewise",
    "nvc/daemon/suspend/threads.py mem": "likewise",
    "nvc/kernel/clocks.py stat": "a name for people",
    "nvc/kernel/rm.py fd": "likewise",
    "nvc/slices/admin/check.py maps": "likewise",
    "nvc/slices/make/kernel_limits.py stat": "whether it is there: it is not opened",
}


def looks(text: str) -> list[str]:
    """What a file looks at that a process can hold."""
    found = [name for name in PATH.findall(text) if name not in FREE]
    found += [one or other for one, other in BELOW.findall(text)]
    return sorted({name.partition("/")[0] for name in [*found, *CALLS.findall(text)]})


def places() -> list[str]:
    """All such places, as REASONS has them."""
    names = [name for name in sources(".py", ".c") if name.startswith(OURS) and not name.startswith(OTHERS)]
    return [f"{name} {one}" for name in names for one in looks(read(name))]


def test_nobody_else_looks() -> None:
    found = set(places())
    assert not found - set(REASONS), "ask nvc.kernel.processes, or say why a tenant's process cannot hold it"
    assert not set(REASONS) - found, "no longer needed"

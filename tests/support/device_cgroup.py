"""Device cgroups for tests: groups to throw away, programs as runtimes write them, processes that open nodes.

    with Group.make(2) as group, Prober(group) as inside:
        group.attach(load(runc_shape(DOCKER)), ALLOW_MULTI)
        assert inside.opens((1, 3)) and not inside.opens((195, 0))

Device 195:0 is NVIDIA's. Without its driver an allowed open fails with ENXIO, a denied one with EPERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import signal
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nvc.apply.cgroup import RuleChange, prepare
from nvc.apply.cgroup.find import DeviceCgroup, cgroup_mounts, device_cgroup
from nvc.apply.cgroup.program import encode
from nvc.base.files import closing
from nvc.kernel import LinuxKernel, bpf
from support import run, until

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction, Rule

BLOCK, CHAR = 1, 2
MKNOD, READ, WRITE = 1, 2, 4
NULL = (1, 3)
GPU = (195, 0)
CONTROL = (195, 255)
OTHER = (10, 229)  # /dev/fuse, which nobody allows here
NVIDIA = (GPU, CONTROL, (195, 1), (510, 0), (510, 1))
_serial = itertools.count()

#: allow, type (0: both), major, minor (-1: all), access: what Docker asks for, in its order
ModelRule = tuple[bool, int, int, int, int]
DOCKER: tuple[ModelRule, ...] = (
    (True, CHAR, -1, -1, MKNOD),
    (True, BLOCK, -1, -1, MKNOD),
    *(
        (True, CHAR, major, minor, 7)
        for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2))
    ),
    (True, CHAR, 10, 200, 7),
    (True, CHAR, 136, -1, 7),
)


def first_match(rules: Iterable[ModelRule], kind: int, access: int, major: int, minor: int) -> int:
    """What the programs below answer: the first rule that matches and covers the whole access decides."""
    for allow, rule_kind, rule_major, rule_minor, rule_access in rules:
        same = rule_kind in (0, kind) and rule_major in (-1, major) and rule_minor in (-1, minor)
        if same and access & ~rule_access == 0:
            return int(allow)
    return 0


def _body(rules: Iterable[ModelRule], accept: list[list[Instruction]]) -> list[Instruction]:
    """The part that runc, crun and systemd share. `accept` holds the end of a denying and of an allowing rule."""
    code: list[Instruction] = [
        (0x61, 2, 1, 0, 0),
        (0x54, 2, 0, 0, 0xFFFF),
        (0x61, 3, 1, 0, 0),
        (0x74, 3, 0, 0, 16),
        (0x61, 4, 1, 4, 0),
        (0x61, 5, 1, 8, 0),
    ]
    for allow, kind, major, minor, access in rules:
        tests: list[Instruction] = []
        if kind:
            tests.append((0x55, 2, 0, 0, kind))
        if access != 7:
            tests += [(0xBC, 1, 3, 0, 0), (0x54, 1, 0, 0, access), (0x5D, 1, 3, 0, 0)]
        if major >= 0:
            tests.append((0x55, 4, 0, 0, major))
        if minor >= 0:
            tests.append((0x55, 5, 0, 0, minor))
        block = tests + accept[allow]
        for position, (op, dst, src, off, imm) in enumerate(block):
            if op in (0x55, 0x5D):
                block[position] = (op, dst, src, len(block) - position - 1, imm)
            else:
                block[position] = (op, dst, src, off, imm)
        code += block
    return code


def _complete(rules: Iterable[ModelRule], ends: list[list[Instruction]]) -> list[Instruction]:
    """Rules and the last word; nothing behind a rule that matches all, since the verifier refuses dead code."""
    kept: list[ModelRule] = []
    for rule in rules:
        kept.append(rule)
        if rule[1:] == (0, -1, -1, 7):
            return _body(kept, ends)
    return _body(kept, ends) + ends[0]


def runc_shape(rules: Iterable[ModelRule]) -> list[Instruction]:
    """As runc's: 32-bit moves, an exit in each rule."""
    return _complete(rules, [[(0xB4, 0, 0, 0, n), (0x95, 0, 0, 0, 0)] for n in (0, 1)])


def crun_shape(rules: Iterable[ModelRule]) -> list[Instruction]:
    """As crun's: 64-bit moves."""
    return _complete(rules, [[(0xB7, 0, 0, 0, n), (0x95, 0, 0, 0, 0)] for n in (0, 1)])


def systemd_shape(rules: Iterable[ModelRule]) -> list[Instruction]:
    """As systemd's: each rule jumps to one common end. No rule may match everything."""
    mark = 0x7FFF
    code = _body(rules, [[(0x05, 0, 0, mark - 1, 0)], [(0x05, 0, 0, mark, 0)]])
    size = len(code)
    targets = {mark - 1: size, mark: size + 2}
    code = [
        (op, dst, src, targets[off] - position - 1 if op == 0x05 else off, imm)
        for position, (op, dst, src, off, imm) in enumerate(code)
    ]
    return [*code, (0xB7, 0, 0, 0, 0), (0x05, 0, 0, 1, 0), (0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]


SHAPES = {"runc": runc_shape, "crun": crun_shape, "systemd": systemd_shape}


@contextlib.contextmanager
def hierarchy(version: int) -> Iterator[str]:
    """Where device rules of a version are mounted; for as long as they are needed where they were not."""
    with open("/proc/self/mountinfo", "rb") as text:
        points = [mount.point for mount in cgroup_mounts(text.read()) if mount.version == version]
    if points:
        yield points[0]
        return
    directory = tempfile.mkdtemp(prefix="nvc-cgroup-")
    kind = ["cgroup2"] if version == 2 else ["cgroup", "-o", "devices"]
    run("mount", "-t", *kind, "none", directory)
    try:
        yield directory
    finally:
        run("umount", "--lazy", directory)  # a change that a test left open keeps it busy
        os.rmdir(directory)


class Group:
    """A cgroup of one test. `version` is 1 for the devices hierarchy, 2 for the unified one."""

    def __init__(self, version: int, path: str, mount: str) -> None:
        self.version = version
        self.path = path
        self.mount = mount
        os.mkdir(path)
        self.directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._children: list[Group] = []
        self._open: list[int] = []

    @classmethod
    @contextlib.contextmanager
    def make(cls, version: int, name: str = "") -> Iterator[Group]:
        """A group below the root of its hierarchy, removed with its children at the end."""
        with hierarchy(version) as mount:
            path = f"{mount}/{name or f'nvc-test-{os.getpid()}-group-{next(_serial)}'}"
            group = cls(version, path, mount)
            try:
                yield group
            finally:
                group.remove()

    def child(self, name: str) -> Group:
        """A group inside this one."""
        self._children.append(Group(self.version, f"{self.path}/{name}", self.mount))
        return self._children[-1]

    def remove(self) -> None:
        """Remove the group; its processes must have ended."""
        for child in self._children:
            child.remove()
        for descriptor in (self.directory, *self._open):
            os.close(descriptor)
        # The kernel counts a process that has ended a little longer.
        until(lambda: run("rmdir", self.path, check=False).returncode == 0, lambda: f"{self.path} is in use")

    def enter(self, pid: int) -> None:
        """Move a process into the group."""
        with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(pid))

    def write(self, name: str, text: str) -> None:
        """Write one of the group's files with a single system call."""
        with closing(os.open(name, os.O_WRONLY, dir_fd=self.directory)) as descriptor:
            os.write(descriptor, text.encode())

    def read(self, name: str) -> list[str]:
        """The lines of one of the group's files, sorted."""
        with open(f"{self.path}/{name}", encoding="ascii") as text:
            return sorted(text.read().splitlines())

    def attach(self, program: int, flags: int) -> int:
        """Attach a loaded program and return its id."""
        bpf.attach(self.directory, program, flags)
        return bpf.identify_program(program).id

    def attach_link(self, program: int) -> int:
        """Attach a loaded program by a link, which lives until the group is removed, and return its id."""
        attributes = struct.pack("<IIII48x", program, self.directory, 6, 0)
        self._open.append(_bpf(28, attributes))  # BPF_LINK_CREATE, BPF_CGROUP_DEVICE
        return bpf.identify_program(program).id

    @property
    def links(self) -> tuple[int, ...]:
        """The descriptors of the links that hold programs here."""
        return tuple(self._open)

    @property
    def attached(self) -> tuple[int, ...]:
        """The ids of the programs attached to this very group."""
        return bpf.attached(self.directory)[0]

    def described(self) -> DeviceCgroup:
        """The group as `device_cgroup` describes it."""
        return DeviceCgroup(self.version, self.directory, self.path, self.mount)

    def prepare(self, rules: tuple[Rule, ...] = NVIDIA) -> RuleChange:
        """`nvc.apply.cgroup.prepare` for this group."""
        return prepare(LinuxKernel(), self.described(), rules)


def find(pid: int) -> DeviceCgroup | None:
    """`device_cgroup` for a process."""
    with closing(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)) as proc:
        return device_cgroup(LinuxKernel(), proc)


def load(code: list[Instruction]) -> int:
    """Load a device program; the descriptor stays open for the life of the test process."""
    return bpf.load(encode(code))


def _bpf(command: int, attributes: bytes) -> int:
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, command, buffer, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Prober:
    """A process in a group that opens device nodes on demand and says what the kernel answered."""

    def __init__(self, group: Group, *others: Group) -> None:
        self.directory = tempfile.mkdtemp(prefix="nvc-nodes-")
        self._questions, questions = os.pipe()
        answers, self._answers = os.pipe()
        self._questions, questions = questions, self._questions
        self._answers, answers = answers, self._answers
        self.pid = os.fork()
        if not self.pid:
            _serve(questions, answers, (self._questions, self._answers))
        os.close(questions)
        os.close(answers)
        for each in (group, *others):
            each.enter(self.pid)

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._questions)
        os.close(self._answers)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        shutil.rmtree(self.directory)

    def node(self, device: Rule, kind: int = CHAR) -> str:
        """The path of a node, made by this process: the group need not be allowed to."""
        path = os.path.join(self.directory, f"{kind}-{device[0]}-{device[1]}")
        if not os.path.exists(path):
            mode = stat.S_IFCHR if kind == CHAR else stat.S_IFBLK
            os.mknod(path, mode | 0o600, os.makedev(*device))
        return path

    def tries(self, device: Rule, flags: int = os.O_RDWR, kind: int = CHAR) -> int:
        """The errno of an open in the group, 0 if it succeeds."""
        return self._ask("open", self.node(device, kind), flags)

    def opens(self, device: Rule, flags: int = os.O_RDWR, kind: int = CHAR) -> bool:
        """Whether the device rules let an open through; the driver may still refuse it."""
        return self.tries(device, flags, kind) != errno.EPERM

    def makes(self, device: Rule) -> bool:
        """Whether the group may make a node."""
        path = os.path.join(self.directory, "made")
        return self._ask("mknod", path, stat.S_IFCHR | 0o600, *device) != errno.EPERM

    def watch(self, allowed: Rule, denied: Rule) -> None:
        """Start to open both devices over and over, until `outcome` is asked for."""
        os.write(self._questions, f"watch {self.node(allowed)} {self.node(denied)}\n".encode())
        assert self._line() == "watching"

    def outcome(self) -> tuple[int, int, int]:
        """(rounds, times that the allowed device was denied, times that the denied one was not)."""
        rounds, refused, slipped = map(int, self._ask_line("stop\n").split())
        return rounds, refused, slipped

    def _ask(self, *words: object) -> int:
        return int(self._ask_line(" ".join(map(str, words)) + "\n"))

    def _ask_line(self, line: str) -> str:
        os.write(self._questions, line.encode())
        return self._line()

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            part = os.read(self._answers, 4096)
            assert part, "the process in the cgroup has died"
            text += part
        return text.decode().strip()


def assert_docker_and_gpus(inside: Prober, gpus: bool) -> None:
    """Docker's devices work, the NVIDIA ones as told, everything else does not."""
    assert inside.tries(NULL) == 0
    for device in NVIDIA:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            assert inside.opens(device, flags) == gpus
    assert not inside.opens(OTHER)
    assert not inside.opens(GPU, kind=1)
    assert inside.makes(OTHER)


def _serve(questions: int, answers: int, foreign: tuple[int, ...]) -> None:
    """The loop of a Prober's process; never returns."""
    try:
        for descriptor in foreign:
            os.close(descriptor)
        lines = os.fdopen(questions, "r")
        while line := lines.readline():
            verb, *words = line.split()
            if verb == "watch":
                os.write(answers, b"watching\n")
                os.set_blocking(questions, False)
                found = _watch(words[0], words[1], questions)
                os.set_blocking(questions, True)
                os.write(answers, f"{found[0]} {found[1]} {found[2]}\n".encode())
            elif verb == "open":
                os.write(answers, f"{_errno_of_open(words[0], int(words[1]))}\n".encode())
            else:
                os.write(answers, f"{_errno_of_mknod(words[0], *map(int, words[1:]))}\n".encode())
    finally:
        os._exit(0)


def _watch(allowed: str, denied: str, questions: int) -> tuple[int, int, int]:
    rounds = refused = slipped = 0
    while True:
        rounds += 1
        refused += _errno_of_open(allowed, os.O_RDWR) == errno.EPERM
        slipped += _errno_of_open(denied, os.O_RDWR) != errno.EPERM
        try:
            if os.read(questions, 4096):
                return rounds, refused, slipped
        except BlockingIOError:
            pass


def _errno_of_open(path: str, flags: int) -> int:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return error.errno or 0
    return 0


def _errno_of_mknod(path: str, mode: int, major: int, minor: int) -> int:
    try:
        os.mknod(path, mode, os.makedev(major, minor))
        os.unlink(path)
    except OSError as error:
        return error.errno or 0
    return 0

"""Cgroup v2: every device program on the path must allow a device, so each one that denies is replaced.

Adding a program can only take away. Replacing one by itself with our devices before it is the one way to
give. A cgroup that no program is attached to is not restricted. The programs of ancestors stand for other
containers too: they are looked at and never changed.
"""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.cgroup import HINT_SKIP, STEP, RuleChange
from nvc.apply.cgroup.evaluate import allows
from nvc.apply.cgroup.extend import Unreadable, extend, readable
from nvc.apply.cgroup.find import DeviceCgroup
from nvc.apply.cgroup.program import Rule
from nvc.apply.cgroup.replacement import Replacement
from nvc.base.errors import MountError, NvcError
from nvc.base.files import closing
from nvc.kernel import bpf

_ATTEMPTS = 4  # at a cgroup whose programs its engine changes at the same time
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HINT_RIGHTS = "run as root of the host, where no seccomp filter forbids bpf(2), "


def prepare(cgroup: DeviceCgroup, rules: tuple[Rule, ...]) -> RuleChange:
    """What must be replaced so that `rules` are allowed; see `nvc.apply.cgroup.prepare`."""
    change = ProgramChange(cgroup, rules)
    try:
        change.plan()
    except BaseException:
        change.close()
        raise
    return change


class ProgramChange(RuleChange):
    """Programs to replace on the container's cgroup, and on the systemd scope around it if it is its own."""

    def __init__(self, cgroup: DeviceCgroup, rules: tuple[Rule, ...]) -> None:
        super().__init__()
        self._cgroup = cgroup.duplicate()
        self._rules = rules
        self._scope = -1
        self._pending: list[Replacement] = []
        self._done: list[Replacement] = []
        self._allowing: set[int] = set()  # ids of programs known to allow the rules, ours included
        self._applied = False
        self._closed = False

    def apply(self) -> None:
        """Exchange the programs, and look again: an engine may have attached another one meanwhile."""
        if self._applied:
            return
        try:
            for _ in range(_ATTEMPTS):
                self._exchange()
                if self._allowing.issuperset(self._effective()):
                    self._applied = True
                    return
                self.plan()
            raise MountError(STEP, self._cgroup.path, "its device programs keep changing", "try again")
        except OSError as error:
            self.undo()
            raise self._failed(error) from None
        except MountError:
            self.undo()
            raise

    def undo(self) -> None:
        """Put back the programs that were replaced, wherever ours still stand in their places."""
        self._applied = False
        failure: OSError | None = None
        while self._done:
            replacement = self._done.pop()
            self._pending.insert(0, replacement)
            try:
                replacement.undo()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise MountError.of("undo device rules", self._cgroup.path, failure)

    def close(self) -> None:
        """Release the programs; those that are attached stay."""
        for replacement in (*self._pending, *self._done):
            replacement.close()
        self._pending, self._done = [], []
        if self._scope >= 0:
            os.close(self._scope)
            self._scope = -1
        if not self._closed:
            self._closed = True
            self._cgroup.close()

    def plan(self) -> None:
        """Find out which programs deny and load what replaces them. Raises MountError."""
        try:
            for _ in range(_ATTEMPTS):
                for replacement in self._pending:
                    replacement.close()
                self._pending = []
                try:
                    return self._plan()
                except FileNotFoundError:
                    continue  # a program was detached between being listed and being opened
            raise MountError(STEP, self._cgroup.path, "its device programs keep changing", "try again")
        except OSError as error:
            raise self._failed(error) from None

    def _exchange(self) -> None:
        while self._pending:
            self._done.append(self._pending.pop(0))
            if not self._done[-1].apply():
                self._done.pop().close()

    def _effective(self) -> tuple[int, ...]:
        try:
            return bpf.attached(self._cgroup.directory, effective=True)[0]
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOSYS):  # a kernel without such programs
                return ()
            raise

    def _plan(self) -> None:
        above = list(self._effective())
        self.programs = None
        if not above:
            self.programs = (("none", True),)
            return
        alone = len(above) == 1
        self._plan_cgroup(self._cgroup.directory, self._cgroup.path, above, alone)
        if above and (self._scope >= 0 or self._open_scope()):
            self._plan_cgroup(self._scope, self._cgroup.path.rpartition("/")[0], above, alone)
        for program_id in dict.fromkeys(above):
            self._check_ancestor(program_id)

    def _plan_cgroup(self, directory: int, path: str, above: list[int], alone: bool) -> None:
        """Plan for the programs attached to one cgroup, which are taken from the list of all, `above`."""
        own, flags = bpf.attached(directory)
        for program_id in own:
            if program_id in above:
                above.remove(program_id)
        for program_id in dict.fromkeys(own):
            self._plan_one(directory, path, flags, program_id, alone)

    def _plan_one(self, directory: int, path: str, flags: int, program_id: int, alone: bool) -> None:
        old = bpf.open_program(program_id)
        new = -1
        try:
            program = bpf.read_program(old)
            code = readable(program)
            if allows(code, self._rules):
                self._allowing.add(program_id)
                self.programs = ((_text(program.tag), True),) if alone else None
                return
            new = extend(code, self._rules)
            replacement = Replacement(directory, flags, old, program_id, new)
            self._allowing.add(replacement.new_id)
            self._pending.append(replacement)
            if alone:
                self.programs = ((_text(program.tag), False), (_text(replacement.new_tag), True))
            old = new = -1
        except Unreadable as problem:
            cause = f"device program {program_id} denies the nodes and cannot be extended: {problem.cause}"
            raise MountError(STEP, path, cause, f"{problem.hint}, {HINT_SKIP}") from None
        finally:
            for descriptor in (old, new):
                if descriptor >= 0:
                    os.close(descriptor)

    def _open_scope(self) -> bool:
        """Open the systemd scope around the cgroup if nothing else is in it.

        crun lets systemd attach the program to the container's scope and puts the container one level
        deeper, in `container`: that scope is the container's own, though it is an ancestor.
        """
        path, name = self._cgroup.path.rsplit("/", 1)
        if not path.endswith(".scope") or len(path) <= len(self._cgroup.mount):
            return False
        scope = os.open("..", _DIRECTORY, dir_fd=self._cgroup.directory)
        with os.scandir(scope) as entries:
            groups = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        processes = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=scope)
        try:
            if groups == [name] and not os.read(processes, 16):
                self._scope, scope = scope, -1
                return True
            return False
        finally:
            os.close(processes)
            if scope >= 0:
                os.close(scope)

    def _check_ancestor(self, program_id: int) -> None:
        """Raise MountError unless a program of an ancestor allows the rules: it is not ours to change."""
        with closing(bpf.open_program(program_id)) as descriptor:
            try:
                if allows(readable(bpf.read_program(descriptor)), self._rules):
                    self._allowing.add(program_id)
                    return
                cause = "denies the nodes"
            except Unreadable as problem:
                cause = f"may deny the nodes ({problem.cause})"
        found = (path for path, above in self._cgroup.ancestors() if program_id in bpf.attached(above)[0])
        where = next(found, f"above {self._cgroup.mount}")
        hint = "allow them there (with systemd: DeviceAllow= of that unit), "
        what = f"device program {program_id} of this ancestor {cause}"
        raise MountError(STEP, where, what, hint + HINT_SKIP)

    def _failed(self, error: OSError) -> NvcError:
        hint = _HINT_RIGHTS + HINT_SKIP if error.errno == errno.EPERM else HINT_SKIP
        return MountError.of(STEP, self._cgroup.path, error, hint)


def _text(tag: int) -> str:
    return f"{tag:016x}"

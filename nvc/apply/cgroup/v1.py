"""Cgroup v1: rules are written to devices.allow (Documentation/admin-guide/cgroup-v1/devices.rst)."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.cgroup import HINT_SKIP, STEP, RuleChange
from nvc.apply.cgroup.find import DeviceCgroup, read_all
from nvc.base.errors import MountError
from nvc.base.files import closing
from nvc.kernel import Kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Rule

#: type, major, minor as devices.list writes them, and the letters of access
Entry = tuple[str, str, str, str]


def prepare(kernel: Kernel, cgroup: DeviceCgroup, rules: tuple[Rule, ...]) -> RuleChange:
    """What must be added to the cgroup's list, given what is on it; see `nvc.apply.cgroup.prepare`."""
    try:
        entries = parse(_read(kernel, cgroup.directory))
    except OSError as error:
        raise MountError.of(STEP, f"{cgroup.path}/devices.list", error) from None
    additions = []
    for rule in dict.fromkeys(rules):
        missing = lacking(entries, rule)
        if missing is not None:
            additions.append((rule, missing))
    return ListChange(kernel, cgroup, tuple(additions)) if additions else RuleChange()


def parse(text: bytes) -> list[Entry]:
    """The lines of a devices.list, those of an unknown form left out."""
    entries = []
    for line in text.decode("ascii", "replace").split("\n"):
        kind, _, rest = line.partition(" ")
        numbers, _, access = rest.partition(" ")
        major, _, minor = numbers.partition(":")
        if kind in ("a", "b", "c") and minor and access and set(access) <= set("rwm"):
            entries.append((kind, major, minor, access))
    return entries


def lacking(entries: list[Entry], rule: Rule) -> str | None:
    """What a list lacks for reading and writing a device: None for nothing, else what to take back later.

    One entry must give both: the kernel does not add up entries. A group that allows by default shows `a`
    and hides its exceptions. Allowing then removes an exception if there is one; whether there was cannot be
    read, so nothing ("") is taken back.
    """
    major, minor = map(str, rule)
    own = ""
    for kind, listed_major, listed_minor, access in entries:
        if kind == "a":
            return ""
        if kind != "c" or listed_major not in ("*", major) or listed_minor not in ("*", minor):
            continue
        if "r" in access and "w" in access:
            return None
        if (listed_major, listed_minor) == (major, minor):
            own = access
    return "".join(letter for letter in "rw" if letter not in own)


class ListChange(RuleChange):
    """Rules to add to devices.allow, each with the access that `undo` must deny again."""

    def __init__(
        self, kernel: Kernel, cgroup: DeviceCgroup, additions: tuple[tuple[Rule, str], ...]
    ) -> None:
        super().__init__()
        self._kernel = kernel
        self._cgroup = cgroup.duplicate()
        self._closed = False
        self._additions = additions
        self._done: list[tuple[Rule, str]] = []

    def apply(self) -> None:
        """Write the rules that are missing."""
        if self._done:
            return
        try:
            allow = self._kernel.open_in_root(self._cgroup.directory, "devices.allow", os.O_WRONLY, False)
        except OSError as error:
            raise MountError.of(STEP, f"{self._cgroup.path}/devices.allow", error, HINT_SKIP) from None
        with closing(allow):
            for (major, minor), missing in self._additions:
                try:
                    os.write(allow, f"c {major}:{minor} rw".encode())
                except OSError as error:
                    self.undo()
                    raise self._refused(error, (major, minor)) from None
                self._done.append(((major, minor), missing))

    def undo(self) -> None:
        """Deny again what `apply` had to add."""
        done, self._done = self._done, []
        taken_back = [(rule, missing) for rule, missing in reversed(done) if missing]
        if not taken_back:
            return
        try:
            deny = self._kernel.open_in_root(self._cgroup.directory, "devices.deny", os.O_WRONLY, False)
            with closing(deny):
                for (major, minor), missing in taken_back:
                    os.write(deny, f"c {major}:{minor} {missing}".encode())
        except FileNotFoundError:
            return  # the cgroup is gone, and the rules with it
        except OSError as error:
            raise MountError.of("undo device rules", f"{self._cgroup.path}/devices.deny", error) from None

    def close(self) -> None:
        """Release the cgroup's directory."""
        if not self._closed:
            self._closed = True
            self._cgroup.close()

    def _refused(self, error: OSError, rule: Rule) -> MountError:
        """The error for a refused rule. A group may only allow what its parent allows (EPERM)."""
        device = f"c {rule[0]}:{rule[1]} rw"
        parent = self._denying_ancestor(rule) if isinstance(error, PermissionError) else ""
        if not parent:
            cause = f"{device}: {(error.strerror or '').lower()}"
            return MountError(STEP, f"{self._cgroup.path}/devices.allow", cause, "run as root, " + HINT_SKIP)
        hint = f"write `{device}` to {parent}/devices.allow, "
        return MountError(STEP, parent, f"this parent denies {device}", hint + HINT_SKIP)

    def _denying_ancestor(self, rule: Rule) -> str:
        """The path of the nearest cgroup above that does not list a device, "" if there is none."""
        try:
            for path, directory in self._cgroup.ancestors():
                if lacking(parse(_read(self._kernel, directory)), rule):
                    return path
        except OSError:
            pass  # no more than a better message is lost
        return ""


def _read(kernel: Kernel, directory: int) -> bytes:
    return read_all(kernel.open_in_root(directory, "devices.list", os.O_RDONLY, False))

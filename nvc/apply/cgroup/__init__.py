"""A container's device cgroup: letting it read and write the nodes that it was given.

    cgroup = nvc.apply.cgroup.find.device_cgroup(kernel, proc_pid)
    if cgroup is not None:
        change = nvc.apply.cgroup.prepare(kernel, cgroup, ((195, 0), (195, 255)))
        cgroup.close()
        change.apply()
        change.close()

Cgroup v1 has a list of rules that can be added to (`v1`); cgroup v2 asks programs, which must be replaced
(`v2`).
"""

from __future__ import annotations

from posix import stat

from nvc.base.files import Closable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.cgroup.find import DeviceCgroup
    from nvc.apply.cgroup.program import Rule
    from nvc.kernel import Kernel

#: The first words of every error of this package, as callers of NVIDIA's tool know them.
STEP = "failed to add device rules"
HINT_SKIP = "or leave device rules alone with --no-cgroups"
_INITIAL_USER_NAMESPACE = 0xEFFFFFFD  # its inode since Linux 3.8 (PROC_USER_INIT_INO)


class RuleChange(Closable):
    """What would be done to a device cgroup; this one is nothing at all.

    `apply` and `undo` raise MountError and may each be called again without effect. An `apply` that raises
    has taken back what it did. `undo` puts back what was there. `close` releases descriptors; neither works
    after it.
    """

    #: The kernel's tag of each device program that was judged, and whether it allows the rules. The tag is "none"
    #: where there is no program. None where there are several, or it is of another cgroup.
    programs: tuple[tuple[str, bool], ...] | None = None

    def __init__(self, warning: str = "") -> None:
        self.warning = warning  # for the user; "" most of the time

    def apply(self) -> None:
        """Let the cgroup read and write the devices."""

    def undo(self) -> None:
        """Put back what was there before `apply`."""

    def close(self) -> None:
        """Release what is held open."""


def prepare(kernel: Kernel, cgroup: DeviceCgroup, rules: tuple[Rule, ...]) -> RuleChange:
    """Read a device cgroup and work out what it takes to allow `rules`, character devices as (major, minor).

    Nothing is changed yet. Raises MountError where the rules could not be allowed. In a user namespace nobody
    may change a device cgroup: the change is then empty and carries a warning. The caller keeps and closes
    `cgroup`, and may do so at once.
    """
    if not rules:
        return RuleChange()
    if stat("/proc/self/ns/user").st_ino != _INITIAL_USER_NAMESPACE:
        return RuleChange("device rules are left as they are: a user namespace may not change them")
    if cgroup.version == 1:
        from nvc.apply.cgroup import v1

        return v1.prepare(kernel, cgroup, rules)
    from nvc.apply.cgroup import v2

    return v2.prepare(cgroup, rules)

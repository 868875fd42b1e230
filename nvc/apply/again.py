"""Whether the launcher alone may do a call again, for another container: start records.

nvc.apply.replay writes one.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.target import LOADERS, exists
from nvc.base.rundir import CONFIGURATIONS, SYSTEM
from nvc.discovery.driver.compat import DIRECTORY as COMPAT
from nvc.plan.ops import AllowDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.executor import Outcome
    from nvc.apply.target import Target
    from nvc.kernel import Kernel
    from nvc.model.facts import HostFacts
    from nvc.model.request import DriverOptions, Request
    from nvc.plan.ops import Plan
    from nvc.request.config import Config

#: What the records' names begin with in the runtime directory.
PREFIX = "replay-"
_MASK = (1 << 64) - 1
_UNIFIED = "/sys/fs/cgroup/cgroup.controllers"
_STATE = b"%o %d %d %d %d %d %d"


class Call:
    """A call of this program that may be done again.

    `words` say what is asked for, in any container; `configuration` is what was read of files of settings: each
    path with its state, as `settings` and `settings_of` tell it.
    """

    __slots__ = ("words", "facts", "configuration")

    def __init__(self, words: tuple[str, ...], configuration: tuple[tuple[str, bytes], ...]) -> None:
        self.words = words
        self.facts: HostFacts | None = None  # what the plan was made from
        self.configuration = configuration

    def keep(
        self,
        kernel: Kernel,
        options: DriverOptions,
        request: Request,
        plan: Plan,
        target: Target,
        outcome: Outcome,
    ) -> None:
        """Note how the container at `target` got what it has, if that is not known yet and can be done again."""
        try:
            if not self._is_fit(options, request, plan, target, outcome):
                return
            # A record for each device program that was judged: the launcher knows it by the kernel's tag.
            ruled = any(isinstance(op, AllowDevice) for op in plan.ops)
            programs = (outcome.programs or ()) if ruled else (("", True),)
            call = "\1".join((*self.words, traits(kernel, target.rootfs)))
            names = {f"{PREFIX}{hash_of((call + tag).encode()):016x}": (tag, allows) for tag, allows in programs}
            # The launcher removes one that does not hold any more.
            new = {name: one for name, one in names.items() if not os.access(f"{SYSTEM}/{name}", os.F_OK)}
            if not new:
                return
            from nvc.apply.replay import BLOCK, record, store

            content = record(kernel, options, request, plan, self.facts, self.configuration)
            if self.configuration != tuple((path, _state(path)) for path, _ in self.configuration):
                return
            block = content[BLOCK]
            for name, (tag, allows) in new.items():
                content[BLOCK] = b"" if allows else block
                store(name, [(call + tag).encode(), *content])
        except Exception:  # the container is complete: too late to fail, and the next start only takes longer
            pass

    def _is_fit(
        self, options: DriverOptions, request: Request, plan: Plan, target: Target, outcome: Outcome
    ) -> bool:
        known = all(" " <= letter <= "~" for word in self.words for letter in word)
        container = not target.host and not target.user_namespace and target.mount_namespace >= 0
        plain = plan.slice is None and not request.imex_channels and "compat32" not in request.capabilities
        silent = not plan.warnings and not outcome.warnings
        ruled = not request.cgroups or os.access(_UNIFIED, os.F_OK)  # rules of version 1 are not the launcher's
        return known and container and plain and silent and ruled and options.inventory


def traits(kernel: Kernel, rootfs: int) -> str:
    """What decides about an image, a digit each: glibc's and musl's loader, Debian, and CUDA's own libraries."""
    places = (*LOADERS[os.uname().machine], "/etc/debian_version", COMPAT)
    return "".join("1" if exists(kernel, rootfs, path) else "0" for path in places)


def settings() -> tuple[tuple[str, bytes], ...]:
    """The files of settings as they are now, for who is about to read them."""
    return tuple((path, _state(path)) for path in CONFIGURATIONS)


def settings_of(config: Config) -> tuple[tuple[str, bytes], ...]:
    """The files of settings as they were when `config` was read."""
    found: list[tuple[str, bytes]] = []
    for path in CONFIGURATIONS if not config.path or config.path in CONFIGURATIONS else ():
        if path == config.path:
            break
        found.append((path, b"-"))
    if config.path:
        device, inode, size, modified, changed, uid, mode = map(
            int, config.identity.strip(b"()").split(b",")
        )
        found.append((config.path, _STATE % (mode, uid, device, inode, size, modified, changed)))
    return tuple(found)


def _state(path: str) -> bytes:
    try:
        status = os.stat(path)
    except OSError:
        return b"-"
    return _STATE % (
        status.st_mode, status.st_uid, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
        status.st_ctime_ns,
    )  # fmt: skip


def hash_of(text: bytes) -> int:
    """FNV-1a, as the launcher computes it."""
    found = 0xCBF29CE484222325
    for byte in text:
        found = (found ^ byte) * 0x100000001B3 & _MASK
    return found

"""Every error that nvc raises on purpose.

    NvcError
    |- InputError           input         the call itself is wrong (flags, selectors, sizes)
    |  `- UsageError        input         the words of a command line are wrong
    |- PermissionDenied     permission    a right is missing
    |- InitializationError  initialization  driver helper, driver root, kernel floor, unsafe installation
    |  |- TracerError       initialization  what processes make of the driver cannot be seen
    |  `- RmError           initialization  the driver's resource manager refuses a call
    |- ContainerError       container     pid, namespaces, rootfs
    |- DetectionError       detection     driver files, NVML, device nodes
    |  `- SourceChanged     detection     what a plan rests on has changed
    |- DeviceError          device        a selector matches nothing
    |- MigConfigError       mig-config
    |- MigMonitorError      mig-monitor
    |- RequirementError     requirement   an image's requirement does not hold
    |- MountError           mount         the applier: mounts, files, links, device rules
    |- LoaderCacheError     ldcache
    |- HostError            host          the host has no memory, no descriptors, a disk that fails
    `- InternalError        internal      our bug: a traceback is printed

The text has the shape `<stage> error: <step>: <path>: <cause>; <hint>`, on one line, which is what
callers of nvidia-container-cli parse and what engines show. Exit code 1 for every handled failure, as there.

Each class has a code that never changes its meaning: `nvc-cli explain CODE` says more (docs/errors.md). The
code, and the check of `nvc-cli doctor` that looks into such errors, follow the text where it reaches a person.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Self = TypeVar("Self", bound="NvcError")


def one_line(text: object) -> str:
    """`text` with control characters replaced, at most 512 characters: it may quote a hostile name."""
    clean = "".join(c if c.isprintable() else "?" for c in str(text))
    return clean if len(clean) <= 512 else clean[:509] + "..."


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 slice`, `2 slices`; `many` is a plural that an `s` does not make."""
    return f"{number} {noun if number == 1 else many or f'{noun}s'}"


def visible(text: str) -> str:
    """`text` with `\\x1b` and the like for characters that would move a terminal, end a line or not be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


_NAMEI = "`namei -l` of that path shows which part of it is wrong"
_RIGHTS = "run as root; for root, `dmesg` may name the rule that refused it"
_ROOM = "make room: `df -h` and `df -i` show what is full"
_KERNEL = "`nvc-cli doctor host` shows what the kernel lacks"
#: What to do about a failed call, by its errno: where it is the caller or the host that fails, whatever was called.
_AROUND = {
    13: _RIGHTS, 28: _ROOM, 122: _ROOM,
    12: "`free -h`, and the limit of the memory cgroup, show what is short",
    23: "end programs that hold many files: `cat /proc/sys/fs/file-nr`",
    24: "raise the caller's limit: `ulimit -n`, or LimitNOFILE= of its unit",
    30: "mount its file system read-write, or choose another path",
}  # fmt: skip
#: Likewise, where the class does not know better.
_THERE = {
    1: _RIGHTS, 2: _NAMEI, 20: _NAMEI, 21: _NAMEI, 40: _NAMEI, 38: _KERNEL, 95: _KERNEL,
    3: "that process has ended: start it again",
    16: "end who uses it: `fuser -vm` of that path",
    17: "remove it, or choose another path",
    36: "choose a shorter path",
    98: "stop who listens there, or choose another address: `ss -lntxp`",
    99: "choose an address of this host: `ip address`",
    111: "start what should listen there",
}  # fmt: skip


def remedy(number: int, known: str = "") -> str:
    """What to do about a call that failed with this errno; `known` is what else would be said."""
    return _AROUND.get(number) or known or _THERE.get(number) or "`dmesg`, the kernel's log, may say more"


class NvcError(Exception):
    """A handled failure. `step` is what was tried, `path` where, `cause` why, `hint` what to do."""

    exit_code = 1
    code = "NVC-1000"
    stage = "nvc"
    hint = ""
    doctor = ""  # the checks that look into it

    def __init_subclass__(
        cls, code: str = "", stage: str = "", hint: str = "", doctor: str = "", exit_code: int = 0
    ) -> None:
        """What a class leaves out is its base's."""
        own = {"code": code, "stage": stage, "hint": hint, "doctor": doctor, "exit_code": exit_code}
        for name, value in own.items():
            if value:
                setattr(cls, name, value)

    def __init__(self, step: str, path: str = "", cause: object = "", hint: str = "") -> None:
        super().__init__(step, path, cause)
        self.step = step
        self.path = path
        self.cause = cause
        if hint:
            self.hint = hint

    @classmethod
    def of(cls: type[Self], step: str, path: str, error: OSError, hint: str = "") -> Self:
        """The error for a failed system call; the kernel's text in lower case, as the peers print it."""
        hint = hint or remedy(error.errno or 0, cls.hint)
        return cls(step, path, (error.strerror or str(error)).lower(), hint)

    def __str__(self) -> str:
        parts = [one_line(part) for part in (self.step, self.path, self.cause) if part != ""]
        text = f"{self.stage} error: {': '.join(parts)}"
        return f"{text}; {one_line(self.hint)}" if self.hint else text

    def line(self) -> str:
        """The text for people: with the code, and what to run to find out more."""
        return f"{self} [{self.code}{f': nvc-cli doctor {self.doctor}' if self.doctor else ''}]"


class InputError(NvcError, code="NVC-1001", stage="input"):
    """The call is wrong: flags, selectors, sizes, settings."""


class UsageError(InputError, code="NVC-1002"):
    """The words of a command line are wrong: the program shows how it is called."""


class PermissionDenied(NvcError, code="NVC-1101", stage="permission", hint="run as root", doctor="host"):
    """The caller lacks a right."""


class InitializationError(NvcError, code="NVC-1201", stage="initialization", doctor="driver"):
    """nvc cannot begin: driver helper, driver root, kernel, installation."""


class TracerError(
    InitializationError, code="NVC-1211", hint="time is kept by the shim meanwhile", doctor="vgpu"
):
    """What processes make of the driver cannot be seen: a right, a kernel feature or a file is missing."""


class RmError(
    InitializationError, code="NVC-1212", hint="time is kept by the shim meanwhile", doctor="driver"
):
    """The driver's resource manager refuses a call."""


class ContainerError(
    NvcError, code="NVC-1301", stage="container", doctor="host",
    hint="start the container again; its engine's log may say more",
):  # fmt: skip
    """The container cannot be opened or read."""


class DetectionError(
    NvcError, code="NVC-1401", stage="detection", doctor="driver nodes", hint="reinstall the driver"
):
    """The driver's files, NVML or device nodes are not what they should be."""


class SourceChanged(
    DetectionError, code="NVC-1402",
    hint="the driver changed meanwhile; try again, or add --no-inventory",
):  # fmt: skip
    """What a plan rests on has changed: a file is not the one that discovery found, or a device's policy."""


class DeviceError(
    NvcError, code="NVC-1501", stage="device", doctor="driver nodes",
    hint="`nvc-cli info` shows the devices",
):  # fmt: skip
    """A selector matches nothing, or a device cannot be used so."""


class MigConfigError(NvcError, code="NVC-1502", stage="mig-config"):
    """The right to configure MIG cannot be given."""


class MigMonitorError(NvcError, code="NVC-1503", stage="mig-monitor"):
    """The right to monitor MIG cannot be given."""


class RequirementError(
    NvcError, code="NVC-1601", stage="requirement", doctor="driver.version",
    hint="correct NVIDIA_REQUIRE_* of the image; NVIDIA_DISABLE_REQUIRE=1 skips the check",
):  # fmt: skip
    """A requirement of the image does not hold on this host."""


class MountError(NvcError, code="NVC-1701", stage="mount", doctor="host"):
    """A mount, file, link or device rule cannot be made in the container."""


class LoaderCacheError(NvcError, code="NVC-1702", stage="ldcache"):
    """The container's loader cache cannot be read or written."""


class HostError(
    NvcError, code="NVC-1102", stage="host", doctor="host",
    hint="check dmesg, and the caller's limits, such as LimitNOFILE=",
):  # fmt: skip
    """The host itself fails. That says nothing about what was asked for: nobody may take it for "not there"."""


_EIO, _EBADF, _ENOMEM, _EFAULT, _ENFILE, _EMFILE, _ENOSPC = 5, 9, 12, 14, 23, 24, 28


def of_host(error: OSError, step: str, path: str = "") -> None:
    """Raise HostError if `error` is one of the host. Any other tells something of `path`: nothing happens."""
    if error.errno in (_EIO, _ENOMEM, _ENFILE, _EMFILE, _ENOSPC):
        raise HostError.of(step, path or error.filename or "", error) from None


def and_also(error: NvcError, problem: str) -> None:
    """Have an error's text name another problem, as of what could not be undone. Nothing happens for ""."""
    if problem:
        error.cause = f"{error.cause}, and {problem}"


def unforeseen(error: BaseException) -> NvcError:
    """The error for an exception that nobody has turned into one: the host's fault, or ours."""
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno not in (None, _EBADF, _EFAULT):
        return HostError.of(_where(error), str(error.filename or ""), error)
    if isinstance(error, MemoryError):
        return HostError(_where(error), cause="out of memory")
    if isinstance(error, ImportError):
        return HostError("load code", error.path or "", error.msg, "install nvc again")
    return InternalError("unexpected error", cause=cause)


def _where(error: BaseException) -> str:
    """The function in which it was raised: better than nothing, where no step is known."""
    traceback = error.__traceback__
    if traceback is None:
        return "unknown step"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"


class InternalError(
    NvcError, code="NVC-9001", stage="internal", exit_code=70,
    hint='please report this with the traceback; README.md, "If something fails", says where',
):  # fmt: skip
    """Our bug, never the caller's input."""

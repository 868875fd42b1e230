"""Every error that nvc raises on purpose.

    NvcError
    |- InputError           input         the call itself is wrong (flags, selectors, sizes)
    |- PermissionDenied     permission    a right is missing
    |- InitializationError  initialization  driver helper, driver root, kernel floor, unsafe installation
    |- ContainerError       container     pid, namespaces, rootfs
    |- DetectionError       detection     driver files, NVML, device nodes
    |  `- SourceChanged     detection     a file is not the one that was found
    |- DeviceError          device        a selector matches nothing
    |- MigConfigError       mig-config
    |- MigMonitorError      mig-monitor
    |- RequirementError     requirement   an image's requirement does not hold
    |- MountError           mount         the applier: mounts, files, links, device rules
    |- LoaderCacheError     ldcache
    `- InternalError        internal      our bug: a traceback is printed

The text has the shape `<stage> error: <step>: <path>: <cause>; <hint>`, on one line, which is what
callers of nvidia-container-cli parse and what engines show. Exit code 1 for every handled failure, as there.
"""

from __future__ import annotations


def one_line(text: object) -> str:
    """`text` with control characters replaced, at most 512 characters: it may quote a hostile name."""
    clean = "".join(c if c.isprintable() else "?" for c in str(text))
    return clean if len(clean) <= 512 else clean[:509] + "..."


class NvcError(Exception):
    """A handled failure. `step` is what was tried, `path` where, `cause` why, `hint` what to do."""

    exit_code = 1
    stage = "nvc"
    hint = ""

    def __init__(self, step: str, path: str = "", cause: object = "", hint: str = "") -> None:
        super().__init__(step, path, cause)
        self.step = step
        self.path = path
        self.cause = cause
        if hint:
            self.hint = hint

    @classmethod
    def of(cls, step: str, path: str, error: OSError, hint: str = "") -> NvcError:
        """The error for a failed system call; the kernel's text in lower case, as the peers print it."""
        return cls(step, path, (error.strerror or str(error)).lower(), hint)

    def __str__(self) -> str:
        parts = [one_line(part) for part in (self.step, self.path, self.cause) if part != ""]
        text = f"{self.stage} error: {': '.join(parts)}"
        return f"{text}; {one_line(self.hint)}" if self.hint else text


class InputError(NvcError):
    stage = "input"


class PermissionDenied(NvcError):
    stage = "permission"
    hint = "run as root"


class InitializationError(NvcError):
    stage = "initialization"


class ContainerError(NvcError):
    stage = "container"


class DetectionError(NvcError):
    stage = "detection"


class SourceChanged(DetectionError):
    """A file is not the one that discovery found: the inventory is stale."""

    hint = "the driver was changed meanwhile; run again, or with --no-inventory"


class DeviceError(NvcError):
    stage = "device"
    hint = "`nvc-cli info` shows the devices"


class MigConfigError(NvcError):
    stage = "mig-config"


class MigMonitorError(NvcError):
    stage = "mig-monitor"


class RequirementError(NvcError):
    stage = "requirement"


class MountError(NvcError):
    stage = "mount"


class LoaderCacheError(NvcError):
    stage = "ldcache"


class InternalError(NvcError):
    """Our bug, never the caller's input."""

    exit_code = 70
    stage = "internal"
    hint = "please report this with the traceback"

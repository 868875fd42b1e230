"""The steps that containers with GPUs have, as operations. What they mean is in native/core/steps.

The launcher does them itself where it can, without an interpreter. This is for calls that have other steps, too.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError, InputError, of_host
from nvc.base.value import Value
from nvc.kernel import ffi, lib, strerror
from nvc.plan.ops import BindProc, LoaderEntry, Symlink, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.frontends.cdi.hooks.arguments import HookCall
    from nvc.plan.ops import Op

#: Strings of each kind of record.
_FIELDS = {
    lib.NVC_STEPS_TMPFS: 3,
    lib.NVC_STEPS_BIND: 2,
    lib.NVC_STEPS_LINK: 2,
    lib.NVC_STEPS_ENTRY: 3,
    lib.NVC_STEPS_WARNING: 1,
}
#: What an option is to be as a whole, other than an absolute path.
_WANTED = {"link": "want TARGET::LINK", "host-driver-version": "want a driver version"}


class Found(Value):
    """What is to be done in a container."""

    mounts: tuple[Op, ...]
    links: tuple[Symlink, ...]
    entries: tuple[LoaderEntry, ...]
    warnings: tuple[str, ...]


class Steps:
    """Takes in steps in their order. Every method raises ContainerError, or HostError where the host fails."""

    def __init__(self, rootfs: int, sliced: bool) -> None:
        self._steps = ffi.gc(lib.nvc_steps_new(rootfs, sliced), lib.nvc_steps_free)
        if not self._steps:
            raise MemoryError
        self._read = 0  # bytes of records

    def add(self, step: HookCall) -> Found:
        """What a step has mounted; the rest follows from all of them together, in `finish`. Also InputError."""
        kept = [(_text(name), _text(value)) for name, value in step.options]
        options = ffi.new("struct nvc_steps_option[]", len(kept))
        for option, (name, value) in zip(options, kept):
            option.name, option.value = name, value
        try:
            self._checked(lib.nvc_steps_add(self._steps, step.name.encode(), options, len(kept)))
        except ContainerError as error:
            for name, value in step.options if error.step == "read option" else ():
                if value.endswith(error.path) and bool(value) == bool(error.path):
                    form = name if value == error.path else ""
                    cause = _WANTED.get(form, "want an absolute path in the container")
                    raise InputError(step.name, f"--{name}={value}", cause) from None
            raise
        return self._records()

    def prefer(self, soname: str, path: str) -> None:
        """Have the loader take a library of the image before the driver's."""
        lib.nvc_steps_prefer(self._steps, _text(soname), _text(path))

    def finish(self, hidden: frozenset[str]) -> Found:
        """Links, the loader cache and warnings. Files of the names `hidden` are not to be found."""
        for name in hidden:
            lib.nvc_steps_hide(self._steps, _text(name))
        self._checked(lib.nvc_steps_finish(self._steps))
        return self._records()

    def _checked(self, result: int) -> None:
        if result == 0:
            return
        failure = lib.nvc_steps_failed(self._steps)
        step, path = (
            bytes(ffi.string(text)).decode("utf-8", "replace") for text in (failure.step, failure.path)
        )
        error = OSError(failure.error, strerror(failure.error))
        of_host(error, step, path)
        raise ContainerError.of(step, path, error)

    def _records(self) -> Found:
        """Decode the records that have been added since the last call."""
        size = ffi.new("size_t *")
        start = lib.nvc_steps_records(self._steps, size)
        data = bytes(ffi.buffer(start, size[0])) if size[0] else b""
        mounts: list[Op] = []
        links, entries, warnings = [], [], []
        while self._read < len(data):
            kind = data[self._read]
            *fields, _ = data[self._read + 1 :].split(b"\0", _FIELDS[kind])
            self._read += 1 + sum(len(field) + 1 for field in fields)
            texts = [field.decode("utf-8", "surrogateescape") for field in fields]
            if kind == lib.NVC_STEPS_TMPFS:
                mounts.append(Tmpfs(texts[0], (), ((texts[1], fields[2]),)))
            elif kind == lib.NVC_STEPS_BIND:
                mounts.append(BindProc(texts[0], texts[0], texts[1] == "d"))
            elif kind == lib.NVC_STEPS_LINK:
                links.append(Symlink(*texts))
            elif kind == lib.NVC_STEPS_ENTRY:
                entries.append(LoaderEntry(*texts))
            else:
                warnings += texts
        return Found(tuple(mounts), tuple(links), tuple(entries), tuple(warnings))


def _text(text: str) -> Any:
    """`text` as a C string, which lives as long as the result is kept."""
    return ffi.new("char[]", text.encode("utf-8", "surrogateescape"))

"""The steps that containers with GPUs have, as operations. What they mean is in native/core/steps.

The launcher does them itself where it can, without an interpreter. This is for calls that have other steps, too.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError, InputError
from nvc.base.value import Value
from nvc.frontends.cdi.hooks.arguments import HookCall
from nvc.kernel import ffi, lib
from nvc.kernel.steps import failure_of, new_steps, raw, records_of
from nvc.plan.ops import BindProc, LoaderEntry, Op, Symlink, Tmpfs

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
        self._steps = new_steps(rootfs, sliced)
        self._read = 0  # bytes of records

    def add(self, step: HookCall) -> Found:
        """What a step has mounted; the rest follows from all of them together, in `finish`. Also InputError."""
        kept = [(raw(name), raw(value)) for name, value in step.options]
        options = ffi.new("struct nvc_steps_option[]", len(kept))
        for option, (name, value) in zip(options, kept):
            option.name, option.value = name, value
        try:
            self._checked(lib.nvc_steps_add(self._steps, step.name.encode(), options, len(kept)))
        except ContainerError as error:
            for name, value in step.options if error.step == "read option" else ():
                if value.endswith(error.path) and bool(value) == bool(error.path):
                    form = name if value == error.path else ""
                    wanted = _WANTED.get(form, "want an absolute path in the container")
                    raise InputError(step.name, f"--{name}={value}", wanted) from None
            raise
        return self._records()

    def prefer(self, soname: str, path: str) -> None:
        """Have the loader take a library of the image before the driver's."""
        lib.nvc_steps_prefer(self._steps, raw(soname), raw(path))

    def finish(self, hidden: frozenset[str]) -> Found:
        """Links, the loader cache and warnings. Files of the names `hidden` are not to be found."""
        for name in hidden:
            lib.nvc_steps_hide(self._steps, raw(name))
        self._checked(lib.nvc_steps_finish(self._steps))
        return self._records()

    def _checked(self, result: int) -> None:
        if result and (failure := failure_of(self._steps)):
            raise ContainerError.of(*failure)

    def _records(self) -> Found:
        """The records that have been added since the last call."""
        mounts: list[Op] = []
        links, entries, warnings = [], [], []
        records, self._read = records_of(self._steps, self._read)
        for kind, texts in records:
            if kind == lib.NVC_STEPS_TMPFS:
                content = texts[2].encode("utf-8", "surrogateescape")
                mounts.append(Tmpfs(texts[0], (), ((texts[1], content),)))
            elif kind == lib.NVC_STEPS_BIND:
                mounts.append(BindProc(texts[0], texts[0], texts[1] == "d"))
            elif kind == lib.NVC_STEPS_LINK:
                links.append(Symlink(*texts))
            elif kind == lib.NVC_STEPS_ENTRY:
                entries.append(LoaderEntry(*texts))
            else:
                warnings += texts
        return Found(tuple(mounts), tuple(links), tuple(entries), tuple(warnings))

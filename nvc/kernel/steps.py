"""What native/core/steps has found in a container: records, and what has failed."""

from __future__ import annotations

from nvc.base.errors import of_host
from nvc.base.types import Any
from nvc.kernel import ffi, lib, strerror

#: Strings of each kind of record.
_FIELDS = {
    lib.NVC_STEPS_TMPFS: 3,
    lib.NVC_STEPS_BIND: 2,
    lib.NVC_STEPS_LINK: 2,
    lib.NVC_STEPS_ENTRY: 3,
    lib.NVC_STEPS_WARNING: 1,
    lib.NVC_STEPS_SHADOW: 2,
    lib.NVC_STEPS_PLACE: 1,
    lib.NVC_STEPS_HIDDEN: 1,
}


def new_steps(rootfs: int, sliced: bool) -> Any:
    """Steps for the container with this root directory. Raises MemoryError."""
    steps = ffi.gc(lib.nvc_steps_new(rootfs, sliced), lib.nvc_steps_free)
    if not steps:
        raise MemoryError
    return steps


def raw(text: str) -> Any:
    """`text` as a C string, which lives as long as the result is kept."""
    return ffi.new("char[]", text.encode("utf-8", "surrogateescape"))


def failure_of(steps: Any) -> tuple[str, str, OSError] | None:
    """What was tried where, and the error; None where nothing has failed. Raises HostError if the host did."""
    failure = lib.nvc_steps_failed(steps)
    if not failure.error:
        return None
    step, path = (bytes(ffi.string(text)).decode("utf-8", "replace") for text in (failure.step, failure.path))
    error = OSError(failure.error, strerror(failure.error))
    of_host(error, step, path)
    return step, path, error


def records_of(steps: Any, begin: int = 0) -> tuple[list[tuple[int, list[str]]], int]:
    """The records from byte `begin` on, each with its kind and strings, and how many bytes there are."""
    size = ffi.new("size_t *")
    start = lib.nvc_steps_records(steps, size)
    data = bytes(ffi.buffer(start, size[0])) if size[0] else b""
    found = []
    while begin < len(data):
        kind = data[begin]
        *fields, _ = data[begin + 1 :].split(b"\0", _FIELDS[kind])
        begin += 1 + sum(len(field) + 1 for field in fields)
        found.append((kind, [field.decode("utf-8", "surrogateescape") for field in fields]))
    return found, begin

"""Quota files: the limits of a slice for each device.

They are written in place: the file is bound into running containers, which must see the change.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import NvcError
from nvc.model.request import Timing
from nvc.model.slices import layout
from nvc.model.slices.ledger import Budget

_ATTEMPTS = 1000


class QuotaError(
    NvcError, code="NVC-2102", stage="vgpu", doctor="vgpu",
    hint="`nvc-cli vgpu rm` removes what is left of a container; start it again",
):  # fmt: skip
    """A quota file is malformed."""
    torn = False  # a change was never finished: whoever made it was killed


class QuotaDevice(Timing):
    """The limits of one device; amounts in bytes."""

    uuid: str  # GPU-... or MIG-..., as NVML writes it
    memory_limit: int  # layout.NO_LIMIT: all of it
    context_overhead: int = 0
    module_overhead: int = 0
    correction: int = 0
    flags: int = 0
    pace: int = 0  # see layout.PACE_PERCENT; nvcd writes it, by `set_pace`
    kept_until: int = 0  # nanoseconds of the host's CLOCK_MONOTONIC; nvcd writes it and the next two, by `set_kept`
    had: int = 0  # nanoseconds of the device in all, by the driver's log
    waited: int = 0  # nanoseconds in which nvcd has stopped it
    room_until: int = 0  # like `kept_until`: nvcd makes room for allocations; see `set_room`
    answered: int = 0  # requests for room, so far

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the slice there."""
        return bool(self.flags & layout.PAUSED)

    @property
    def denied(self) -> bool:
        """Whether nvcd denies it more of the device."""
        return bool(self.flags & layout.DENIED)

    def paced(self, now: int) -> int | None:
        """The percentage of the time for which nvcd lets the slice have work on the device; None: it says nothing.

        `now`: nanoseconds of the host's CLOCK_MONOTONIC.
        """
        return self.pace & layout.PACE_PERCENT if self.pace & ~layout.PACE_PERCENT > now else None

    def kept(self, now: int) -> Budget | None:
        """What the slice had by the driver's log; None: nvcd does not keep its time now. `now`: as for `paced`."""
        if self.kept_until <= now:
            return None
        return Budget(self.had, self.waited, 0, self.kept_until - layout.KEPT_FOR)

    def marked_as(self, old: QuotaDevice) -> QuotaDevice:
        """These limits with the marks of `old`: what nvcd has found, and an operator has paused, holds on."""
        return self.replace(flags=old.flags, correction=old.correction)


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes of a UUID as NVML writes it. Raises QuotaError for MIG-GPU-<uuid>/<gi>/<ci> of old drivers."""
    digits = uuid.partition("-")[2].replace("-", "")
    if len(digits) != 32:
        raise QuotaError(
            "make a slice", uuid, "not a UUID of its own", "MIG slices need driver 470 or newer"
        )
    return bytes.fromhex(digits)


def uuid_text(raw: bytes) -> str:
    """The UUID of 16 bytes, in lower case, as NVML writes it."""
    digits = raw.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"GPU-{'-'.join(parts)}"


def pack(devices: tuple[QuotaDevice, ...], sequence: int) -> bytes:
    """The content of a quota file. Raises QuotaError for more than layout.DEVICES devices."""
    if len(devices) > layout.DEVICES:
        raise QuotaError(
            "make a slice", "", f"{len(devices)} devices, at most {layout.DEVICES}", "ask for fewer"
        )
    data = bytearray(layout.QUOTA_SIZE)
    layout.QUOTA_HEADER.pack_into(
        data, 0, layout.QUOTA_MAGIC, layout.VERSION, layout.QUOTA_SIZE, sequence, len(devices), 0
    )
    offset = layout.QUOTA_HEADER.size
    for device in devices:
        _, *fields = (getattr(device, name) for name in layout.QUOTA_FIELDS)
        layout.QUOTA_DEVICE.pack_into(data, offset, uuid_bytes(device.uuid), *fields)
        offset += layout.QUOTA_DEVICE.size
    return bytes(data)


def unpack(data: bytes) -> tuple[int, tuple[QuotaDevice, ...]]:
    """The sequence number and the devices of a quota file. Raises QuotaError.

    UUIDs begin with `GPU-` also for MIG devices: the file does not say which kind a device is.
    """
    if len(data) != layout.QUOTA_SIZE:
        raise QuotaError("read quota", "", f"{len(data)} bytes, not {layout.QUOTA_SIZE}")
    magic, version, size, sequence, count, _ = layout.QUOTA_HEADER.unpack_from(data)
    if (magic, version, size) != (layout.QUOTA_MAGIC, layout.VERSION, layout.QUOTA_SIZE):
        raise QuotaError("read quota", "", f"not a quota of version {layout.VERSION}")
    if count > layout.DEVICES:
        raise QuotaError("read quota", "", f"{count} devices, at most {layout.DEVICES}")
    devices = []
    for number in range(count):
        offset = layout.QUOTA_HEADER.size + number * layout.QUOTA_DEVICE.size
        fields = dict(zip(layout.QUOTA_FIELDS, layout.QUOTA_DEVICE.unpack_from(data, offset)))
        devices.append(QuotaDevice(uuid_text(fields.pop("uuid")), **fields))
    return sequence, tuple(devices)


def read(fd: int) -> tuple[QuotaDevice, ...]:
    """A consistent copy of the devices in an open quota file. Raises QuotaError, OSError."""
    for _ in range(_ATTEMPTS):
        data = os.pread(fd, layout.QUOTA_SIZE + 1, 0)
        sequence, devices = unpack(data)
        after = os.pread(fd, layout.SEQUENCE.size, layout.SEQUENCE_OFFSET)
        if sequence % 2 == 0 and after == layout.SEQUENCE.pack(sequence):
            return devices
    error = QuotaError("read quota", "", "a change of it was never finished")
    error.torn = True
    raise error


def set_pace(fd: int, number: int, percent: int, until: int) -> None:
    """Say in an open quota file for which percentage of the time a slice may have work on its device `number`.

    That holds until `until`, nanoseconds of the host's CLOCK_MONOTONIC; 0: from now on, nothing is said. It is one
    word, so no lock is needed. Raises OSError.
    """
    word = (until & ~layout.PACE_PERCENT) | percent if until else 0
    place = layout.QUOTA_HEADER.size + number * layout.QUOTA_DEVICE.size
    _put(fd, layout.WORD.pack(word), place + layout.PACE_OFFSET)


def set_kept(fd: int, number: int, at: int, had: int, waited: int) -> None:
    """Say in an open quota file that nvcd keeps the time of its device `number`, and what the slice had.

    `at`: nanoseconds of the host's CLOCK_MONOTONIC, from which on the shim holds nothing back for layout.KEPT_FOR;
    0: nvcd does not keep it. It is written in one piece, so no lock is needed. Raises OSError.
    """
    data = layout.KEPT.pack(at + layout.KEPT_FOR if at else 0, had, waited)
    _put(fd, data, layout.QUOTA_HEADER.size + number * layout.QUOTA_DEVICE.size + layout.KEPT_OFFSET)


def set_room(fd: int, number: int, at: int, answered: int) -> None:
    """Say in an open quota file that nvcd moves others where its device `number` has no room for an allocation.

    `at`: as for `set_kept`; that holds for layout.ROOM_FOR. `answered`: the last request that it has looked at.
    Both are written in one piece, so no lock is needed. Raises OSError.
    """
    data = layout.ROOM.pack(at + layout.ROOM_FOR, answered)
    _put(fd, data, layout.QUOTA_HEADER.size + number * layout.QUOTA_DEVICE.size + layout.ROOM_OFFSET)


def answered(fd: int, number: int) -> int:
    """The last request for room on its device `number` that was answered. Raises OSError."""
    place = layout.QUOTA_HEADER.size + number * layout.QUOTA_DEVICE.size + layout.ROOM_OFFSET
    return layout.ROOM.unpack(os.pread(fd, layout.ROOM.size, place))[1]


def set_flags(fd: int, suspended: bool, swaps: bool) -> None:
    """Say in an open quota file whether the memory of its processes may be off their devices. Raises OSError.

    `swaps`: these move it themselves when they are asked, by `ask_to_move`.
    """
    word = (layout.SUSPENDED if suspended else 0) | (layout.SWAPS if swaps else 0)
    _put(fd, layout.FLAGS.pack(word), layout.FLAGS_OFFSET)


def set_swaps(fd: int, swaps: bool) -> None:
    """Say the latter alone, where it is something new. Raises OSError."""
    (flags,) = layout.FLAGS.unpack(os.pread(fd, layout.FLAGS.size, layout.FLAGS_OFFSET))
    if bool(flags & layout.SWAPS) != swaps:
        set_flags(fd, bool(flags & layout.SUSPENDED), swaps)


def asked_to_move(fd: int) -> int:
    """What processes were asked last to do with their memory, with its number. Raises OSError."""
    return int(layout.WORD.unpack(os.pread(fd, layout.WORD.size, layout.SWAP_OFFSET))[0])


def ask_to_move(fd: int, what: int) -> int:
    """Ask in an open quota file for layout.SWAP_OUT or another; returns what they answer to. Raises OSError."""
    word = ((asked_to_move(fd) >> 8) + 1 << 8 | what) & (1 << 64) - 1
    _put(fd, layout.WORD.pack(word), layout.SWAP_OFFSET)
    return word


def finish(fd: int) -> bool:
    """End the unfinished change of a writer that was killed, and return whether there was one.

    The caller holds the lock. The file keeps the values that are in it, from before the change or after
    it. Raises QuotaError, OSError.
    """
    data = os.pread(fd, layout.QUOTA_SIZE + 1, 0)
    sequence, _ = unpack(data)
    if sequence % 2 == 0:
        return False
    # Not what the writer would write at its end: if it lives after all, its end is seen as a change.
    _put(fd, layout.SEQUENCE.pack((sequence + 3) & (1 << 64) - 1), layout.SEQUENCE_OFFSET)
    return True


def write(fd: int, devices: tuple[QuotaDevice, ...]) -> None:
    """Write the devices to an open quota file, which may be empty. The caller holds the lock. Raises OSError.

    The sequence is odd while the rest changes, so that readers detect a mixture and retry. A writer that is killed
    leaves it odd, and the next writer continues from there.
    """
    old = os.pread(fd, layout.SEQUENCE.size, layout.SEQUENCE_OFFSET)
    sequence = layout.SEQUENCE.unpack(old)[0] if len(old) == layout.SEQUENCE.size else 0
    odd = (sequence | 1) & (1 << 64) - 1
    data = pack(devices, odd)
    if os.fstat(fd).st_size:
        _put(fd, layout.SEQUENCE.pack(odd), layout.SEQUENCE_OFFSET)
        behind = layout.SWAP_OFFSET + layout.WORD.size
        _put(fd, data[: layout.FLAGS_OFFSET], 0)
        _put(fd, data[behind:], behind)  # what lies between is nvcd's
    else:
        _put(fd, data, 0)
    _put(fd, layout.SEQUENCE.pack((odd + 1) & (1 << 64) - 1), layout.SEQUENCE_OFFSET)


def _put(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written

"""Waiting for descriptors in C, which hands leases on meanwhile: native/core/handover/handover.h.

Imported by `nvc.daemon` alone.
"""

from __future__ import annotations

import os

from nvc.kernel import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HandoverWaiter:
    """Waits on an epoll descriptor. `devices` are records of the header, for as many tenants as `room` was told."""

    def __init__(self, epoll: int, ahead: int) -> None:
        self._record: Any = ffi.new("struct nvc_handover *")
        self._record.epoll, self._record.ahead = epoll, ahead
        self.devices: list[Any] = []
        self._tenants: list[Any] = []
        self._array: Any = None
        self.messages = 0  # that were taken in all

    def room(self, devices: int, tenants: int) -> None:
        """Have records for so many devices, each with so many tenants. What others held is lost."""
        if devices > len(self.devices) or any(len(one) < tenants for one in self._tenants):
            self._array = ffi.new("struct nvc_handover_device[]", devices)
            self._tenants = [ffi.new("struct nvc_handover_tenant[]", tenants) for _ in range(devices)]
            self.devices = [self._array[place] for place in range(devices)]
            for device, found in zip(self.devices, self._tenants):
                device.tenants = found

    def serve(self, devices: int, until: int) -> tuple[list[int], tuple[int, int] | None]:
        """Wait at most until then, and hand on the leases of the first `devices`.

        Returned are the descriptors that are ready, and one that took no message, with the errno. Raises OSError.
        """
        record = self._record
        record.devices, record.count = self._array if devices else ffi.NULL, devices
        error = lib.nvc_handover_serve(record, until)
        if error:
            raise OSError(-error, os.strerror(-error))
        self.messages += record.messages
        failed = (record.failed, record.failure) if record.failed >= 0 else None
        return ffi.unpack(record.ready, record.ready_count) if record.ready_count else [], failed


def pass_on(device: Any, runs: bool, tail: int, now: int) -> bool:
    """nvc_handover_pass_on of the header."""
    return bool(lib.nvc_handover_pass_on(ffi.addressof(device), runs, tail, now))

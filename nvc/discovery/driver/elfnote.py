"""The ELF note that tells a shim from the driver's library (native/vgpu/process/note.c)."""

from __future__ import annotations

import struct

from nvc.discovery.driver.elf import Elf

OWNER = "NVC"
TYPE = 1
_CONTENT = struct.Struct("<II")  # version of the layouts, which library


def layouts_of(elf: Elf) -> int:
    """The version of the quota and ledger formats that a shim reads; 0 if the file is not a shim."""
    for owner, kind, content in elf.notes:
        if owner == OWNER and kind == TYPE and len(content) >= _CONTENT.size:
            return int(_CONTENT.unpack_from(content)[0])
    return 0

"""How a shim is told from the library that it stands for: by an ELF note (native/vgpu/note.c)."""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.elf import Elf

OWNER = "NVC"
TYPE = 1
_CONTENT = struct.Struct("<II")  # version of the layouts, which library


def layouts_of(elf: Elf) -> int:
    """The version of quota and ledger that a shim understands; 0: it is no shim."""
    for owner, kind, content in elf.notes:
        if owner == OWNER and kind == TYPE and len(content) >= _CONTENT.size:
            return int(_CONTENT.unpack_from(content)[0])
    return 0

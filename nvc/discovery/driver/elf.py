"""The few facts of ELF files that matter here, as native/core/steps/elf.c reads them."""

from __future__ import annotations

from errno import EBADMSG

from nvc.base.errors import DetectionError
from nvc.base.value import Value
from nvc.kernel import ffi, lib, strerror

#: e_machine by architecture, with the class (32 or 64 bits) that belongs to it.
MACHINES = {"x86_64": (62, 64), "i386": (3, 32), "aarch64": (183, 64), "arm": (40, 32)}


class Elf(Value):
    """What an ELF file says of itself."""

    bits: int  # 32 or 64
    machine: int  # e_machine
    soname: str  # "" where it has none
    linux_abi: tuple[int, int, int]  # the oldest kernel that it is for; zeros where it names none
    layouts: int  # of a shim, the version of quota and ledger; 0: it is none

    def is_for(self, arch: str) -> bool:
        """Whether it runs on the architecture `arch` (a key of MACHINES)."""
        return MACHINES[arch] == (self.machine, self.bits)


def read_elf(fd: int, path: str = "") -> Elf:
    """The facts of the file `fd`, which must be a readable regular file; `path` is for messages.

    Raises DetectionError when it is not a sound little-endian ELF file, OSError when it cannot be read.
    """
    found = ffi.new("struct nvc_elf *")
    error = -lib.nvc_elf_read(fd, found)
    if error == EBADMSG:
        raise DetectionError("read ELF header", path, "not a sound ELF file")
    if error:
        raise OSError(error, strerror(error), path)
    soname = bytes(ffi.string(found.soname)).decode("utf-8", "replace")
    return Elf(found.bits, found.machine, soname, tuple(found.linux_abi), found.layouts)

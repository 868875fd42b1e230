"""Entries of ld.so.cache, which native/core/ldcache reads. Callers interpret the flags."""

from __future__ import annotations

from errno import ENOMEM

from nvc.base.errors import DetectionError
from nvc.kernel import ffi, lib

#: The largest cache that is read, bytes. A desktop's has 200 KiB, a big image's 2 MiB.
CACHE_LIMIT = lib.NVC_LDCACHE_MAX

#: Low byte of an entry's flags: the kind of library, here ELF and ELF for glibc 2.
TYPE_MASK = 0x00FF
TYPES = (1, 3)
#: High byte of an entry's flags: the architecture.
ARCH_MASK = 0xFF00
ARCH_FLAGS = {"x86_64": 0x0300, "i386": 0x0000, "aarch64": 0x0A00, "arm": 0x0900}


def parse_cache(data: bytes, prefixes: tuple[bytes, ...] = (b"",)) -> list[tuple[int, str, str]]:
    """Entries (flags, name, path) in the order in which the loader reads them, whose names begin with a prefix.

    Raises DetectionError if `data` is no cache that the loader of this machine would read, or has an entry that it
    could not use; MemoryError.
    """
    out, size = ffi.new("uint8_t **"), ffi.new("size_t *")
    result = lib.nvc_ldcache_list(data, len(data), out, size)
    if result == -ENOMEM:
        raise MemoryError
    if result:
        cause = "it is damaged, or has an unsupported file format"
        raise DetectionError("read loader cache", "", cause, "run ldconfig in the driver root")
    fields = bytes(ffi.buffer(out[0], size[0])).split(b"\0")
    lib.free(out[0])
    # To the loader these are bytes; what is not UTF-8 survives as surrogates.
    return [
        (int(flags, 16), name.decode("utf-8", "surrogateescape"), path.decode("utf-8", "surrogateescape"))
        for flags, name, path in zip(fields[::3], fields[1::3], fields[2::3])
        if name.startswith(prefixes)
    ]

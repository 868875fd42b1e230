"""`python without_memlock.py PROGRAM...` runs a program whose attempts to raise RLIMIT_MEMLOCK seem to succeed.

crun insists on raising it before it loads a device program, and fails without CAP_SYS_RESOURCE; no kernel since
5.11 looks at that limit for programs. A seccomp filter answers those calls with success.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CALLS = {"x86_64": (302, 160), "aarch64": (261, 164)}  # prlimit64, setrlimit
RLIMIT_MEMLOCK = 8
LOAD, EQUAL, JUMP, RETURN = 0x20, 0x15, 0x05, 0x06
FIRST, SECOND = 16, 24  # offsets of the arguments in struct seccomp_data
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
SUCCESS, ALLOW = 0x00050000, 0x7FFF0000


def main() -> None:
    """Install the filter and become the program."""
    prlimit, setrlimit = CALLS[os.uname().machine]
    code = (
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 2, prlimit),
        (LOAD, 0, 0, SECOND),
        (JUMP, 0, 0, 2),
        (EQUAL, 0, 3, setrlimit),
        (LOAD, 0, 0, FIRST),
        (EQUAL, 0, 1, RLIMIT_MEMLOCK),
        (RETURN, 0, 0, SUCCESS),
        (RETURN, 0, 0, ALLOW),
    )
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

"""What native/vgpu/protocol.h says, for Python. tests/unit/test_daemon_wire.py holds it against the header."""

from __future__ import annotations

import struct

VERSION = 1
HELLO, WANT, RELEASE, STALL, MAKING = 1, 2, 3, 4, 5
#: What a RELEASE says in `b`, and by how much the rest of it is multiplied.
ENOUGH, RUNS, TAIL = 1, 2, 4
WELCOME, FREE, GRANT, DROP, REFUSED = 16, 17, 18, 19, 20

#: kind, reserved, round, uuid, a, b.
MESSAGE = struct.Struct("<HHI16sQQ")
SIZE = MESSAGE.size
NO_UUID = bytes(16)

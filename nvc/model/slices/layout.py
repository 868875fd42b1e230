"""The binary formats of quota and ledger: the Python side of native/vgpu/layout.h.

tests/unit/test_vgpu_layout.py compares every number here with what a C compiler makes of the header.
"""

from __future__ import annotations

import struct

from nvc.model.request import CORES_UNCAPPED as CORES_UNCAPPED
from nvc.model.request import POLICY_NATIVE as POLICY_NATIVE  # the shim knows its number
from nvc.model.request import WEIGHT as WEIGHT

QUOTA_MAGIC = 0x41544F555143564E
LEDGER_MAGIC = 0x524744454C43564E
VERSION = 4
DEVICES = 64
SLOTS = 512
SHARES = 1024
NO_LIMIT = (1 << 64) - 1

#: Paths beside a library directory of the container.
PRIVATE = "nvc"
REAL = "nvc/real-"  # and the SONAME: the driver's own library
QUOTA_FILE = "nvc/quota"
LEDGER_DIRECTORY = "nvc/ledger"
LEDGER_NAME = "ledger"
MPS_DIRECTORY = "nvc/mps"  # pipes of the MPS server that slices share

#: magic, version, size, sequence, device count, flags, what is asked of memory, reserved.
QUOTA_HEADER = struct.Struct("<QIIQII8x24x")
#: The fields of a QuotaDevice in their order, each with its format.
QUOTA_FIELDS = {
    "uuid": "16s", "memory_limit": "Q", "context_overhead": "Q", "module_overhead": "Q", "correction": "Q",
    "cores": "I", "weight": "I", "policy": "I", "flags": "I", "pace": "Q", "room_until": "Q", "answered": "Q8x",
    "period_us": "I4x", "kept_until": "Q", "had": "Q", "waited": "Q",
}  # fmt: skip
QUOTA_DEVICE = struct.Struct("<" + "".join(QUOTA_FIELDS.values()))
#: Words that nvcd writes in one piece: where they are in QUOTA_DEVICE.
WORD = struct.Struct("<Q")
PACE_OFFSET = 64
ROOM_OFFSET = 72
KEPT_OFFSET = 104
#: Until when nvcd keeps time, what the slice had by then, for how long it was stopped; the last two: nanoseconds.
KEPT = struct.Struct("<QQQ")
#: For so long after an account of the timekeeper, nanoseconds.
KEPT_FOR = 1_500_000_000
#: Until when nvcd moves others for an allocation without room, and the last request that it has answered.
ROOM = struct.Struct("<QQ")
ROOM_FOR = 10_000_000_000  # after nvcd has said so, nanoseconds
#: The part of a pace that is a percentage. The rest is until when it holds, ns of the host's CLOCK_MONOTONIC.
PACE_PERCENT = 0xFF
QUOTA_SIZE = QUOTA_HEADER.size + DEVICES * QUOTA_DEVICE.size
SEQUENCE = struct.Struct("<Q")
SEQUENCE_OFFSET = 16
#: The quota's own flags, which nvcd alone writes, in one piece.
FLAGS = struct.Struct("<I")
FLAGS_OFFSET = 28
#: Bits of them: the processes' memory leaves their devices, has left, or comes back; they move it when asked.
SUSPENDED, SWAPS = 1, 2
#: What nvcd asks them then, a word: the lowest byte, and behind it a number.
SWAP_OFFSET = 32
SWAP_OUT, SWAP_IN, SWAP_FREE = 1, 2, 3

#: magic, version, size, slot count, high water, transfers, shares in use, reserved.
LEDGER_HEADER = struct.Struct("<QIIIIQQ24x")
#: pid, generation, claimed, name; then what SWAPPED has.
SLOT_HEADER = struct.Struct("<IIQ16s8x4x4x8x8x")
#: The last question for its memory that a process has answered, its error, whether the memory is away, its bytes,
#: and those of the host's memory that are kept for it.
SWAPPED = struct.Struct("<QIIQQ")
SWAPPED_OFFSET = 32  # in a slot
#: changes, taken, tentative (a part of taken), inherited.
AMOUNT = struct.Struct("<QQQQ")
AMOUNTS_OFFSET = LEDGER_HEADER.size + SLOTS * SLOT_HEADER.size
#: handle, bytes, device, owner (slot + 1; 0: free), owner's generation, inherited, importers.
SHARE = struct.Struct("<64sQIIII64s")
SHARE_SIZE = SHARE.size
SHARES_OFFSET = AMOUNTS_OFFSET + DEVICES * SLOTS * AMOUNT.size
#: credit, refilled, charged, waited, launches, refused requests for memory, those for room; times in nanoseconds.
BUDGET = struct.Struct("<qQQQQQQ8x")
BUDGETS_OFFSET = SHARES_OFFSET + SHARES * SHARE_SIZE
LEDGER_SIZE = BUDGETS_OFFSET + DEVICES * BUDGET.size

#: Bits of a device's flags in the quota: launches wait, where the shim keeps time; no memory is given any more.
PAUSED = 1
DENIED = 2

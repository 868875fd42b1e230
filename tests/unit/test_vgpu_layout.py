"""native/vgpu/layout.h and its Python side are one thing: the compiler says what the header means."""

from __future__ import annotations

import os

from support import REPO, need, run

from nvc.model.slices import layout
from nvc.model.slices.policy import POLICIES

HEADER = os.path.join(REPO, "native/vgpu/layout.h")
#: Each field of a structure in the order of the Python format that reads it.
FIELDS = {
    "vgpu_quota": "magic version size sequence device_count flags swap reserved",
    "vgpu_quota_device": "uuid memory_limit context_overhead module_overhead correction "
    "cores weight policy flags pace room_until answered reserved period_us unused kept_until had waited",
    "vgpu_ledger_head": "magic version size slot_count high_water transfers shares_used reserved",
    "vgpu_slot": "pid generation claimed name swapped swap_error swap_away movable staged",
    "vgpu_amount": "changes taken tentative inherited",
    "vgpu_budget": "credit refilled charged waited launches refused asked reserved",
}
SIZES = {"B": 1, "s": 1, "x": 1, "I": 4, "Q": 8, "q": 8}
FORMATS = {
    "vgpu_quota": layout.QUOTA_HEADER,
    "vgpu_quota_device": layout.QUOTA_DEVICE,
    "vgpu_ledger_head": layout.LEDGER_HEADER,
    "vgpu_slot": layout.SLOT_HEADER,
    "vgpu_amount": layout.AMOUNT,
    "vgpu_budget": layout.BUDGET,
}
CONSTANTS = {
    "VGPU_QUOTA_MAGIC": layout.QUOTA_MAGIC,
    "VGPU_LEDGER_MAGIC": layout.LEDGER_MAGIC,
    "VGPU_LAYOUT_VERSION": layout.VERSION,
    "VGPU_DEVICES": layout.DEVICES,
    "VGPU_SLOTS": layout.SLOTS,
    "VGPU_SHARES": layout.SHARES,
    "VGPU_NO_LIMIT": layout.NO_LIMIT,
    "VGPU_POLICY_NATIVE": layout.POLICY_NATIVE,
    "VGPU_POLICY_CONCURRENT": POLICIES.index("concurrent"),
    "VGPU_DEVICE_PAUSED": layout.PAUSED,
    "VGPU_DEVICE_DENIED": layout.DENIED,
    "VGPU_QUOTA_SUSPENDED": layout.SUSPENDED,
    "VGPU_QUOTA_SWAPS": layout.SWAPS,
    "VGPU_SWAP_OUT": layout.SWAP_OUT,
    "VGPU_SWAP_IN": layout.SWAP_IN,
    "VGPU_SWAP_FREE": layout.SWAP_FREE,
    "offsetof(struct vgpu_quota, swap)": layout.SWAP_OFFSET,
    "offsetof(struct vgpu_slot, swapped)": layout.SWAPPED_OFFSET,
    "sizeof(struct vgpu_quota)": layout.QUOTA_SIZE,
    "sizeof(struct vgpu_ledger)": layout.LEDGER_SIZE,
    "sizeof(struct vgpu_slot)": layout.SLOT_HEADER.size,
    "sizeof(struct vgpu_share)": layout.SHARE_SIZE,
    "offsetof(struct vgpu_quota, sequence)": layout.SEQUENCE_OFFSET,
    "offsetof(struct vgpu_quota, devices)": layout.QUOTA_HEADER.size,
    "offsetof(struct vgpu_quota_device, pace)": layout.PACE_OFFSET,
    "VGPU_PACE_PERCENT": layout.PACE_PERCENT,
    "offsetof(struct vgpu_quota_device, room_until)": layout.ROOM_OFFSET,
    "offsetof(struct vgpu_quota_device, kept_until)": layout.KEPT_OFFSET,
    "offsetof(struct vgpu_ledger, amounts)": layout.AMOUNTS_OFFSET,
    "sizeof(struct vgpu_amount) * VGPU_SLOTS": layout.AMOUNT.size * layout.SLOTS,
    "offsetof(struct vgpu_ledger, slots)": layout.LEDGER_HEADER.size,
    "offsetof(struct vgpu_ledger, budgets)": layout.BUDGETS_OFFSET,
}


def compiled(directory: str, expressions: list[str]) -> list[int]:
    """What a C program makes of each expression."""
    lines = "".join(f'    printf("%llu\\n", (unsigned long long)({text}));\n' for text in expressions)
    source = os.path.join(directory, "print.c")
    with open(source, "w", encoding="ascii") as out:
        out.write(
            f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void)\n{{\n{lines}}}\n'
        )
    program = os.path.join(directory, "print")
    run(need("gcc"), "-std=c11", "-Wall", "-Werror", "-o", program, source)
    return [int(line) for line in run(program).stdout.split()]


def widths(text: str) -> list[int]:
    """Bytes of each field of a struct format without alignment."""
    found, count = [], ""
    for letter in text.lstrip("<"):
        if letter.isdigit():
            count += letter
        elif letter in "sx":
            found.append(int(count))
            count = ""
        else:
            found += [SIZES[letter]] * int(count or 1)
            count = ""
    return found


def test_constants_and_sizes(scratch: str) -> None:
    assert dict(zip(CONSTANTS, compiled(scratch, list(CONSTANTS)))) == CONSTANTS


def test_paths_beside_the_shim(scratch: str) -> None:
    with open(HEADER, encoding="ascii") as text:
        header = text.read()
    assert f'#define VGPU_QUOTA_FILE "{layout.QUOTA_FILE}"' in header
    ledger = f"{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"
    assert f'#define VGPU_LEDGER_FILE "{ledger}"' in header


def test_every_field_is_where_python_reads_it(scratch: str) -> None:
    wanted: dict[str, int] = {}
    for name, fields in FIELDS.items():
        offset, sizes = 0, widths(FORMATS[name].format)
        assert len(sizes) == len(fields.split())
        for field, size in zip(fields.split(), sizes):
            wanted[f"offsetof(struct {name}, {field})"] = offset
            wanted[f"sizeof(((struct {name} *)0)->{field})"] = size
            offset += size
        assert offset == FORMATS[name].size
    assert dict(zip(wanted, compiled(scratch, list(wanted)))) == wanted

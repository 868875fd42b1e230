"""The messages of nvcd are those of native/vgpu/protocol.h."""

from __future__ import annotations

import os
import re

from support import REPO, run

from nvc.daemon.io import wire

NAMES = (
    *("VERSION", "HELLO", "WANT", "RELEASE", "STALL", "MAKING", "WELCOME", "FREE", "GRANT", "DROP", "REFUSED"),
    *("ENOUGH", "RUNS", "TAIL"),
)
PROGRAM = """
#include "protocol.h"
#include <stddef.h>
#include <stdio.h>
int main(void)
{
    printf("%%zu %%zu %%zu %%zu %%zu %%zu", sizeof(struct nvcd_message), offsetof(struct nvcd_message, round),
           offsetof(struct nvcd_message, uuid), offsetof(struct nvcd_message, a), offsetof(struct nvcd_message, b),
           offsetof(struct nvcd_message, kind));
    %s
    return 0;
}
"""


def test_messages_are_those_of_the_header(tmp_path: object) -> None:
    source, program = f"{tmp_path}/wire.c", f"{tmp_path}/wire"
    with open(source, "w", encoding="ascii") as out:
        out.write(PROGRAM % "".join(f'printf(" %d", NVCD_{name});' for name in NAMES))
    run("gcc", f"-I{REPO}/native/vgpu", "-o", program, source)
    numbers = [int(word) for word in run(program).stdout.split()]
    offsets = [40, 4, 8, 24, 32, 0]
    assert numbers == offsets + [getattr(wire, name) for name in NAMES]
    packed = wire.MESSAGE.pack(wire.GRANT, 0, 7, bytes(range(16)), 8, 9)
    assert len(packed) == wire.SIZE and packed[4:8] == b"\7\0\0\0" and packed[24] == 8 and packed[32] == 9


def test_every_kind_is_known_here() -> None:
    with open(os.path.join(REPO, "native/vgpu/protocol.h"), encoding="ascii") as header:
        kinds = set(re.findall(r"^\s+NVCD_(\w+) =\s+\d+,", header.read(), re.M))
    assert kinds == set(NAMES) - {"VERSION"}

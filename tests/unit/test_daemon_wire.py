"""The messages of nvcd are those of native/vgpu/protocol.h."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO, run

from nvc.daemon import wire

NAMES = ("VERSION", "HELLO", "WANT", "RELEASE", "WELCOME", "FREE", "GRANT", "DROP", "REFUSED")
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
        kinds = set(re.findall(r"^\s+NVCD_(\w+) = \d+,", header.read(), re.M))
    assert kinds == set(NAMES) - {"VERSION"}


@pytest.mark.parametrize(
    ("text", "number", "slice_us", "problems"),
    [
        ("policy weight\nslice-us 5000\n", 2, 5000, 0),
        ("policy 3", 3, 10000, 0),
        ("policy best\nslice-us 5000", 5, 5000, 1),
        ("slice-us 1\nslice-us 99999999\nmax-instances -1\nfoo 1\n# a comment\n\n", 5, 10000, 4),
        ("policy \u0664\nslice-us \u0665000", 5, 10000, 2),
    ],
)
def test_policy_files(text: str, number: int, slice_us: int, problems: int) -> None:
    from nvc.daemon.policy import DevicePolicy, parse_policy

    policy, said = parse_policy(text, DevicePolicy())
    assert (policy.number, policy.slice, len(said)) == (number, slice_us * 1000, problems)

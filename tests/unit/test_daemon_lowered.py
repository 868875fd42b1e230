"""From which use of memory on nvcd acts where the operator lowered a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.audit.accountant import Balance
from nvc.daemon.audit.verify import EXCESS, TOLERANCE, Verifier
from nvc.kernel import LinuxKernel
from nvc.model.slices.entry import Entry, EntryDevice, read_entry, text_of, write_about

KEY, UUID = "f-1-2-3", "GPU-00000000-1111-2222-3333-444444444440"
GIB = 1 << 30
LIMIT, BEFORE = 4 * GIB, 8 * GIB


@pytest.mark.parametrize(
    ("truth", "model", "away", "excess", "lowered"),
    [
        (BEFORE + GIB, 0, (), True, BEFORE),
        (BEFORE, 0, (), False, BEFORE),
        (LIMIT + TOLERANCE + 1, 0, (), False, BEFORE),
        (LIMIT + TOLERANCE, LIMIT, (), False, 0),
        (-1, 0, (), False, BEFORE),  # NVML does not tell
        (0, LIMIT, (KEY,), False, BEFORE),  # it is suspended
        (0, BEFORE, (), False, BEFORE),  # it has just come back, and NVML was asked before
    ],
)
def test_the_old_limit_counts_until_the_slice_is_within_the_new_one(
    scratch: str, truth: int, model: int, away: tuple[str, ...], excess: bool, lowered: int
) -> None:
    entry = Entry(KEY, scratch, 0, 0, "", "/", 0, (EntryDevice(UUID, "0", 0, "", lowered=BEFORE),))
    write_about(scratch, text_of(entry))
    said: list[str] = []
    slices = SimpleNamespace(by_key={KEY: SimpleNamespace(entry=entry)}, say=said.append)
    accountant: Any = SimpleNamespace(
        balances=(Balance(KEY, UUID, "0", LIMIT, model, truth, ()),), kernel=LinuxKernel(), slices=slices
    )
    verifier = Verifier(accountant, {}, said.append)
    assert [kind for kind, *_ in verifier._excesses(away)] == [EXCESS] * excess
    assert read_entry(scratch).devices[0].lowered == lowered and said == []

"""Quota and ledger as bytes: what is written is read again, what is foreign is refused or bounded."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import MIG_UUID_0, UUID_0, UUID_1

from nvc.model.slices import layout, ledger, quota
from nvc.model.slices.quota import QuotaDevice

DEVICES = (
    QuotaDevice(UUID_0, 10 << 30, 500 << 20, 90 << 20, 7, 0, 0, 36_000_000, 480_000_000, 450_000, cores=3),
    QuotaDevice(UUID_1, layout.NO_LIMIT),
)


def opened(path: str, content: bytes = b"") -> int:
    with open(path, "wb") as out:
        out.write(content)
    return os.open(path, os.O_RDWR)


def test_what_is_written_is_read(scratch: str) -> None:
    fd = opened(f"{scratch}/quota")
    quota.write(fd, DEVICES)
    found = quota.read(fd)
    assert [device.replace(uuid="") for device in found] == [device.replace(uuid="") for device in DEVICES]
    assert [device.uuid for device in found] == [f"GPU-{uuid[4:].lower()}" for uuid in (UUID_0, UUID_1)]
    assert os.fstat(fd).st_size == layout.QUOTA_SIZE


def test_a_change_raises_the_sequence_by_two_and_keeps_the_inode(scratch: str) -> None:
    fd = opened(f"{scratch}/quota")
    quota.write(fd, DEVICES)
    before, inode = quota.unpack(os.pread(fd, layout.QUOTA_SIZE, 0))[0], os.fstat(fd).st_ino
    quota.write(fd, DEVICES[:1])
    assert quota.unpack(os.pread(fd, layout.QUOTA_SIZE, 0)) == (before + 2, quota.read(fd))
    assert before % 2 == 0 and os.stat(f"{scratch}/quota").st_ino == inode


def test_a_writer_that_died_is_followed_by_one_that_ends(scratch: str) -> None:
    fd = opened(f"{scratch}/quota")
    quota.write(fd, DEVICES)
    os.pwrite(fd, layout.SEQUENCE.pack(41), layout.SEQUENCE_OFFSET)
    with pytest.raises(quota.QuotaError, match="never finished"):
        quota.read(fd)
    quota.write(fd, DEVICES)
    assert len(quota.read(fd)) == 2


@pytest.mark.parametrize("written", [False, True])
def test_a_change_of_a_writer_that_died_is_ended(scratch: str, written: bool) -> None:
    fd = opened(f"{scratch}/quota")
    quota.write(fd, DEVICES)
    before, wanted = quota.read(fd), DEVICES[:1] if written else DEVICES
    assert not quota.finish(fd) and quota.read(fd) == before
    os.pwrite(fd, layout.SEQUENCE.pack(41), layout.SEQUENCE_OFFSET)
    if written:
        os.pwrite(fd, quota.pack(wanted, 41), 0)
    assert quota.finish(fd) and len(quota.read(fd)) == len(wanted)
    assert (
        quota.unpack(os.pread(fd, layout.QUOTA_SIZE, 0))[0] == 44
    )  # 42 is the writer's, if it lives after all
    os.truncate(fd, 10)
    with pytest.raises(quota.QuotaError):
        quota.finish(fd)


def test_a_reader_never_sees_a_mixture(scratch: str) -> None:
    fd = opened(f"{scratch}/quota")
    kinds = [tuple(QuotaDevice(UUID_0, n << 30, n, n, n) for _ in range(8)) for n in (1, 2)]
    quota.write(fd, kinds[0])
    stop = threading.Event()

    def writer() -> None:
        turn = 0
        while not stop.is_set():
            turn ^= 1
            quota.write(fd, kinds[turn])

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for _ in range(200):
            try:
                found = quota.read(fd)
            except quota.QuotaError:
                continue  # the writer never rested
            assert len({(d.memory_limit >> 30, d.correction) for d in found}) == 1
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"", lambda data: data[:-1], lambda data: data + b"\0", lambda data: b"X" + data[1:],
        lambda data: data[:8] + b"\x63" + data[9:], lambda data: data[:24] + b"\x41" + data[25:],
    ],
)  # fmt: skip
def test_a_foreign_quota_is_refused(damage: object) -> None:
    with pytest.raises(quota.QuotaError):
        quota.unpack(damage(quota.pack(DEVICES, 2)))  # type: ignore[operator]


def test_uuids() -> None:
    assert quota.uuid_bytes(MIG_UUID_0).hex() == MIG_UUID_0[4:].replace("-", "")
    assert quota.uuid_text(quota.uuid_bytes(MIG_UUID_0)) == MIG_UUID_0.replace("MIG", "GPU")
    with pytest.raises(quota.QuotaError, match="driver 470"):
        quota.uuid_bytes("MIG-GPU-5c1e0000-0000-0000-0000-00000000000a/1/0")


def test_too_many_devices() -> None:
    with pytest.raises(quota.QuotaError, match="65 devices"):
        quota.pack(DEVICES[:1] * 65, 0)


def made_ledger(*slots: tuple[int, int, bytes, tuple[int, int, int]]) -> bytearray:
    data = bytearray(ledger.header().ljust(layout.LEDGER_SIZE, b"\0"))
    high = 0
    for slot, pid, name, amounts in slots:
        offset = layout.LEDGER_HEADER.size + slot * layout.SLOT_HEADER.size
        layout.SLOT_HEADER.pack_into(data, offset, pid, 1, 0, name)
        layout.AMOUNT.pack_into(data, layout.AMOUNTS_OFFSET + slot * layout.AMOUNT.size, 0, *amounts)
        high = max(high, slot + 1)
    layout.LEDGER_HEADER.pack_into(
        data, 0, layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, high, 0, 0
    )
    return data


def test_accounts() -> None:
    data = bytes(
        made_ledger((0, 7, b"python", (6, 1, 0)), (2, 9, b"a\033[2J", (0, 0, 4)), (3, 0, b"", (9, 9, 9)))
    )
    found = ledger.parse(data, 2)
    assert [(a.slot, a.pid, a.name, a.used) for a in found] == [
        (0, 7, "python", (6, 0)),
        (2, 9, "a?[2J", (4, 0)),
    ]
    assert ledger.totals(found, 2) == (10, 0)


def test_amounts_of_a_liar_do_not_overflow() -> None:
    huge = (1 << 64) - 1
    found = ledger.parse(bytes(made_ledger((0, 1, b"x", (huge, huge, huge)))), 1)
    assert found[0].used == ((1 << 63) - 1,)


@given(st.binary(max_size=200), st.integers(0, layout.LEDGER_SIZE - 200))
def test_whatever_a_tenant_scribbles(junk: bytes, at: int) -> None:
    data = made_ledger((0, 7, b"python", (6, 1, 0)))
    data[at : at + len(junk)] = junk
    try:
        accounts = ledger.parse(bytes(data), 64)
    except ledger.LedgerError:
        return
    assert len(accounts) <= layout.SLOTS and all(a.name.isprintable() for a in accounts)

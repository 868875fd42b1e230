"""Many slices of one process, for tests of what nvcd shows: a program that obeys commands from standard input.

Each has a place of its own in the process's mount namespace for its quota and its ledger, which the commands write:

    ["time", SLICE, CHARGED, WAITED, REFUSED]    ["process", SLICE, NAME, BYTES]    ["end", SLICE]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any

from support.locks import lock
from support.nvcd_tenant import answer, mount

PLACE = "/mnt/{}"


class Member:
    """One slice, on one device."""

    def __init__(self, number: int, wanted: dict[str, Any]) -> None:
        from nvc.kernel import processes
        from nvc.model.slices import layout, ledger, quota
        from nvc.model.slices.entry import Entry, EntryDevice, text_of
        from nvc.model.slices.quota import QuotaDevice
        from nvc.slices.store import registry

        name, index = wanted.pop("name"), wanted.pop("index", "0")
        place, base = PLACE.format(number), registry.base_directory()
        os.makedirs(f"{place}/nvc/ledger")
        self.key = f"{os.stat('/proc/self/ns/mnt').st_ino:x}-1-{number + 2:x}-{os.getpid():x}"
        directory = f"{base}/.{self.key}"
        os.makedirs(directory)
        device = QuotaDevice(**wanted)
        fd = os.open(f"{directory}/quota", os.O_RDWR | os.O_CREAT, 0o644)
        quota.write(fd, (device,))
        os.close(fd)
        about = Entry(
            self.key, "", os.getpid(), processes.start_of("/proc/self"), "", place, int(time.time()) + number,
            (EntryDevice(device.uuid, index, 80 << 30, "NVIDIA H100"),), program=name,
        )  # fmt: skip
        with open(f"{directory}/about", "w", encoding="utf-8") as out:
            out.write(text_of(about))
        with open(f"{place}/nvc/ledger/ledger", "wb") as file:
            file.write(ledger.header())
            file.truncate(layout.LEDGER_SIZE)
        self.ledger = os.open(f"{place}/nvc/ledger/ledger", os.O_RDWR)
        self.directory = f"{base}/{self.key}"
        os.rename(directory, self.directory)
        open(f"{place}/nvc/quota", "w", encoding="ascii").close()
        mount("--bind", f"{self.directory}/quota", f"{place}/nvc/quota")

    def time(self, charged: int, waited: int, refused: int) -> None:
        """What its processes say of their time."""
        from nvc.model.slices import layout

        os.pwrite(self.ledger, layout.BUDGET.pack(0, 0, charged, waited, 1, refused, 0), layout.BUDGETS_OFFSET)

    def process(self, name: str, used: int) -> None:
        """A process with memory."""
        from nvc.model.slices import layout

        head = layout.LEDGER_HEADER.pack(
            layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, 1, 0, 0
        )
        os.pwrite(self.ledger, head + layout.SLOT_HEADER.pack(os.getpid(), 0, 0, name.encode()), 0)
        os.pwrite(self.ledger, layout.AMOUNT.pack(0, used, 0, 0), layout.AMOUNTS_OFFSET)
        lock(self.ledger, 0)

    def end(self) -> None:
        """Leave the registry."""
        shutil.rmtree(self.directory)


def main() -> None:
    from nvc.kernel import private_mounts

    private_mounts()
    mount("-t", "tmpfs", "none", "/mnt")
    members = [Member(number, wanted) for number, wanted in enumerate(json.loads(sys.stdin.readline()))]
    answer([member.key for member in members])
    for line in sys.stdin:
        command, number, *words = json.loads(line)
        getattr(members[number], command)(*words)
        answer(None)


if __name__ == "__main__":
    main()

"""A slice and one process in it, for tests of nvcd: run as a program, it obeys commands from its standard input.

It is what the shim is to nvcd: a process whose mount namespace shows the quota of its slice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from support.locks import lock

LIBRARIES = "/mnt/lib"


def make_slice(devices: list[dict[str, object]]) -> str:
    """Register this process's mount namespace as a slice; its key is returned."""
    from nvc.kernel import private_mounts, processes
    from nvc.model.slices import layout, ledger, quota
    from nvc.model.slices.entry import Entry, EntryDevice, text_of
    from nvc.model.slices.quota import QuotaDevice
    from nvc.slices.store import registry

    private_mounts()
    mount("-t", "tmpfs", "none", "/mnt")
    os.makedirs(f"{LIBRARIES}/nvc/ledger")
    namespace = os.stat("/proc/self/ns/mnt").st_ino
    key = f"{namespace:x}-1-2-{os.getpid():x}"
    directory = f"{registry.base_directory()}/.{key}"
    os.makedirs(directory)
    quotas = tuple(QuotaDevice(**device) for device in devices)  # type: ignore[arg-type]
    fd = os.open(f"{directory}/quota", os.O_RDWR | os.O_CREAT, 0o644)
    quota.write(fd, quotas)
    os.close(fd)
    known = tuple(
        EntryDevice(device.uuid, str(number), 80 << 30, "NVIDIA H100")
        for number, device in enumerate(quotas)
    )
    start = processes.start_of("/proc/self")
    entry = Entry(key, "", os.getpid(), start, "", LIBRARIES, int(time.time()), known)
    with open(f"{directory}/about", "w", encoding="ascii") as about:
        about.write(text_of(entry))
    os.rename(directory, f"{os.path.dirname(directory)}/{key}")
    with open(f"{LIBRARIES}/nvc/ledger/ledger", "wb") as out:
        out.write(ledger.header())
        out.truncate(layout.LEDGER_SIZE)
    open(f"{LIBRARIES}/nvc/quota", "w", encoding="ascii").close()
    mount("--bind", f"{registry.base_directory()}/{key}/quota", f"{LIBRARIES}/nvc/quota")
    return key


def keep_books() -> None:
    """A ledger in which this process has a slot, as the shim's would."""
    from nvc.model.slices import layout, ledger

    place = f"{LIBRARIES}/{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"
    fd = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
    header = layout.LEDGER_HEADER.pack(
        layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, 1, 0, 0
    )
    assert len(header) == len(ledger.header())
    os.pwrite(fd, header + layout.SLOT_HEADER.pack(os.getpid(), 0, 0, b"tenant"), 0)
    os.truncate(fd, layout.LEDGER_SIZE)
    lock(fd, 0)  # the descriptor stays open


def mount(*words: str) -> None:
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", *words]) == 0, words


def main() -> None:
    key = make_slice(json.loads(sys.argv[1]))
    answer({"key": key, "pid": os.getpid()})
    for line in sys.stdin:
        command, *_ = json.loads(line)
        if command == "keep books":
            keep_books()
            answer(None)
        elif command == "child":  # its pid; it has all descriptors
            child = os.fork()
            if child == 0:
                signal.pause()
            answer(child)


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

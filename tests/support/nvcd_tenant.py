"""A slice and one process in it, for tests of nvcd: run as a program, it lives as long as its standard input.

It is what the shim is to nvcd: a process whose mount namespace shows the quota of its slice.
"""

from __future__ import annotations

import json
import os
import sys
import time

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


def mount(*words: str) -> None:
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", *words]) == 0, words


def main() -> None:
    key = make_slice(json.loads(sys.argv[1]))
    answer({"key": key, "pid": os.getpid()})
    sys.stdin.read()


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

"""A registry of slices of its own, with nvcd and `vgpu top` in this process. The slices are this process's."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from nvc.base import rundir
from nvc.daemon.control import answer
from nvc.daemon.daemon import Daemon
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices import quota
from nvc.model.slices.entry import Entry, EntryDevice, text_of
from nvc.model.slices.quota import QuotaDevice
from nvc.request.config import Config
from nvc.slices.show.live import LiveView, document
from nvc.slices.store import registry, status

GPU = "GPU-00000000-1111-2222-3333-444444444440"


class Host:
    """See above."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[str] = []
        self.start = start_of("/proc/self")
        self.daemon = Daemon(Config(), LinuxKernel(), 0, print)
        self.watcher = LiveView(LinuxKernel(), 1.0)

    def arrive(self, policy: int, cores: int, weight: int) -> None:
        self.count += 1
        key = f"{self.count:x}-1-1-{self.count:x}"
        path = f"{registry.base_directory()}/{key}"
        os.mkdir(path)
        device = EntryDevice(GPU, "0", 80 << 30, "H100", policy)
        entry = Entry(key, path, os.getpid(), self.start, "", "/usr/lib", 1000 - self.count % 3, (device,))
        with open(f"{path}/about", "w", encoding="ascii") as out:
            out.write(text_of(entry))
        self.keys.append(key)
        open(f"{path}/quota", "w", encoding="ascii").close()
        self.set(key, cores=cores, weight=weight, policy=policy)

    def set(self, key: str, **fields: int) -> None:
        fd = os.open(f"{registry.base_directory()}/{key}/quota", os.O_RDWR)
        quota.write(fd, (QuotaDevice(GPU, 1 << 30, kept_until=1 << 62, **fields),))
        os.close(fd)

    def leave(self, key: str) -> None:
        path = f"{registry.base_directory()}/{key}"
        for name in ("about", "quota"):
            os.unlink(f"{path}/{name}")
        os.rmdir(path)
        self.keys.remove(key)

    def state(self) -> dict[str, tuple[str, float | None]]:
        """Policy and entitlement of each slice that takes leases, as `nvcd --state` says."""
        found = json.loads(answer(self.daemon, b'{"ask": "state"}', 0))
        return {
            tenant["key"]: (device["policy"], tenant["entitlement"])
            for device in found["devices"]
            for tenant in device["tenants"]
            if tenant["entitlement"] is not None
        }

    def top(self) -> dict[str, tuple[str, float | None]]:
        """The same as `vgpu top --format json` says."""
        found: Any = document(self.watcher.look())
        return {
            one["key"]: (device["policy"], device["entitlement"])
            for one in found["slices"]
            for device in one["devices"]
            if device["entitlement"] is not None
        }


@contextmanager
def host() -> Iterator[Host]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        patch.object(rundir, "SYSTEM", scratch),
        patch.object(status, "silence", lambda: ""),  # nvcd is in this process, and has no socket
    ):
        made = Host()
        try:
            yield made
        finally:
            made.daemon.close()
            made.daemon.loop.epoll.close()

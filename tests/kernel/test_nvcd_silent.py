"""nvcd and slices that make what it looks at slow: by a file system that never answers, many mounts, many locks."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, REPO, run
from support.locks import lock
from support.nvcd import ANEW, Place, ask, eventually
from support.processes import in_namespace
from support.rootfs import LIBS

from nvc.daemon.audit.ledgers import _read
from nvc.kernel import LinuxKernel
from nvc.model.slices import layout
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import LedgerError
from nvc.slices.store.liveness import use_of
from nvc.slices.store.process_view import ProcessView

pytestmark = pytest.mark.driver(gpus=1)


@pytest.fixture
def silent() -> Iterator[Callable[[int, str], None]]:
    """Mounts one in the mount namespace of a process."""
    servers = []

    def mount(pid: int, path: str) -> None:
        program = os.path.join(REPO, "tests/support/silentfs.py")
        words = ["nsenter", "-t", str(pid), "-m", sys.executable, program, path]
        servers.append(subprocess.Popen(words, stdout=subprocess.PIPE, env=CLEAN_ENV))
        stdout = servers[-1].stdout
        assert stdout is not None and select.select([stdout], [], [], PATIENCE)[0]
        assert stdout.readline() == b"ready\n"

    yield mount
    for server in servers:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def inner(pid: int) -> int:
    """The program itself, vgpu_work, among the processes that `vgpu run` is made of: some of those end any time."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{parent}/comm", encoding="ascii") as name:
                if name.read() == "vgpu_work\n":
                    return parent
            with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as children:
                found += map(int, children.read().split())
    raise AssertionError(f"no vgpu_work below {pid}")


def test_others_are_served(place: Place, driver: str, busy: Any, silent: Callable[[int, str], None]) -> None:
    """From nvcd's start on, and again when it looks at everything anew, each five seconds."""
    for covered in ("", "nvc", "nvc/quota", "nvc/ledger", "nvc/ledger/ledger"):
        worker = busy("--policy=first", ns=50_000_000, batch=1, warm=0, seconds=600).started()
        silent(inner(worker.process.pid), f"{driver}{LIBS}/{covered}")
    place.start(f"--root={driver}")
    other = place.tenant(uuids=(ask(place)["devices"][0]["uuid"],))
    eventually(place, lambda state: other.key in [one["key"] for one in state["slices"]])
    first = ask(place)["now"]
    state = eventually(place, lambda s: s["now"] - first > ANEW and s["nvml"]["devices"] == 1)
    assert [one["running"] for one in state["slices"]] == [True] * 6


OVERLAY = """
mkdir -p {0}/upper {0}/work {0}/lower/lib/nvc/ledger {0}/merged
ln -s lib {0}/lower/link
touch {0}/lower/lib/nvc/quota
mount -t overlay -o lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work none {0}/merged
mount -t tmpfs -o size=64k none {0}/merged/lib/nvc/ledger
touch {0}/merged/lib/nvc/ledger/ledger
mount --bind {0}/vgpu/{1}/quota {0}/merged/lib/nvc/quota
"""


def test_links_of_an_overlay(scratch: str) -> None:
    """The kernel looks none of them up without asking, so its list of mounts is read."""
    root = os.stat("/")
    ours, other = (f"1-{root.st_dev:x}-{root.st_ino:x}-{number}" for number in (1, 2))
    for key in (ours, other):
        os.makedirs(f"{scratch}/vgpu/{key}")
        open(f"{scratch}/vgpu/{key}/quota", "w", encoding="ascii").close()

    def entry(key: str, libraries: str) -> Entry:
        return Entry(key, f"{scratch}/vgpu/{key}", 1, 1, "", f"{scratch}/merged/{libraries}", 0, ())

    with in_namespace(OVERLAY.format(scratch, ours)) as pid:
        with ProcessView(LinuxKernel(), pid) as view:
            with pytest.raises(BlockingIOError):
                view.kernel.open_cached(view.root, f"{scratch}/merged/link/nvc/quota")
            for libraries in ("lib", "link"):
                assert view.sees(entry(ours, libraries)) and not view.sees(entry(other, libraries))
                os.close(view.open_ledger(entry(ours, libraries)))
            os.unlink(f"{scratch}/vgpu/{ours}/quota")
            assert not view.sees(entry(ours, "link"))


NOT_ENTERED = """
mkdir -p {0}/rootfs{0}/lib/nvc/ledger
mount --bind {0}/rootfs {0}/rootfs
touch {0}/rootfs{0}/lib/nvc/quota
mount -t tmpfs -o size=64k none {0}/rootfs{0}/lib/nvc/ledger
touch {0}/rootfs{0}/lib/nvc/ledger/ledger
mount --bind {1}/quota {0}/rootfs{0}/lib/nvc/quota
"""


def test_before_the_container_is_entered(disk: str) -> None:
    """Its slice lives and is not used, whether or not the kernel remembers that the host has no such file."""
    os.mkdir(f"{disk}/rootfs")
    root = os.stat(f"{disk}/rootfs")
    key = f"1-{root.st_dev:x}-{root.st_ino:x}-1"
    directory = f"{disk}/vgpu/{key}"
    os.makedirs(directory)
    open(f"{directory}/quota", "w", encoding="ascii").close()
    entry = Entry(key, directory, 1, 1, f"{disk}/rootfs", f"{disk}/lib", 0, ())
    os.mkdir(f"{disk}/lib")
    with in_namespace(NOT_ENTERED.format(disk, directory)) as pid:
        for errors in ((BlockingIOError,), (FileNotFoundError,)):
            with ProcessView(LinuxKernel(), pid) as view:
                with pytest.raises(errors):
                    view.kernel.open_cached(view.root, f"{disk}/lib/nvc/quota")
                assert view.sees(entry)
                with pytest.raises(LedgerError, match="not been entered yet"):
                    view.open_ledger(entry)
            assert not os.path.exists(f"{disk}/lib/nvc/quota")  # now it is remembered


# Each one has all that there are in it: 2 to the power of 13 in the end.
MOUNTS = """
mount -t tmpfs none {0}
for i in $(seq 13); do mkdir {0}/$i; mount --rbind {0} {0}/$i; done
"""


def test_mounts_by_the_thousand(scratch: str) -> None:
    """Of a list of them that takes long, the beginning is read."""
    with in_namespace(MOUNTS.format(scratch)) as pid:
        with ProcessView(LinuxKernel(), pid) as view:
            assert 100 < len(view._list()) < 1 << 13


def test_locks_by_the_thousand(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel goes through all that a file has, for each that it is asked for: nvcd and `vgpu ls` give up."""
    data = bytearray(layout.LEDGER_SIZE)
    data[: layout.LEDGER_HEADER.size] = layout.LEDGER_HEADER.pack(
        layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, layout.SLOTS, 0, 0
    )
    for slot in range(layout.SLOTS):
        place = layout.LEDGER_HEADER.size + slot * layout.SLOT_HEADER.size
        layout.SLOT_HEADER.pack_into(data, place, slot + 1, 0, 0, b"")
    with open(f"{scratch}/ledger", "w+b", buffering=0) as ours, open(f"{scratch}/ledger", "rb") as theirs:
        ours.write(data)
        lock(ours.fileno(), 7)
        monkeypatch.setattr(ProcessView, "open_ledger", lambda *_: os.dup(theirs.fileno()))
        entry, pids = Entry("key", scratch, 1, 1, "", scratch, 0, ()), (os.getpid(),) * 3
        assert [account.slot for account in _read(theirs.fileno(), 1)] == [7]
        assert [account.slot for account in use_of(LinuxKernel(), entry, pids, 1).accounts] == [7]
        for place in range(16000):  # each on a byte that does not touch another one's
            lock(ours.fileno(), layout.LEDGER_SIZE - 2 * place)
        with pytest.raises(LedgerError, match="too many locks"):
            _read(theirs.fileno(), 1)
        assert use_of(LinuxKernel(), entry, pids, 1).problem == "ledger: too many locks"


def test_ledgers_elsewhere(scratch: str) -> None:
    """What is not in a tmpfs is not opened."""
    os.makedirs(f"{scratch}/lib/nvc/ledger")
    run("mount", "-t", "ramfs", "none", f"{scratch}/lib/nvc/ledger")
    open(f"{scratch}/lib/nvc/ledger/ledger", "w", encoding="ascii").close()
    entry = Entry("key", scratch, 1, 1, "", f"{scratch}/lib", 0, ())
    with ProcessView(LinuxKernel(), os.getpid()) as view, pytest.raises(LedgerError, match="not in a tmpfs"):
        view.open_ledger(entry)
    run("umount", f"{scratch}/lib/nvc/ledger")

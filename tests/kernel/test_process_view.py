"""The ledger of a claim's slice, by a process of another container that has a root directory of the slice."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.processes import in_namespace

from nvc.kernel import LinuxKernel
from nvc.model.slices import layout
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import LedgerError
from nvc.slices.store import claims
from nvc.slices.store.process_view import ProcessView
from nvc.slices.store.registry import LEDGER

#: A container of the claim: quota and ledger are the host's, bound where its shim looks for them.
CONTAINER = """
mkdir -p {0}/libs/nvc/ledger
touch {0}/libs/nvc/quota
mount --bind {1}/quota {0}/libs/nvc/quota
mount --bind {1}/ledger {0}/libs/nvc/ledger
{2}
"""
OWN_LEDGER = "mount -t {kind} none {0}/libs/nvc/ledger; truncate -s 1M {0}/libs/nvc/ledger/ledger"
STRANGER = "exec chroot /proc/{}/root sh -c 'echo ready; exec cat'"


@pytest.fixture
def entry(scratch: str) -> Iterator[Entry]:
    """One as the plugin makes it."""
    directory = f"{scratch}/vgpu/key"
    os.makedirs(directory)
    open(f"{directory}/quota", "w", encoding="ascii").close()
    claims.mount(f"{directory}/{LEDGER}")
    try:
        yield Entry("key", directory, 0, 0, "", f"{scratch}/libs", 0, (), claim="team/train")
    finally:
        claims.unmount(f"{directory}/{LEDGER}")


def test_one_that_entered_from_elsewhere(entry: Entry, scratch: str) -> None:
    """Its list of mounts has none of the slice's. The ledger is the host's nevertheless."""
    with (
        in_namespace(CONTAINER.format(scratch, entry.directory, "")) as inside,
        in_namespace(STRANGER.format(inside)) as pid,
    ):
        with ProcessView(LinuxKernel(), pid) as view:
            assert view.sees(entry) and not view._list()
            ledger = view.open_ledger(entry, writable=True)
        with open(ledger, "r+b", buffering=0) as file:
            assert (
                os.fstat(ledger).st_ino == os.stat(f"{entry.directory}/{LEDGER}/{layout.LEDGER_NAME}").st_ino
            )
            assert len(file.read()) == layout.LEDGER_SIZE


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_one_that_shows_another_ledger(entry: Entry, scratch: str, kind: str) -> None:
    """What it shows cannot be told from a file system whose server never answers: it is not opened."""
    covered = CONTAINER.format(scratch, entry.directory, OWN_LEDGER.format(scratch, kind=kind))
    with in_namespace(covered) as inside, in_namespace(STRANGER.format(inside)) as pid:
        with ProcessView(LinuxKernel(), pid) as view:
            assert view.sees(entry)
            with pytest.raises(LedgerError, match="not in a tmpfs"):
                view.open_ledger(entry)

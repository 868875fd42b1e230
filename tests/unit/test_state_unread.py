"""Reads of state while the host has no descriptor left: an error, or a doubt, and never that nothing is there."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.base.errors import ContainerError, NvcError
from nvc.daemon.audit.accountant import Accountant, User
from nvc.daemon.io.identity import slice_of
from nvc.daemon.mps import records as mps_records
from nvc.discovery.containers.files import names_in
from nvc.discovery.containers.lookup import Lookup, Trace
from nvc.discovery.containers.places import Places
from nvc.frontends.cdi.hooks.slices import _is_there
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices import quota
from nvc.model.slices.entry import Entry, EntryDevice, read_entry, text_of, write_about
from nvc.model.slices.quota import QuotaDevice
from nvc.slices.make import calibration
from nvc.slices.make.shadow_libraries import find_shadow_libraries
from nvc.slices.policy import policies
from nvc.slices.store import liveness, process_view, registry
from nvc.slices.store.limits import read_quota, sound_quota
from nvc.slices.store.liveness import living, living_of, use_of
from nvc.slices.store.process_info import is_here, mount_namespace
from nvc.slices.store.snapshot import snapshot

KEY, UUID, LIBS = "f-1-2-3", "GPU-00000000-1111-2222-3333-444444444440", "/lib"
kernel = LinuxKernel()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Nothing can be opened; what is open stays so."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class State:
    """One slice of this process, all of it sound, and the root directory of an image with a copy of libcuda."""

    def __init__(self, base: str) -> None:
        self.base = f"{base}/vgpu"
        self.directory = f"{self.base}/{KEY}"
        os.makedirs(self.directory)
        device = EntryDevice(UUID, "0", 0, "GPU")
        began = start_of("/proc/self")
        self.entry = Entry(KEY, self.directory, os.getpid(), began, "", LIBS, 0, (device,))
        write_about(self.directory, text_of(self.entry))
        fd = os.open(f"{self.directory}/quota", os.O_RDWR | os.O_CREAT, 0o644)
        quota.write(fd, (QuotaDevice(UUID, 1 << 30),))
        os.close(fd)
        self.measured = f"{base}/calibration"
        calibration.store((calibration.Measurement("1", "GPU", 0, 5, 6),), self.measured)
        self.servers = f"{base}/mps"
        os.makedirs(f"{self.servers}/{KEY}/{UUID}")
        mps_records.write(mps_records.MpsServer(KEY, UUID, 3, 4, f"{self.servers}/{KEY}/{UUID}", 0, 1, 2))
        os.makedirs(f"{base}/image{LIBS}/nvc")
        with open(f"{base}/image{LIBS}/libcuda.so.1", "wb") as copy:
            copy.write(b"\x7fELF" + bytes(60))
        os.link(f"{self.directory}/quota", f"{base}/image{LIBS}/nvc/quota")
        os.symlink("loop", f"{base}/image/loop")
        self.image = os.open(f"{base}/image", os.O_PATH)
        self.accountant: Any = Accountant.__new__(Accountant)


@pytest.fixture
def state(scratch: str) -> Iterator[State]:
    made = State(scratch)
    yield made
    os.close(made.image)


#: What is read, and a part of what is then said.
RAISES: dict[str, tuple[Callable[[State], object], str]] = {
    "entry": (lambda s: read_entry(s.directory), "/about: too many open files"),
    "quota": (lambda s: read_quota(s.entry), "/quota"),
    "quota, to mend it": (lambda s: sound_quota(kernel, s.entry, True), "/quota"),
    "policy": (lambda s: policies.read(UUID), "too many open files"),
    "measurements": (lambda s: calibration.load(s.measured), "/calibration: too many open files"),
    "record of a server": (lambda s: mps_records.read(f"{s.servers}/{KEY}/{UUID}"), "/about"),
    "servers": (lambda s: mps_records.directories(s.servers), "/mps"),
    "all slices": (lambda s: snapshot(kernel, True, base=s.base), "/vgpu"),
    "copies in an image": (lambda s: find_shadow_libraries(s.image, LIBS), "too many open files"),
    "whether it is bound": (
        lambda s: registry.is_bound(kernel, s.image, LIBS, s.directory),
        "too many open",
    ),
    "a library in a container": (lambda s: _is_there(kernel, s.image, f"{LIBS}/libcuda.so.1"), "too many open"),
    "containers by a name": (lambda s: Lookup(Places((s.base,), (), ())).ids_of("web"), "/containers: too many"),
    "names in a directory": (lambda s: names_in(s.base), "/vgpu: too many open files"),
    "slice of a process": (lambda s: slice_of(kernel, os.getpid(), (s.entry,)), "/proc/"),
}
#: Whatever is not known counts: as living, as in use, as somebody's.
COUNTS: dict[str, Callable[[State], object]] = {
    "a first process": lambda s: is_here(s.entry.pid, s.entry.start),
    "another first process": lambda s: is_here(s.entry.pid, s.entry.start - 1),
    "a slice": lambda s: KEY in living(kernel, (s.entry,)),
    "a slice whose first process has ended": lambda s: KEY in living(kernel, (s.entry.replace(pid=0),)),
    "a slice, by its first process": lambda s: KEY in living_of(kernel, (s.entry.replace(start=1),)),
    "what is in use": lambda s: use_of(kernel, s.entry, (os.getpid(),), 1).problem,
    "a process": lambda s: not s.accountant._ends(User(os.getpid(), 1, 1, KEY, UUID, 1)),
}


@pytest.mark.parametrize("what", RAISES)
def test_it_is_an_error(state: State, what: str) -> None:
    read, says = RAISES[what]
    with pytest.raises((NvcError, OSError)) as failed, no_descriptor_left():
        read(state)
    error = failed.value
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    assert says.lower() in text.lower()


@pytest.mark.parametrize("what", COUNTS)
def test_what_is_not_known_counts(state: State, what: str) -> None:
    with no_descriptor_left():
        found = COUNTS[what](state)
    assert found


def test_all_of_it_is_sound_otherwise(state: State) -> None:
    """So the errors above are those of the host alone."""
    for read, _ in RAISES.values():
        read(state)
    dead = {
        "another first process",
        "a slice whose first process has ended",
        "a slice, by its first process",
    }
    wanted = {"a first process": True, "a slice": True, **dict.fromkeys(dead, False)}
    assert {what: bool(COUNTS[what](state)) for what in wanted} == wanted


def test_a_container_s_name_that_cannot_be_read_is_its_id(state: State) -> None:
    lookup = Lookup(Places((state.base,), (state.base,), (state.base,)))
    with no_descriptor_left():
        found = lookup.of(Trace("d" * 64))
    assert (found.id, found.name) == ("d" * 64, "")


def test_a_library_that_cannot_be_looked_at(state: State) -> None:
    """Programs may load it: it is not left out, so that the shim does not lie over it."""
    with pytest.raises(ContainerError, match="/loop: too many levels of symbolic links"):
        _is_there(kernel, state.image, "/loop")
    assert not _is_there(kernel, state.image, "/missing")


def test_many_processes_leave_nobody_in_doubt(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at all of them took the time that lists of mounts have, and what ended slices had stayed reserved."""
    spent = [0]

    def look(pid: int) -> tuple[int, int]:
        spent[0] += liveness.LEASES_TIME
        return mount_namespace(pid)

    monkeypatch.setattr(process_view, "time", SimpleNamespace(thread_time_ns=lambda: spent[0]))
    monkeypatch.setattr(liveness, "mount_namespace", look)
    assert living_of(kernel, (state.entry.replace(start=1),)) == {} and spent[0]

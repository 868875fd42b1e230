"""The file that says what a slice is, with names of any kind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import REPO
from support.damage import CALIBRATION

from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import Entry, EntryDevice, RegistryError, read_entry, text_of
from nvc.plan import ops
from nvc.slices.make.calibration import CalibrationError, Measurement, find, load, parse_line, store
from nvc.slices.store import process_info
from nvc.slices.store.liveness import living, living_of
from nvc.slices.store.process_info import namespace_id_of
from nvc.slices.store.registry import entries, prune, sound_entries

NAMES = st.binary(max_size=40).map(os.fsdecode)


def written(directory: str, text: str) -> str:
    with open(os.path.join(directory, "about"), "w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(text)
    return directory


@given(NAMES, NAMES, st.text(max_size=20))
def test_any_name_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rootfs: str, libs: str, name: str
) -> None:
    path = str(tmp_path_factory.getbasetemp())
    name = name.encode("utf-8", "replace").decode()
    devices = (EntryDevice("GPU-1", "0:1", 5, name), EntryDevice("GPU-2", "1", 0, "", reserved=7))
    entry = Entry(os.path.basename(path), path, 7, 8, rootfs, libs, 9, devices)
    text = text_of(entry)
    assert text.isascii() and len(text.splitlines()) == 1
    assert read_entry(written(path, text)) == entry


def test_a_policy_of_a_newer_version_is_kept(scratch: str) -> None:
    """A slice that it started can be read after a downgrade, as its quota can."""
    device = EntryDevice("GPU-0", "0", 0, "H", asked_policy=77)
    entry = Entry(os.path.basename(scratch), scratch, 7, 8, "/", "/l", 9, (device,))
    written(scratch, text_of(entry))
    assert read_entry(scratch) == entry


@pytest.mark.parametrize("number", (-1, 1 << 32))
def test_a_number_that_no_quota_holds_is_no_policy(scratch: str, number: int) -> None:
    device = EntryDevice("GPU-0", "0", 0, "H", asked_policy=number)
    written(scratch, text_of(Entry(os.path.basename(scratch), scratch, 7, 8, "/", "/l", 9, (device,))))
    with pytest.raises(RegistryError, match=f"{number}: not a number of 0 to {(1 << 32) - 1}"):
        read_entry(scratch)


def test_a_ledger_has_only_options_that_mount_knows() -> None:
    """The others have another number there: MOUNT_ATTR_NOSYMFOLLOW is MS_RELATIME for mount(2)."""
    assert not ops.Ledger.attributes & ~(ops.RDONLY | ops.NOSUID | ops.NODEV | ops.NOEXEC)


def test_what_a_killed_removal_left_is_gone(scratch: str) -> None:
    for key, names in (("f0-1-2-3", ()), ("f0-1-2-4", (".about",)), ("f0-1-2-5", ("quota",))):
        os.mkdir(f"{scratch}/{key}")
        for name in names:
            open(f"{scratch}/{key}/{name}", "w").close()
    open(f"{scratch}/f0-1-2-6", "w").close()
    assert prune(LinuxKernel(), scratch) == ["f0-1-2-3", "f0-1-2-4"]
    assert sorted(os.listdir(scratch)) == ["f0-1-2-5", "f0-1-2-6"]  # a container may have it bound


def test_every_scan_tells_broken_slices_from_remains(scratch: str) -> None:
    sound = text_of(Entry("", "", 7, 8, "/", "/l", 9, ()))
    for key, text in (("f0-1-2-3", None), ("f0-1-2-4", "rubbish"), ("f0-1-2-5", sound)):
        os.mkdir(f"{scratch}/{key}")
        if text is not None:
            written(f"{scratch}/{key}", text)
    found = dict(entries(scratch))
    assert list(found) == ["f0-1-2-4", "f0-1-2-5"]
    assert isinstance(found["f0-1-2-4"], RegistryError) and isinstance(found["f0-1-2-5"], Entry)
    with pytest.raises(RegistryError, match="f0-1-2-4/about"):
        list(sound_entries(scratch))


def test_when_a_process_began() -> None:
    with subprocess.Popen(["true"]) as child:  # process 1 may have begun before the clock of our time namespace
        assert 0 < start_of("/proc/self") <= start_of(f"/proc/{child.pid}")
    with pytest.raises(OSError):
        start_of("/proc/0")


def test_measurements_are_kept_by_driver_and_device(scratch: str) -> None:
    path = f"{scratch}/new/calibration"
    one = Measurement("580.1", "NVIDIA  H100\nx", 0, 5, 6)
    other = Measurement("580.1", "NVIDIA  H100\nx", 10176, 3, 0)
    assert load(path) == ()
    store((one, other), path)
    store((one.replace(context=9),), path)
    kept = load(path)
    assert [m.context for m in kept] == [3, 9]
    assert find(kept, "580.1", "NVIDIA  H100\nx", 0) == kept[1]
    assert find(kept, "580.2", "NVIDIA  H100\nx", 0) is None


@pytest.mark.parametrize("damage", CALIBRATION)
def test_measurements_that_cannot_be_read_are_no_measurements_to_assume(scratch: str, damage: str) -> None:
    """A slice whose contexts count for less or more than they take is not made; measuring again mends the file."""
    path = f"{scratch}/new/calibration"
    one = Measurement("580.1", "NVIDIA H100", 0, 5, 6)
    store((one,), path)
    CALIBRATION[damage](path)
    with pytest.raises(CalibrationError, match=f"{path}: .*vgpu calibrate"):
        load(path)
    store((one,), path)
    assert load(path) == (one,)


def test_a_line_as_it_is_written() -> None:
    one = Measurement("580.1-sim", "A  device B", 7, 5, 6)
    assert parse_line(one.line().rstrip("\n")) == one
    timed = "driver 1  context 5  module 6  making 7  lasts 8  change 9  device y"  # as nvc wrote it before
    assert parse_line(timed) == Measurement("1", "y", 0, 5, 6)
    for bad in ("", "driver 1  context x  device y", "driver 1  context 5", "context 5  device y"):
        assert parse_line(bad) is None


def key_of(pid: int) -> str:
    return f"{os.stat(f'/proc/{pid}/ns/mnt').st_ino:x}-0-0-0"


def test_a_slice_lives_while_its_process_does() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        key = key_of(process.pid)
        entry = Entry(key, "/nowhere", process.pid, start_of(f"/proc/{process.pid}"), "", "/nowhere", 0, ())
        assert set(living_of(LinuxKernel(), (entry,))) == {key}
        another = entry.replace(start=entry.start - 1)  # which was given its number
        assert living_of(LinuxKernel(), (another,)) == {}
    assert living_of(LinuxKernel(), (entry,)) == {}


def test_the_number_of_a_namespace_that_is_given_again() -> None:
    """With its unique number there is no doubt; without, a process that saw less than all may be of the slice."""
    kernel = LinuxKernel()
    # The second has a root directory that is no mount.
    inside = "import os, sys; os.chroot('/proc/sys'); print(flush=True); sys.stdin.read()"
    for words, in_doubt in ((["sh", "-c", "echo; exec cat"], False), ([sys.executable, "-c", inside], True)):
        with subprocess.Popen(
            ["unshare", "--mount", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            key, number = key_of(process.pid), namespace_id_of(process.pid)
            entry = Entry(key, "/nowhere", 0, 0, "", "/nowhere", 0, (), mounts=number)
            assert number and living(kernel, (entry,))[key].pids == (process.pid,)
            assert living(kernel, (entry.replace(mounts=1, start=1 << 60),)) == {}
            assert bool(living(kernel, (entry.replace(mounts=0, start=1 << 60),))) == in_doubt


MANY_MOUNTS = """
import ctypes, os, sys
from nvc.kernel import private_mounts
private_mounts()
mount = ctypes.CDLL(None).mount
assert mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0
os.chdir("/mnt")
for _ in range(15):
    os.mkdir(" " * 255)
    os.chdir(" " * 255)
os.mkdir("a")
for _ in range(100):
    assert mount(b"none", b"a", b"tmpfs", 0, None) == 0
print(len(open("/proc/self/mountinfo").read()), flush=True)
sys.stdin.read()
"""


def test_lists_of_mounts_that_are_too_long_are_a_doubt(tmp_path: Path) -> None:
    """They take no memory, and no more time than they may."""
    kernel = LinuxKernel()
    (tmp_path / "quota").touch()
    entry = Entry("f-0-0-0", str(tmp_path), 0, 0, "", "/nowhere", 0, ())
    with subprocess.Popen(
        [sys.executable, "-c", MANY_MOUNTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO
    ) as process:
        assert process.stdout is not None
        size = int(process.stdout.readline())
        assert size > 1 << 20
        tracemalloc.start()
        try:
            assert living(kernel, (entry,)) == {}
            assert tracemalloc.get_traced_memory()[1] < size // 4
        finally:
            tracemalloc.stop()
        assert "too long to be read" in living(kernel, (entry,), 0)[entry.key].doubt
        assert living(kernel, (entry.replace(start=1 << 60),), 0) == {}  # nobody began after it


def test_what_cannot_be_looked_at_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not for a process that began before the slice did."""
    kernel, real = LinuxKernel(), process_info.namespace_number
    entry = Entry("f-0-0-0", "/nowhere", 0, start_of("/proc/self"), "", "/nowhere", 0, ())
    assert living(kernel, (entry,)) == {}

    def refused(pid: int, kind: str) -> int:
        if pid == os.getpid():
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(pid, kind)

    monkeypatch.setattr(process_info, "namespace_number", refused)
    assert "Permission denied" in living(kernel, (entry,))[entry.key].doubt
    assert living(kernel, (entry.replace(start=entry.start + 1),)) == {}

"""The executor over the recording kernel: what the applier is asked to do, and what its answers become."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from nvc.apply import journal
from nvc.apply.executor import apply_plan
from nvc.apply.target import Layout, Target
from nvc.base.errors import (
    ContainerError,
    InternalError,
    LoaderCacheError,
    MountError,
    NvcError,
    SourceChanged,
)
from nvc.kernel import ApplyReport, ApplyTarget, LinuxKernel, lib
from nvc.model.facts import Identity
from nvc.plan.ops import BindFile, BindProc, BindSocket, LoaderEntry, Plan, Symlink, Tmpfs, UpdateLoaderCache

UNDO = struct.pack("<I", lib.NVC_OP_UNDO)


class RecordingKernel(LinuxKernel):
    """Opens for real, below the roots it is given, but applies nothing: `programs` has what it was asked to.

    `answers` are reports for the next calls of `apply`; without one left, success is reported. An answer that
    is an OSError is raised.
    """

    def __init__(self, *answers: ApplyReport | OSError) -> None:
        self.programs: list[bytes] = []
        self.answers = list(answers)

    def apply(self, program: bytes, place: ApplyTarget) -> ApplyReport:
        self.programs.append(program)
        answer = self.answers.pop(0) if self.answers else ApplyReport(0, -1, 1, 0, "", "", ())
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def target(tmp_path: Any) -> Any:
    made = Target()
    made.pid = made.pidfd = made.proc = made.mount_namespace = -1
    made.rootfs = os.open(tmp_path, os.O_RDONLY)
    made.rootfs_path, made.fsuid, made.fsgid, made.user_namespace = str(tmp_path), 1000, 1001, True
    made.standalone = made.host = False
    made.layout = Layout("/usr/bin", "/usr/lib64", "", False)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def private_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setattr(journal, "runtime_directory", lambda *_: str(directory))
    return directory


def plan(tmp_path: Any) -> Plan:
    path = tmp_path / "libx.so.1.0"
    path.write_bytes(b"x")
    st = path.stat()
    same = Identity(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)
    ops = (
        Tmpfs("/proc/driver", ("nvidia",), (("nvidia/params", b"p"),)),
        BindFile("/libx.so.1.0", "/usr/lib64/libx.so.1.0", same),
        Symlink("libx.so.1.0", "/usr/lib64/libx.so.1", "/usr/lib64/libx.so.1.0"),
        UpdateLoaderCache((LoaderEntry("libx.so.1", "/usr/lib64/libx.so.1", "x86_64"),)),
    )
    root = str(tmp_path)
    return Plan(root, root, root, "test", (), ops)


def test_a_changed_file_is_noticed_before_anything_is_done(tmp_path: Any, target: Any) -> None:
    made = plan(tmp_path)
    (tmp_path / "libx.so.1.0").write_bytes(b"other")
    kernel = RecordingKernel()
    with pytest.raises(SourceChanged, match="changed since it was found"):
        apply_plan(kernel, made, target)
    (tmp_path / "libx.so.1.0").unlink()
    with pytest.raises(SourceChanged, match="no such file"):
        apply_plan(kernel, made, target)
    assert kernel.programs == []


@pytest.mark.parametrize(
    ("report", "kind", "text"),
    [
        (ApplyReport(21, 4, 0, 0, "open target", "/usr/x", ()), MountError, "open target: /usr/x: is a directory"),
        (ApplyReport(28, 6, 0, 0, "write loader cache", "/etc/x", ()), LoaderCacheError, "ldcache error: write"),
        (ApplyReport(71, 2, 0, 0, "x", "", (), lib.NVC_FAILED_PROGRAM), InternalError, "internal error: x"),
        (
            ApplyReport(22, 0, 0, 0, "x", "/y", (), lib.NVC_FAILED_REPAIR),
            ContainerError,
            "x: /y: invalid argument; remove what is mounted there",
        ),
        (
            ApplyReport(71, 4, 0, 0, "decode operation", "/y", (), lib.NVC_FAILED_OPERATION),
            MountError,
            "mount error: decode operation: /y",
        ),
    ],
)
def test_a_failure_names_step_path_and_cause(
    tmp_path: Any, target: Any, private_run: Any, report: ApplyReport, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        apply_plan(RecordingKernel(report), plan(tmp_path), target)
    assert list(private_run.iterdir()) == []


def test_a_failure_that_could_not_be_undone_keeps_the_journal(
    tmp_path: Any, target: Any, private_run: Any
) -> None:
    report = ApplyReport(5, 4, 0, 2, "mount operation failed", "/x", ())
    with pytest.raises(MountError):
        apply_plan(RecordingKernel(report), plan(tmp_path), target)
    assert len(list(private_run.iterdir())) == 1


@pytest.mark.parametrize(
    "answer",
    [OSError(110, "Connection timed out"), ApplyReport(5, 4, 0, 2, "mount operation failed", "/x", ())],
)
def test_without_a_journal_nothing_is_said_to_be_undone(
    tmp_path: Any, target: Any, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(journal, "runtime_directory", lambda *_: "")
    kernel = RecordingKernel(answer)
    with pytest.raises(NvcError) as raised:
        apply_plan(kernel, plan(tmp_path), target)
    assert "no journal could be kept: create the container again" in raised.value.hint
    assert len(kernel.programs) == 1


def test_a_younger_rootfs_with_the_same_numbers_is_another(
    tmp_path: Any, target: Any, private_run: Any
) -> None:
    """A new overlay gets device and inode of the last one: what was begun there is not undone here."""

    class Older(RecordingKernel):
        def birth_time(self, fd: int) -> int:
            return super().birth_time(fd) - 1

    (private_run / target.key(Older())).write_bytes(b"Fusr/x\0\0")
    kernel = RecordingKernel()
    apply_plan(kernel, plan(tmp_path), target)
    assert not kernel.programs[0].startswith(UNDO)
    assert [path.name for path in private_run.iterdir()] == [target.key(Older())]


def test_a_service_that_has_gone_is_left_out(tmp_path: Any, target: Any) -> None:
    made = plan(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("/")  # by now: what was found was a directory
    extra = (
        BindSocket("/gone", "/gone"),
        BindSocket("/file", "/file"),
        BindSocket("/link", "/link", is_directory=True),
    )
    outcome = apply_plan(RecordingKernel(), made.replace(ops=made.ops + extra), target)
    assert len(outcome.warnings) == 3


def test_other_kinds_are_refused(tmp_path: Any, target: Any) -> None:
    made = plan(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    for source, directory in (("/file", True), ("/link", False)):
        with pytest.raises(MountError, match="not the kind of file that was found"):
            apply_plan(RecordingKernel(), made.replace(ops=(BindProc(source, "/x", directory),)), target)

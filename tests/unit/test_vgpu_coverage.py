"""What `vgpu check` says where a tenant keeps it from seeing all."""

from __future__ import annotations

import os
import subprocess

import pytest

from nvc.base.errors import MountError
from nvc.kernel import LinuxKernel
from nvc.slices.admin import check, coverage
from nvc.slices.store.status import SliceStatus


def test_more_mappings_than_are_read_are_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind them there may be a copy of the driver's library."""
    kernel = LinuxKernel()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline()
        whole = check.check_process(kernel, process.pid)
        monkeypatch.setattr(check, "MAPS_LIMIT", 1)
        part = check.check_process(kernel, process.pid)
        process.communicate()
    assert (whole.uncovered, whole.status) == ((), check.IDLE)
    assert part.uncovered == ((f"/proc/{process.pid}/maps", "too long to be read to its end"),)
    assert part.status == check.AROUND_IT and not coverage.Survey((part,)).covered


def test_a_slice_with_too_many_files_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be looked through is named; processes and other slices are looked at all the same."""

    def found(kernel: LinuxKernel, root: int, libs_dir: str) -> tuple[str, ...]:
        if libs_dir == "/many":
            raise MountError("read directory of the image", "/many", "more than 65536 names")
        return ("/copy",)

    monkeypatch.setattr(coverage, "check_files", found)
    tenants = []
    for name, libs_dir in (("one", "/many"), ("two", "/few")):
        tenant = SliceStatus.__new__(SliceStatus)
        entry = type("Entry", (), {"libs_dir": libs_dir})()
        for field, value in {"name": name, "entry": entry, "pids": (os.getpid(),)}.items():
            object.__setattr__(tenant, field, value)
        tenants.append(tenant)
    survey = coverage.survey(LinuxKernel(), tuple(tenants), ())
    assert survey.files == ("one: /many: more than 65536 names", "two: /copy")
    assert [report.pid for report in survey.reports] == [os.getpid()]

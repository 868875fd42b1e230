"""What `vgpu check` says where a tenant keeps it from seeing all."""

from __future__ import annotations

import subprocess

import pytest

from nvc.kernel import LinuxKernel
from nvc.slices.admin import check, coverage


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

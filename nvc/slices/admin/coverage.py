"""Checks whole slices: their processes, and the libraries that these could load."""

from __future__ import annotations

import os
from typing import Any

from nvc.base.errors import ContainerError, MountError
from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.kernel.apart import apart
from nvc.kernel.processes import is_over, open_root
from nvc.slices.admin.check import IDLE, CheckReport, check_files, check_process
from nvc.slices.store.status import SliceStatus, find


class Survey(Value):
    """The results for processes and slices."""

    reports: tuple[CheckReport, ...]
    files: tuple[str, ...] = ()  # not covered, should a program load it

    @property
    def covered(self) -> bool:
        return not self.files and not any(report.uncovered for report in self.reports)

    def text(self) -> str:
        """For people."""
        lines = []
        for report in self.reports:
            why = " (neither libcuda nor libnvidia-ml)" if report.status == IDLE else ""
            lines.append(f"{report.pid} {report.name}: {report.status}{why}")
            lines += [f"  shim         {path}" for path in report.shims]
            lines += [f"  not covered  {path}: {cause}" for path, cause in report.uncovered]
        lines += [f"not covered, should a program load it: {path}" for path in self.files]
        clean = ("".join(c if c.isprintable() else "?" for c in line) for line in lines)
        return "".join(f"{line}\n" for line in clean)

    def document(self) -> dict[str, Any]:
        return {
            "covered": self.covered,
            "processes": [
                {
                    "pid": report.pid,
                    "name": report.name,
                    "status": report.status,
                    "shims": list(report.shims),
                    "uncovered": [{"path": path, "cause": cause} for path, cause in report.uncovered],
                }
                for report in self.reports
            ],
            "files": list(self.files),
        }


def survey(kernel: Kernel, everybody: tuple[SliceStatus, ...], names: tuple[str, ...]) -> Survey:
    """Check the processes and slices that `names` mean, without names every slice that runs.

    Raises InputError for an unknown name, ContainerError for a process that cannot be examined.
    """
    wanted = [int(name) for name in names if _is_process(name)]
    chosen = [find(everybody, name) for name in names if not _is_process(name)]
    if not names:
        chosen = [tenant for tenant in everybody if tenant.alive]
    reports = [check_process(kernel, pid) for pid in wanted]
    files: list[str] = []
    for tenant in chosen:
        files += _files(kernel, tenant)
        for pid in tenant.pids:
            try:
                reports.append(check_process(kernel, pid))
            except ContainerError:
                if not is_over(pid):
                    raise
    return Survey(tuple({report.pid: report for report in reports}.values()), tuple(files))


def _is_process(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10 and os.path.exists(f"/proc/{name}")


def _files(kernel: Kernel, tenant: SliceStatus) -> list[str]:
    for pid in tenant.pids:
        try:
            root = open_root(pid)
        except (TimeoutError, FileNotFoundError, ProcessLookupError):
            continue  # who does not answer has a report that says so
        try:
            (found,) = apart(lambda: [check_files(kernel, root, tenant.entry.libs_dir)])  # noqa: B023
        except TimeoutError as error:
            found = (f"{error.filename}: {error.strerror}",)
        except MountError as error:  # by what a tenant has put there; others are still to be looked at
            found = (f"{error.path}: {error.cause}",)
        finally:
            os.close(root)
        return [f"{tenant.name}: {path}" for path in found]
    return []

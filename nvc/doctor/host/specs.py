"""CDI specifications: sound, of this host as it is now, and each device in one file only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, aside, first
from nvc.doctor.context import Context
from nvc.frontends.cdi.stamp import parts_of, staleness, stamp_of_document
from nvc.frontends.cdi.store import SpecFile, read_directory

#: Kinds that are about NVIDIA's devices; other vendors' files are only read for their names.
_VENDORS = ("nvidia.com/", "k8s.device-plugin.nvidia.com/", "management.nvidia.com/", "runtime.nvidia.com/")
_SHOWN = 6
UNITS = (
    "/etc/systemd/system/multi-user.target.wants/nvc-cdi-refresh.service",
    "/etc/systemd/system/paths.target.wants/nvc-cdi-refresh.path",
)


def _files(context: Context) -> list[SpecFile]:
    """Every specification. Raises CdiError."""
    return [file for directory in context.config.cdi_spec_dirs for file in read_directory(directory)]


def _is_nvcs(file: SpecFile) -> bool:
    return bool(file.document) and stamp_of_document(file.document) is not None


def _refresh(context: Context, file: SpecFile) -> str:
    """What makes a file anew: by nvc if it made it, else by NVIDIA's tool."""
    if file.document and not _is_nvcs(file):
        return f"nvidia-ctk cdi generate --output={file.path}"
    return f"{context.nvc_cli} cdi generate --output {file.path}"


def _sound(context: Context) -> Iterator[Fact]:
    files = _files(context)
    for file in files:
        if file.problems:
            yield Fact(path=file.path, problem=file.problems[0], aside=aside(file.path),
                       seen=first(file.problems[1:], _SHOWN))  # fmt: skip
    for directory in {os.path.dirname(file.path) for file in files}:
        if os.stat(directory).st_mode & 0o022:
            yield Fact(directory=directory)
    yield Fact(count=len(files), places=", ".join(context.config.cdi_spec_dirs))


def _stale(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        stamp = stamp_of_document(file.document) if file.document else None
        problem = staleness(stamp, context.facts) if stamp else ""
        if stamp and problem:
            yield Fact(path=file.path, problem=problem, driver=stamp.driver, root=stamp.root,
                       refresh=_refresh(context, file))  # fmt: skip


def _refreshed(context: Context) -> Iterator[Fact]:
    """A package enables the unit in any root; where systemd does not run, nothing is late."""
    wanted = [path for path in UNITS if os.path.lexists(path)]
    if wanted and os.path.isdir("/run/systemd/system") and not any(map(_is_nvcs, _files(context))):
        yield Fact(unit=wanted[0], places=", ".join(context.config.cdi_spec_dirs))


def _paths(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        if _is_nvcs(file) or str(file.document.get("kind", "")).startswith(_VENDORS):
            missing = sorted({path for path in _host_paths(file.document) if not os.path.lexists(path)})
            if missing:
                yield Fact(path=file.path, gone=missing[0], seen=first(missing[1:], _SHOWN),
                           refresh=_refresh(context, file))  # fmt: skip


def _host_paths(document: dict[str, Any]) -> Iterator[str]:
    for mount in parts_of(document, "mounts"):
        if str(mount.get("hostPath", "")).startswith("/"):
            yield mount["hostPath"]
    for node in parts_of(document, "deviceNodes"):
        yield node.get("hostPath") or node["path"]


def _hooks(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        for program in sorted({str(hook.get("path")) for hook in parts_of(file.document, "hooks")}):
            if not os.access(program, os.X_OK):
                yield Fact(path=file.path, program=program, refresh=_refresh(context, file))


def _conflicts(context: Context) -> Iterator[Fact]:
    """Engines ignore a device that two files of one directory define; of two directories, the later one wins."""
    seen: dict[str, str] = {}
    told = set()
    for file in _files(context):
        for device in file.devices():
            before = seen.setdefault(device, file.path)
            if before != file.path and (before, file.path) not in told:
                told.add((before, file.path))
                same = os.path.dirname(before) == os.path.dirname(file.path)
                yield Fact(device=device, one=before, other=file.path, same=same, aside_one=aside(before),
                           aside_other=aside(file.path))  # fmt: skip


CHECKS = (
    Check("cdi.specs", "specifications: valid, in directories that only root can write", _sound, (
        Row(FAILED, "{path}: {problem}", "problem", run=("{aside}",),
            advice="engines ignore the whole file, and call its devices unresolvable; create it again with its "
            "tool"),
        Row(FAILED, "{directory} is writable by others, and engines run as root what its files say", "directory",
            run=("chmod go-w {directory}",)),
        Row(OK, "{count} specifications in {places}"),
    )),
    Check("cdi.stale", "specifications made for another driver or other devices", _stale, (
        Row(FAILED, "{path} {problem}", seen=("made for driver {driver} in {root}",), run=("{refresh}",),
            advice="nvc-cdi-refresh.path of the package does so whenever the driver changes"),
    )),
    Check("cdi.refresh", "whether nvc-cdi-refresh works", _refreshed, (
        Row(FAILED, "nvc-cdi-refresh is enabled, but has not written a specification", seen=("{unit}",
            "no file of nvc is in {places}"), run=("systemctl restart nvc-cdi-refresh.service",
            "journalctl -u nvc-cdi-refresh -n 20"),
            advice="it fails if the driver is not ready within a minute, or has no GPU: nvc-cli doctor driver"),
    )),
    Check("cdi.paths", "files and device nodes that specifications name", _paths, (
        Row(FAILED, "{path} names {gone}, which does not exist: its containers do not start", run=("{refresh}",)),
    )),
    Check("cdi.hooks", "programs that specifications name", _hooks, (
        Row(FAILED, "{path} calls {program}, which is not a program on this host", run=("{refresh}",),
            advice="reinstall the tool that wrote the file, or write it with nvc"),
    )),
    Check("cdi.conflicts", "devices that two files define", _conflicts, (
        Row(FAILED, "{device} is in {one} and in {other}: engines ignore a device that two files define", "same",
            run=("{aside_other}",), advice="keep the file of the tool that you use"),
        Row(WARNING, "{one} and {other} define the same devices, such as {device}: the later directory wins",
            run=("{aside_one}",)),
    )),
)  # fmt: skip

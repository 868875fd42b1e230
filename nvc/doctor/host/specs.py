"""CDI specifications: sound, of this host as it is now, and each device in one file only."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvc.doctor import FAILED, WARNING, Check, Fact, Row, aside, first
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


def _refresh(context: Context, file: SpecFile) -> str:
    """What makes a file anew: by nvc if it made it, else by NVIDIA's tool."""
    if stamp_of_document(file.document) is None:
        return f"nvidia-ctk cdi generate --output={file.path}"
    return f"{context.nvc_cli} cdi generate --output {file.path}"


def _sound(context: Context) -> Iterator[Fact]:
    files = _files(context)
    for file in files:
        if file.problems:
            yield Fact(path=file.path, problem=file.problems[0], run=[aside(file.path)],
                       seen=first(file.problems[1:], _SHOWN))  # fmt: skip
    for directory in {os.path.dirname(file.path) for file in files}:
        if os.stat(directory).st_mode & 0o022:
            yield Fact(directory=directory)


def _stale(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        stamp = stamp_of_document(file.document)
        problem = staleness(stamp, context.facts) if stamp else ""
        if problem:
            yield Fact(path=file.path, problem=problem, run=[_refresh(context, file)])


def _refreshed(context: Context) -> Iterator[Fact]:
    """A package enables the unit in any root; where systemd does not run, nothing is late."""
    wanted = [path for path in UNITS if os.path.lexists(path)]
    if wanted and os.path.isdir("/run/systemd/system"):
        if not any(stamp_of_document(file.document) for file in _files(context)):
            yield Fact(seen=wanted)


def _paths(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        paths = [mount["hostPath"] for mount in parts_of(file.document, "mounts")]
        paths += [node.get("hostPath") or node["path"] for node in parts_of(file.document, "deviceNodes")]
        missing = sorted({path for path in paths if path.startswith("/") and not os.path.lexists(path)})
        if missing and str(file.document["kind"]).startswith(_VENDORS):
            yield Fact(path=file.path, gone=missing[0], seen=first(missing[1:], _SHOWN),
                       run=[_refresh(context, file)])  # fmt: skip


def _hooks(context: Context) -> Iterator[Fact]:
    for file in _files(context):
        for program in sorted({hook["path"] for hook in parts_of(file.document, "hooks")}):
            if not os.access(program, os.X_OK):
                yield Fact(path=file.path, program=program, run=[_refresh(context, file)])


def _conflicts(context: Context) -> Iterator[Fact]:
    """Engines ignore a device that two files of one directory define; of two directories, the later one wins."""
    seen: dict[str, str] = {}
    pairs: dict[tuple[str, str], str] = {}
    for file in _files(context):
        for device in file.devices():
            pairs.setdefault((seen.setdefault(device, file.path), file.path), device)
    for (one, other), device in pairs.items():
        if one != other:
            same = os.path.dirname(one) == os.path.dirname(other)
            yield Fact(device=device, one=one, other=other, same=same, run=[aside(other if same else one)])


CHECKS = (
    Check("cdi.specs", "specifications: valid, in directories that only root can write", _sound, (
        Row(FAILED, "{path}: {problem}", "problem",
            advice="engines ignore the whole file, and call its devices unresolvable; create it again with its "
            "tool"),
        Row(FAILED, "{directory} is writable by others, and engines run as root what its files say",
            run=("chmod go-w {directory}",)),
    )),
    Check("cdi.stale", "specifications made for another driver or other devices", _stale, (
        Row(FAILED, "{path} {problem}",
            advice="nvc-cdi-refresh.path of the package does so whenever the driver changes"),
    )),
    Check("cdi.refresh", "whether nvc-cdi-refresh works", _refreshed, (
        Row(FAILED, "nvc-cdi-refresh is enabled, but has not written a specification",
            run=("systemctl restart nvc-cdi-refresh.service", "journalctl -u nvc-cdi-refresh -n 20"),
            advice="it fails if the driver is not ready within a minute, or has no GPU: nvc-cli doctor driver"),
    )),
    Check("cdi.paths", "files and device nodes that specifications name", _paths, (
        Row(FAILED, "{path} names {gone}, which does not exist: its containers do not start"),
    )),
    Check("cdi.hooks", "programs that specifications name", _hooks, (
        Row(FAILED, "{path} calls {program}, which is not a program on this host",
            advice="reinstall the tool that wrote the file, or write it with nvc"),
    )),
    Check("cdi.conflicts", "devices that two files define", _conflicts, (
        Row(FAILED, "{device} is in {one} and in {other}: engines ignore a device that two files define", "same",
            advice="keep the file of the tool that you use"),
        Row(WARNING, "{one} and {other} define the same devices, such as {device}: the later directory wins"),
    )),
)  # fmt: skip

"""CDI specifications: sound, of this host as it is now, and each device in one file only."""

from __future__ import annotations

import os

from nvc.cdi.stamp import staleness, stamp_of_document
from nvc.cdi.store import CdiError, read_directory
from nvc.doctor import AS_ROOT, Check, aside, failed, ok, unknown, warning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from nvc.cdi.store import SpecFile
    from nvc.doctor import Finding
    from nvc.doctor.context import Context

#: Kinds that are about NVIDIA's devices; other vendors' files are only read for their names.
_VENDORS = ("nvidia.com/", "k8s.device-plugin.nvidia.com/", "management.nvidia.com/", "runtime.nvidia.com/")
_SHOWN = 6
UNITS = (
    "/etc/systemd/system/multi-user.target.wants/nvc-cdi-refresh.service",
    "/etc/systemd/system/paths.target.wants/nvc-cdi-refresh.path",
)


def _files(context: Context) -> list[tuple[str, SpecFile]]:
    """Every specification with its directory."""
    found = []
    for directory in context.config.cdi_spec_dirs:
        found += [(directory, file) for file in read_directory(directory)]
    return found


def _ours(document: dict[str, Any]) -> bool:
    return str(document.get("kind", "")).startswith(_VENDORS) or stamp_of_document(document) is not None


def _is_nvcs(file: SpecFile) -> bool:
    return bool(file.document) and stamp_of_document(file.document) is not None


def _refresh(context: Context, file: SpecFile) -> tuple[str, ...]:
    """What makes a file anew: by nvc if it made it, else by NVIDIA's tool."""
    if file.document and stamp_of_document(file.document) is None:
        return (f"nvidia-ctk cdi generate --output={file.path}",)
    return (f"{context.nvc_cli} cdi generate --output {file.path}",)


def sound(context: Context) -> Iterator[Finding]:
    """Whether engines can read each file."""
    count = 0
    for directory in context.config.cdi_spec_dirs:
        try:
            files = read_directory(directory)
        except CdiError as error:
            yield unknown(f"{directory} cannot be read: {error.cause}", advice=AS_ROOT)
            continue
        for file in files:
            count += 1
            if file.problems:
                yield failed(
                    f"{file.path}: {file.problems[0]}",
                    *file.problems[1:_SHOWN],
                    commands=_refresh(context, file) if _is_nvcs(file) else (aside(file.path),),
                    advice="engines ignore the whole file, and call its devices unresolvable; "
                    "create it again with its tool",
                )
        if files and os.stat(directory).st_mode & 0o022:
            yield failed(
                f"{directory} is writable by others, and engines run as root what its files say",
                commands=(f"chmod go-w {directory}",),
            )
    yield ok(f"{count} specifications in {', '.join(context.config.cdi_spec_dirs)}")


def stale(context: Context) -> Iterator[Finding]:
    """Whether a file was made for the driver and the devices of now."""
    for _, file in _files(context):
        stamp = stamp_of_document(file.document) if file.document else None
        if stamp is None:
            continue
        problem = staleness(stamp, context.facts)
        if problem:
            yield failed(
                f"{file.path} {problem}",
                f"made for driver {stamp.driver} in {stamp.root}",
                commands=_refresh(context, file),
                advice="nvc-cdi-refresh.path of the package does so whenever the driver changes",
            )


def refreshed(context: Context) -> Iterator[Finding]:
    """Whether the unit that writes a specification at boot has written one."""
    wanted = [path for path in UNITS if os.path.lexists(path)]
    if not wanted:
        yield ok("nvc-cdi-refresh is not enabled here")
        return
    if not os.path.isdir("/run/systemd/system"):
        yield ok("nvc-cdi-refresh is enabled, but systemd does not run")
        return
    if any(file.document and stamp_of_document(file.document) for _, file in _files(context)):
        return
    yield failed(
        "nvc-cdi-refresh is enabled, but has not written a specification",
        *wanted[:1],
        f"no file of nvc is in {', '.join(context.config.cdi_spec_dirs)}",
        commands=("systemctl restart nvc-cdi-refresh.service", "journalctl -u nvc-cdi-refresh -n 20"),
        advice="it fails if the driver is not ready within a minute, or has no GPU: nvc-cli doctor driver",
    )  # fmt: skip


def paths(context: Context) -> Iterator[Finding]:
    """Whether all that a file names is there."""
    for _, file in _files(context):
        if not file.document or not _ours(file.document):
            continue
        missing = sorted({path for path in _host_paths(file.document) if not os.path.lexists(path)})
        if missing:
            yield failed(
                f"{file.path} names {missing[0]}, which does not exist: its containers do not start",
                *missing[1:_SHOWN],
                *((f"and {len(missing) - _SHOWN} more",) if len(missing) > _SHOWN else ()),
                commands=_refresh(context, file),
            )


def hooks(context: Context) -> Iterator[Finding]:
    """Whether the programs are there that a file wants to be run."""
    for _, file in _files(context):
        programs = {str(hook.get("path")) for hook in _parts(file.document, "hooks")}
        for program in sorted(programs):
            if not os.access(program, os.X_OK):
                yield failed(
                    f"{file.path} calls {program}, which is not a program on this host",
                    commands=_refresh(context, file),
                    advice="reinstall the tool that wrote the file, or write it with nvc",
                )


def conflicts(context: Context) -> Iterator[Finding]:
    """Whether a device is in two files of one directory: engines then know neither."""
    seen: dict[tuple[str, str], str] = {}
    for directory, file in _files(context):
        for device in file.devices() if file.document else ():
            first = seen.setdefault((directory, device), file.path)
            if first != file.path:
                yield failed(
                    f"{device} is in {first} and in {file.path}: engines ignore a device that two files define",
                    commands=(aside(file.path),),
                    advice="keep the file of the tool that you use",
                )
                break
    names = {device for (directory, device) in seen}
    for device in sorted(names):
        where = [path for (_, name), path in seen.items() if name == device]
        if len(where) > 1:
            yield warning(
                f"{where[0]} and {where[1]} define the same devices, such as {device}: the later directory wins",
                commands=(aside(where[0]),),
            )
            break


def _parts(document: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    for owner in (document, *(document.get("devices") or ())):
        yield from (owner.get("containerEdits") or {}).get(name) or ()


def _host_paths(document: dict[str, Any]) -> Iterator[str]:
    for mount in _parts(document, "mounts"):
        if str(mount.get("hostPath", "")).startswith("/"):
            yield mount["hostPath"]
    for node in _parts(document, "deviceNodes"):
        yield node.get("hostPath") or node["path"]


CHECKS = (
    Check("cdi.specs", "specifications: valid, in directories that only root can write", sound),
    Check("cdi.stale", "specifications made for another driver or other devices", stale),
    Check("cdi.refresh", "whether nvc-cdi-refresh works", refreshed),
    Check("cdi.paths", "files and device nodes that specifications name", paths),
    Check("cdi.hooks", "programs that specifications name", hooks),
    Check("cdi.conflicts", "devices that two files define", conflicts),
)

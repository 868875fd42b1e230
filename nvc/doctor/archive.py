"""The archive for whoever is asked for help: what doctor found and what it was found in, without secrets.

Files of others are never copied: of an engine's configuration only runtimes and hooks are in it, of a specification
no values of variables, of a container nothing but what the checks say.
"""

from __future__ import annotations

import glob
import io
import json
import os
import platform
import stat
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import nvc
from nvc.base.errors import NvcError
from nvc.base.files import lines_of
from nvc.discovery.driver.places import DIRECTORIES
from nvc.doctor import Result, document
from nvc.doctor.context import Context, read_text
from nvc.doctor.host.driver import kernel_log
from nvc.doctor.mask import GONE, Mask
from nvc.frontends.cdi.store import read_directory
from nvc.frontends.engines.registered import ENGINES, registered
from nvc.plan.listing import info_document
from nvc.slices.show.document import document as slice_document

ROOT = "nvc-doctor"
_LINES = 2000  # of the kernel log, the last ones


class ArchiveError(NvcError, code="NVC-2202", stage="archive"):
    """The archive cannot be written."""


def write_archive(
    context: Context, results: tuple[Result, ...], text: str, path: str, names: bool = False
) -> int:
    """Write the archive to `path`, which must not be there yet, mode 0600; the number of its files is returned.

    `text` is the report for people. With `names`, names of host, users and devices stay. Raises ArchiveError.
    """
    mask = Mask(not names)
    parts = {
        f"{ROOT}/{name}": mask(content if isinstance(content, str) else _json(content)).encode("utf-8", "replace")
        for name, content in _parts(context, results, text)
    }
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except FileExistsError:
        raise ArchiveError("write archive", path, "already exists", "choose another name") from None
    except OSError as error:
        raise ArchiveError.of("write archive", path, error) from None
    try:
        with open(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, data in parts.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o644
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        os.unlink(path)
        raise ArchiveError.of("write archive", path, error) from None
    return len(parts)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _parts(context: Context, results: tuple[Result, ...], text: str) -> Iterator[tuple[str, Any]]:
    """Names of files, and what is in them: a text, or what becomes JSON."""
    facts, error, _ = context.asked
    yield "report.txt", text
    yield "report.json", document(results)
    yield "info.json", {"error": str(error)} if facts is None else info_document(facts)
    yield "configuration.json", _configuration(context)
    yield "engines.json", {name: asdict(registered(name)) for name in ENGINES}
    yield "versions.json", _versions(context)
    yield "driver-files.txt", "".join(_driver_files(context))
    yield "slices.json", {"slices": _slices(context)}
    yield "kernel-log.txt", _kernel_log()
    for directory in context.config.cdi_spec_dirs:
        try:
            files = read_directory(directory)
        except NvcError as error:
            yield f"cdi{directory}/unreadable.txt", f"{error}\n"
            continue
        for file in files:
            name = file.path if file.path.endswith(".json") else f"{file.path}.json"  # of a YAML file
            yield f"cdi{name}", _without_values(file.document) if file.document else {"problems": file.problems}


def _configuration(context: Context) -> dict[str, Any]:
    """The settings as they were understood: a file has comments, and variables of no meaning here."""
    if context.config_error is not None:
        return {"error": str(context.config_error)}
    settings = dict(zip(context.config._fields, context.config))
    del settings["identity"]
    return settings


def _versions(context: Context) -> dict[str, Any]:
    return {
        "nvc": nvc.__version__,
        "python": sys.version,
        "kernel": " ".join((platform.system(), platform.release(), platform.machine())),
        "distribution": [line for line in lines_of(read_text("/etc/os-release")) if "ID=" in line],
        "commandLine": [word for word in read_text("/proc/cmdline").split() if "nvidia" in word],
        "programs": context.programs,
        "uid": os.geteuid(),
    }


def _driver_files(context: Context) -> Iterator[str]:
    for place in (*DIRECTORIES.get(platform.machine(), ()), "/dev", "/dev/nvidia-caps", "/usr/bin"):
        for name in ("*nvidia*", "libcuda*"):
            for path in sorted(glob.glob(f"{glob.escape(context.path(place))}/{name}")):
                it = os.lstat(path)
                size = f"{os.major(it.st_rdev)}:{os.minor(it.st_rdev)}" if it.st_rdev else it.st_size
                target = f" -> {os.readlink(path)}" if stat.S_ISLNK(it.st_mode) else ""
                yield f"{stat.filemode(it.st_mode)} {it.st_uid}:{it.st_gid} {path} {size}{target}\n"


def _slices(context: Context) -> list[dict[str, Any]]:
    try:
        return [slice_document(one) for one in context.slices[0]]
    except (OSError, NvcError):
        return []


def _kernel_log() -> str:
    try:
        return "".join(f"{line}\n" for line in kernel_log()[-_LINES:])
    except OSError as error:
        return f"cannot be read: {error.strerror}\n"


def _without_values(value: Any) -> Any:
    """A specification in which variables have names only."""
    if isinstance(value, dict):
        return {
            key: [f"{str(item).partition('=')[0]}={GONE}" for item in inner]
            if key == "env" and isinstance(inner, list)
            else _without_values(inner)
            for key, inner in value.items()
        }
    return [_without_values(item) for item in value] if isinstance(value, list) else value

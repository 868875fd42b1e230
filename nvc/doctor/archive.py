"""The archive for whoever is asked for help: what doctor found and what it was found in, without secrets.

Files of others are never copied: of an engine's configuration only runtimes and hooks are in it, of a specification
no values of variables, of a container nothing but what the checks say.
"""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import tarfile

import nvc
from nvc.cdi.store import read_directory
from nvc.config import PATHS
from nvc.discovery.places import DIRECTORIES
from nvc.doctor import document
from nvc.doctor.context import read_text
from nvc.doctor.driver import kernel_log
from nvc.doctor.mask import GONE, Mask
from nvc.doctor.registrations import kind_of
from nvc.engines import ENGINES
from nvc.engines.registered import registered
from nvc.errors import NvcError
from nvc.listing import info_document
from nvc.slices.build import shim
from nvc.slices.store.status import document as slice_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.doctor import Result
    from nvc.doctor.context import Context

ROOT = "nvc-doctor"
_LINES = 2000  # of the kernel log, the last ones
_FILES = 2000
_PROC = (*(f"/proc/driver/nvidia/{name}" for name in ("version", "params", "registry")), "/proc/devices")


class ArchiveError(NvcError, code="NVC-2202", stage="archive"):
    """The archive cannot be written."""


def write_archive(
    context: Context, results: tuple[Result, ...], text: str, path: str, names: bool = False
) -> list[str]:
    """Write the archive to `path`, which must not be there yet, mode 0600; the names of its files are returned.

    `text` is the report for people. With `names`, names of host, users and devices stay. Raises ArchiveError.
    """
    mask = Mask(not names)
    parts = {
        f"{ROOT}/{name}": mask(content).encode("utf-8", "replace")
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
    return list(parts)


def _parts(context: Context, results: tuple[Result, ...], text: str) -> list[tuple[str, str]]:
    facts, error, _ = context.asked
    info: dict[str, Any] = info_document(facts) if facts is not None else {"error": str(error)}
    parts = [
        ("report.txt", text),
        ("report.json", _json(document(results))),
        ("info.json", _json(info)),
        ("configuration.json", _json(_configuration(context))),
        ("engines.json", _json(_engines())),
        ("versions.json", _json(_versions(context))),
        ("driver-files.txt", _driver_files(context)),
        ("slices.json", _json({"slices": [slice_document(one) for one in _tenants(context)]})),
        ("kernel-log.txt", _kernel_log()),
        ("cgroups.txt", _lines_of("/proc/self/mountinfo", " - cgroup")),
        ("proc.txt", _proc(context)),
    ]
    return parts + _specifications(context)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _configuration(context: Context) -> dict[str, Any]:
    """The settings as they were understood: a file has comments, and variables of no meaning here."""
    if context.config_error is not None:
        return {"error": str(context.config_error)}
    settings = dict(zip(context.config._fields, context.config))
    del settings["identity"]
    return {"files": [path for path in PATHS if os.path.exists(path)], **settings}


def _engines() -> dict[str, Any]:
    found = {}
    for name in ENGINES:
        engine = registered(name)
        found[name] = {
            "default": engine.default or None,
            "runtimes": [
                {
                    "file": one.file,
                    "name": one.name,
                    "programs": one.programs,
                    "of": kind_of(one.programs[0]),
                }
                for one in engine.runtimes
            ],
            "hookDirectories": engine.hook_directories,
            "problems": [str(problem) for problem in engine.problems],
        }
    return found


def _versions(context: Context) -> dict[str, Any]:
    release = dict(
        line.partition("=")[::2]
        for line in read_text("/etc/os-release", 1 << 16).splitlines()
        if "=" in line
    )
    uname = os.uname()
    try:
        shim_directory = shim.installed().directory
    except NvcError as error:
        shim_directory = str(error)
    return {
        "nvc": nvc.__version__,
        "python": sys.version,
        "kernel": f"{uname.sysname} {uname.release} {uname.machine}",
        "distribution": {name: release.get(name, "").strip('"') for name in ("ID", "VERSION_ID")},
        "commandLine": _lines_of("/proc/cmdline", "nvidia").strip(),
        "shim": shim_directory,
        "programs": context.programs,
        "uid": os.geteuid(),
    }


def _driver_files(context: Context) -> str:
    lines = []
    places = [*DIRECTORIES.get(os.uname().machine, ()), "/dev", "/dev/nvidia-caps", "/dev/char", "/usr/bin"]
    for place in dict.fromkeys(places):
        directory = context.path(place)
        try:
            names = sorted(name for name in os.listdir(directory) if "nvidia" in name or "libcuda" in name)
        except OSError:
            continue
        for name in names[:_FILES]:
            path = f"{directory}/{name}"
            try:
                status = os.lstat(path)
            except OSError:
                continue
            more = f"{status.st_size}"
            if stat.S_ISCHR(status.st_mode):
                more = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            elif stat.S_ISLNK(status.st_mode):
                more = f"-> {os.readlink(path)}"
            lines.append(f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid} {path} {more}\n")
    return "".join(lines)


def _tenants(context: Context) -> tuple[Any, ...]:
    try:
        return context.slices()[0]
    except (OSError, NvcError):
        return ()


def _kernel_log() -> str:
    try:
        return "".join(f"{line}\n" for line in kernel_log()[-_LINES:])
    except OSError as error:
        return f"cannot be read: {error.strerror}\n"


def _lines_of(path: str, word: str) -> str:
    """The lines, or the words of a single line, that have `word` in them."""
    lines = read_text(path, 1 << 20).splitlines()
    parts = lines[0].split() if len(lines) == 1 else lines
    return "".join(f"{part}\n" for part in parts if word in part)


def _proc(context: Context) -> str:
    text = ""
    for path in _PROC:
        try:
            content = context.host.system.read_optional(path, 1 << 16)
        except Exception:  # without a driver root there is nothing to read
            content = None
        if content is not None:
            text += f"== {path}\n{content.decode('utf-8', 'replace')}\n"
    return text


def _specifications(context: Context) -> list[tuple[str, str]]:
    found = []
    for directory in context.config.cdi_spec_dirs:
        try:
            files = read_directory(directory)
        except NvcError as error:
            found.append((f"cdi{directory}/unreadable.txt", f"{error}\n"))
            continue
        for file in files:
            value = _without_values(file.document) if file.document else {"problems": file.problems}
            name = file.path if file.path.endswith(".json") else f"{file.path}.json"  # of a YAML file
            found.append((f"cdi{name}", _json(value)))
    return found


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

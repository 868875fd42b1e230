"""Specification files: reading what any tool may have written, and writing ours so that none is seen half done."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from typing import Any

from nvc.base.errors import InputError, NvcError
from nvc.base.fastjson import JsonError, parse
from nvc.base.files import read_up_to, replace_file
from nvc.base.rundir import is_ours_alone
from nvc.base.value import Value
from nvc.base.yamlread import YamlError, parse_yaml
from nvc.base.yamlwrite import yaml_text
from nvc.frontends.cdi.validate import problems

#: Where engines look, least important first.
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
SUFFIXES = (".json", ".yaml")
#: The largest file that is read, bytes; a document for 64 GPUs has 300 KiB.
LIMIT = 8 << 20
_FILES_MAX = 4096
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class CdiError(
    NvcError, code="NVC-2001", stage="cdi", doctor="cdi",
    hint="correct or remove it; `nvc-cli cdi generate` writes that of this host's GPUs",
):  # fmt: skip
    """A specification cannot be read, made or written."""


class SpecFile(Value):
    """One file of a specification directory. `document` is {} when there are problems."""

    path: str
    document: dict[str, Any]
    problems: tuple[str, ...]

    def devices(self) -> list[str]:
        """The qualified names of its devices, in its order."""
        kind = self.document.get("kind", "")
        return [f"{kind}={device['name']}" for device in self.document.get("devices", ())]


def parse_document(data: bytes, path: str) -> Any:
    """The value of a JSON or YAML file, by its content: JSON is also found under a name that ends in .yaml.

    Raises CdiError.
    """
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            return parse(data, LIMIT)
        if len(data) > LIMIT:
            raise CdiError("read specification", path, f"larger than {LIMIT} bytes")
        return parse_yaml(data.decode("utf-8"))
    except JsonError as error:
        raise CdiError("read specification", path, error) from None
    except YamlError as error:
        raise CdiError("read specification", path, f"not YAML that is understood: {error}") from None
    except UnicodeDecodeError as error:
        raise CdiError("read specification", path, f"not UTF-8 at byte {error.start}") from None


def read_bytes(path: str, directory: int | None = None, stdin: bool = False) -> bytes:
    """The content of a regular file, or of standard input, at most LIMIT bytes and one. Raises CdiError."""
    try:
        fd = os.dup(0) if stdin else os.open(path, _READ, dir_fd=directory)
    except OSError as error:
        raise CdiError.of("open specification", path, error) from None
    try:
        if not stdin and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CdiError("open specification", path, "not a regular file")
        return read_up_to(fd, LIMIT)
    except OSError as error:
        raise CdiError.of("read specification", path, error) from None
    finally:
        os.close(fd)


def read_spec(path: str) -> SpecFile:
    """The file at `path`; whatever is wrong with it is among its problems."""
    try:
        document = parse_document(read_bytes(path), path)
    except CdiError as error:
        return SpecFile(path, {}, (str(error.cause),))
    found = problems(document)
    return SpecFile(path, {} if found else document, tuple(found))


def read_directory(directory: str) -> list[SpecFile]:
    """Its specification files by name; [] where there is no such directory. Raises CdiError."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CdiError.of("list specifications", directory, error) from None
    wanted = [name for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    return [read_spec(f"{directory}/{name}") for name in wanted[:_FILES_MAX]]


def text_of(document: dict[str, Any], form: str) -> str:
    """The document as `json` or `yaml`."""
    if form == "yaml":
        return yaml_text(document)
    import json

    return json.dumps(document, indent=2) + "\n"


def open_directory(path: str, create: bool, private: bool) -> int:
    """A descriptor of the directory; with `private` it must be such that only root and we can change it.

    It may be reached through links: what counts is the directory itself, which is held from here on.
    Raises CdiError.
    """
    try:
        if create:
            os.makedirs(path, 0o755, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = f"make it: `mkdir -p {path}`" if error.errno == errno.ENOENT else ""
        raise CdiError.of("open specification directory", path, error, hint) from None
    status = os.fstat(fd)
    if private and not is_ours_alone(status):
        os.close(fd)
        raise CdiError(
            "open specification directory", path, "can be changed by others",
            "engines do as root what its files say: give it to root, without write access for others",
        )  # fmt: skip
    return fd


def write_in(directory: int, name: str, data: bytes, path: str) -> bool:
    """Make `name` in an open directory a file with `data`, mode 0644, at once. False if it was already so.

    What is there must be a regular file, so that no link is replaced by accident. Raises CdiError; the old file
    is then as it was.
    """
    try:
        there = os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        there = None
    except OSError as error:
        raise CdiError.of("write specification", path, error) from None
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise CdiError("write specification", path, "is there and not a regular file", "remove it")
    if there is not None and there.st_size == len(data) and stat.S_IMODE(there.st_mode) == 0o644:
        if read_bytes(name, directory) == data:
            return False
    try:
        replace_file(name, data, 0o644, directory)  # rootless engines read it too
        return True
    except OSError as error:
        raise CdiError.of("write specification", path, error) from None


def check_conflicts(fd: int, directory: str, name: str, document: dict[str, Any]) -> None:
    """Raise CdiError if another file of the open directory has a device of the same name.

    Engines would then know neither: nvidia.com/gpu=0 in two files of one directory is nobody's.
    """
    ours = {f"{document['kind']}={device['name']}" for device in document["devices"]}
    for other in read_directory(f"/proc/self/fd/{fd}"):
        twice = ours.intersection(other.devices())
        other_name = posixpath.basename(other.path)
        if twice and other_name != name:
            raise CdiError(
                "write specification", f"{directory}/{name}",
                f"{min(twice)} is also in {directory}/{other_name}",
                "engines drop a device that two files define: remove that file, or choose --vendor or --class",
            )  # fmt: skip


def split_path(path: str) -> tuple[str, str]:
    """Directory and name of an output file. Raises InputError."""
    directory, name = posixpath.split(path)
    if not name or name in (".", "..") or "\0" in path:
        raise InputError("--output", path, "want the path of a file")
    return directory or ".", name

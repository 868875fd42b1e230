"""What an OCI runtime tells a hook: the state document on standard input, and the bundle that it names.

Runtimes differ in the state (runc, crun and youki each have keys and values of their own), so of that only pid
and bundle are looked at. Of the bundle's configuration, what is looked at must be as the specification says.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import ContainerError
from nvc.base.fastjson import JsonError, parse
from nvc.base.files import closing, read_up_to
from nvc.base.types import Any
from nvc.base.value import Value

MAX_STATE = 1 << 20  # bytes
MAX_CONFIG = 16 << 20
ID_MAX = 1024  # characters
#: How a runtime and this program may be out of step.
HINT = "it is for OCI runtimes, which call it as a hook"
_PID_MAX = 1 << 22  # PID_MAX_LIMIT of the kernel


class Malformed(Exception):
    """The configuration is not what the specification says; the message names the key."""


class ContainerState(Value):
    """The state document. `pid` is 0 where the runtime gives none, and in createContainer hooks as the
    container's own namespace numbers it."""

    pid: int
    bundle: str  # absolute
    id: str = ""  # as the runtime's caller names the container; "" where it is no id


class Mount(Value):
    """One of the configuration's mounts."""

    source: str
    destination: str
    bind: bool = True  # by its type or its options; of another type, the source need not be a path


class Container(Value):
    """What nvc has to know of a bundle. Everything in it but the paths may come from an image."""

    rootfs: str  # absolute
    environment: dict[str, str]  # of two of a name, the last
    privileged: bool = False  # CAP_SYS_ADMIN is in the bounding set
    mounts: tuple[Mount, ...] = ()
    annotations: dict[str, str] = {}
    mount_label: str = ""  # of SELinux, for file systems that are made for it
    program: str = ""  # absolute, with which it starts; "" where PATH leads to it


def read_state(fd: int = 0) -> ContainerState:
    """The state document that `fd` gives until its end. Raises ContainerError."""
    step = "read container state"
    try:
        document = parse(read_up_to(fd, MAX_STATE), MAX_STATE)
    except OSError as error:
        raise ContainerError.of(step, "standard input", error, HINT) from None
    except JsonError as error:
        raise ContainerError(step, "standard input", error, HINT) from None
    if not isinstance(document, dict):
        raise ContainerError(step, "standard input", "not an object", HINT)
    bundle = document.get("bundle") or document.get("bundlePath")  # the name before 1.0.0-rc2
    if not isinstance(bundle, str) or not _is_path(bundle) or not bundle.startswith("/"):
        raise ContainerError(step, "bundle", "missing or not an absolute path", HINT)
    pid = document.get("pid", 0)
    pid = 0 if pid == -1 else pid  # gVisor's createContainer hooks: it knows none yet
    if type(pid) is not int or not 0 <= pid <= _PID_MAX:
        raise ContainerError(step, "pid", "not a process id", HINT)
    id = document.get("id")
    return ContainerState(pid, bundle, id if type(id) is str and _is_path(id) and len(id) <= ID_MAX else "")


def read_container(bundle: str) -> Container:
    """The facts of the bundle's config.json. Raises ContainerError, which names the place at fault."""
    return read_bundle(bundle)[0]


def read_bundle(bundle: str) -> tuple[Container, dict[str, Any]]:
    """The facts of the bundle's config.json, and all of it. Raises ContainerError."""
    path = f"{bundle}/config.json"
    try:
        document = parse(_read_regular(path), MAX_CONFIG)
        return container_of(document, bundle), document
    except OSError as error:
        raise ContainerError.of("read bundle", path, error) from None
    except (JsonError, Malformed) as error:
        raise ContainerError("read bundle", path, error) from None


def container_of(document: Any, bundle: str) -> Container:
    """The facts of a parsed configuration. Raises Malformed."""
    if not isinstance(document, dict):
        raise Malformed("not an object")
    if not _typed(document, "ociVersion", str, "ociVersion"):
        raise Malformed("ociVersion is missing")
    process = _required(document, "process")
    root = _required(document, "root").get("path")
    if not root:
        raise Malformed("root.path is missing")
    if not _is_path(root):
        raise Malformed("root.path is not a path")
    linux = _table(document, "linux", "linux")
    return Container(
        root if root.startswith("/") else f"{bundle}/{root}",
        _environment(process),
        _is_privileged(process.get("capabilities")),
        tuple(_mounts(document)),
        _annotations(document),
        _typed(linux, "mountLabel", str, "linux.mountLabel") or "",
        _program(process),
    )


def _required(document: dict[str, Any], name: str) -> dict[str, Any]:
    if document.get(name) is None:
        raise Malformed(f"{name} is missing")
    return _table(document, name, name)


def _typed(table: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """The value of a key, None where it is absent or null, as Go writes what is empty."""
    value = table.get(name)
    if value is not None and type(value) is not kind:
        raise Malformed(f"{where} is of the wrong type")
    return value


def _table(table: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    found: dict[str, Any] | None = _typed(table, name, dict, where)
    return found or {}


def _environment(process: dict[str, Any]) -> dict[str, str]:
    """The container's variables. An entry without `=` sets nothing, for the runtimes and for us."""
    found: dict[str, str] = {}
    for entry in _typed(process, "env", list, "process.env") or ():
        if type(entry) is not str:
            raise Malformed("process.env has an entry that is not a string")
        name, equals, value = entry.partition("=")
        if equals:
            found[name] = value
    return found


def _program(process: dict[str, Any]) -> str:
    """The path of the first program, from its arguments; what is odd there is for the runtime to refuse."""
    arguments, place = process.get("args"), process.get("cwd")
    if not isinstance(arguments, list) or not arguments or type(arguments[0]) is not str or "/" not in arguments[0]:
        return ""
    program: str = arguments[0]
    return program if program.startswith("/") or type(place) is not str else f"{place}/{program}"


def _is_privileged(capabilities: Any) -> bool:
    """Whether CAP_SYS_ADMIN can be had: by the bounding set, or the one list of specifications before
    1.0.0-rc5."""
    if isinstance(capabilities, dict):
        capabilities = capabilities.get("bounding")
    if capabilities is None:
        return False
    if type(capabilities) is not list:
        raise Malformed("process.capabilities is neither a list nor an object of lists")
    return "CAP_SYS_ADMIN" in capabilities


def _mounts(document: dict[str, Any]) -> list[Mount]:
    found = []
    for entry in _typed(document, "mounts", list, "mounts") or ():
        if type(entry) is not dict:
            raise Malformed("mounts has an entry that is not an object")
        source = _typed(entry, "source", str, "a mount's source") or ""
        destination = _typed(entry, "destination", str, "a mount's destination") or ""
        kind = _typed(entry, "type", str, "a mount's type") or ""
        options = _typed(entry, "options", list, "a mount's options") or ()
        bind = kind == "bind" or "bind" in options or "rbind" in options
        found.append(Mount(source, destination, bind))
    return found


def _annotations(document: dict[str, Any]) -> dict[str, str]:
    found = _table(document, "annotations", "annotations")
    if not all(type(value) is str for value in found.values()):
        raise Malformed("annotations has a value that is not a string")
    return found


def _is_path(text: Any) -> bool:
    """Whether `text` can be handed to the kernel."""
    if type(text) is not str or not text or "\0" in text or len(text) >= 4096:
        return False
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return False
    return True


def _read_regular(path: str) -> bytes:
    """The content of a regular file, at most one byte more than is allowed. Raises OSError, JsonError.

    Nothing else is opened: a rootless engine's bundle is its user's, and to open a device may be to use it.
    """
    with closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as seen:
        status = os.fstat(seen)
        if not stat.S_ISREG(status.st_mode):
            raise JsonError("not a regular file")
        if status.st_size > MAX_CONFIG:
            raise JsonError(f"larger than {MAX_CONFIG} bytes")
        with closing(os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            return read_up_to(fd, MAX_CONFIG)

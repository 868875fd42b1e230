"""The rules by which engines load a specification; the public JSON schema is looser than they are.

One problem anywhere makes the reference loader drop the whole file without a word, so all are listed here, each
with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from nvc.base.errors import one_line
from nvc.frontends.cdi.names import device_problem, kind_problem
from nvc.frontends.cdi.versions import KNOWN, lowest_version, order

Check: TypeAlias = Callable[[Any, str], Iterator[str]]

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("", "b", "c", "u", "p")
#: Bytes of all annotations of one object.
ANNOTATIONS_LIMIT = 256 << 10
PROBLEMS_LIMIT = 100


def problems(document: Any) -> list[str]:
    """Everything that is wrong with a parsed document; engines load it if and only if there is nothing."""
    found: list[str] = []
    for problem in _document(document):
        found.append(one_line(problem))
        if len(found) == PROBLEMS_LIMIT:
            found.append("and more")
            return found
    if not found:
        declared, needed = document["cdiVersion"], lowest_version(document)
        if order(declared) < order(needed):
            found.append(f"cdiVersion: is {declared}, what the document uses needs {needed}")
    return found


def _document(document: Any) -> Iterator[str]:
    yield from _object(document, "document", _DOCUMENT, ("cdiVersion", "kind", "devices"))
    if not isinstance(document, dict):
        return
    names: set[str] = set()
    devices = document.get("devices")
    if isinstance(devices, list):
        if not devices:
            yield "devices: is empty"
        for at, device in enumerate(devices):
            name = device.get("name") if isinstance(device, dict) else None
            if isinstance(name, str):
                if name in names:
                    yield f"devices[{at}].name: {name} occurs twice"
                names.add(name)


def _version(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) or order(value) < 0:
        yield f"{where}: {value!r} is not a version of the specification; known are {', '.join(KNOWN)}"


def _name(problem_of: Callable[[str], str]) -> Check:
    def checked(value: Any, where: str) -> Iterator[str]:
        problem = problem_of(value) if isinstance(value, str) else "is not a string"
        if problem:
            yield f"{where}: {value!r} {problem}"

    return checked


def _device_edits(value: Any, where: str) -> Iterator[str]:
    yield from _edits(value, where)
    if isinstance(value, dict) and not any(value.values()):
        yield f"{where}: changes nothing"


def _edits(value: Any, where: str) -> Iterator[str]:
    yield from _object(value, where, _EDITS, ())
    nets = value.get("netDevices") if isinstance(value, dict) else None
    if isinstance(nets, list):
        for key in ("hostInterfaceName", "name"):
            given = [str(net.get(key)) for net in nets if isinstance(net, dict)]
            if len(set(given)) != len(given):
                yield f"{where}.netDevices: a {key} occurs twice"


def _object(value: Any, where: str, members: dict[str, Check], required: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: is not an object"
        return
    prefix = "" if where == "document" else where + "."
    for key in required:
        if key not in value:
            yield f"{prefix}{key}: is missing"
    for key, member in value.items():
        if key not in members:
            yield f"{prefix}{key}: is not a field of the specification"
        elif member is not None or key in required:
            yield from members[key](member, f"{prefix}{key}")


def _list_of(check: Check) -> Check:
    def checked(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{where}: is not a list"
            return
        for at, item in enumerate(value):
            yield from check(item, f"{where}[{at}]")

    return checked


def _object_of(members: dict[str, Check], *required: str) -> Check:
    return lambda value, where: _object(value, where, members, required)


def _string(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where}: is not a string"
    elif "\0" in value:
        yield f"{where}: has a NUL"


def _filled(value: Any, where: str) -> Iterator[str]:
    yield from _string(value, where)
    if value == "":
        yield f"{where}: is empty"


def _boolean(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where}: is neither true nor false"


def _number(low: int, high: int) -> Check:
    def checked(value: Any, where: str) -> Iterator[str]:
        if type(value) is not int or not low <= value <= high:
            yield f"{where}: is not a whole number from {low} to {high}"

    return checked


def _env(value: Any, where: str) -> Iterator[str]:
    yield from _string(value, where)
    if isinstance(value, str) and value.find("=") <= 0:
        yield f"{where}: {value!r} is not NAME=VALUE"


def _one_of(*allowed: str) -> Check:
    def checked(value: Any, where: str) -> Iterator[str]:
        if value not in allowed:
            yield f"{where}: {value!r} is none of {', '.join(name for name in allowed if name)}"

    return checked


def _permissions(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str) or (value != "none" and not set(value) <= set("rwm")):
        yield f"{where}: {value!r} is not made of r, w and m"


def _annotations(value: Any, where: str) -> Iterator[str]:
    """Keys as Kubernetes has them: an optional prefix in DNS form, a slash, and a name."""
    if not isinstance(value, dict):
        yield f"{where}: is not an object"
        return
    size = 0
    for key, text in value.items():
        prefix, slash, name = key.rpartition("/")
        allowed = name.replace("_", "").replace("-", "").replace(".", "")
        if (
            (slash and not prefix)
            or not 0 < len(name) <= 63
            or not (allowed.isascii() and allowed.isalnum())
        ):
            yield f"{where}: {key!r} is not a name of an annotation"
        yield from _string(text, f"{where}.{key}")
        size += len(key) + len(text) if isinstance(text, str) else 0
    if size > ANNOTATIONS_LIMIT:
        yield f"{where}: has more than {ANNOTATIONS_LIMIT} bytes"


_INT64 = _number(-(2**63), 2**63 - 1)
_UINT32 = _number(0, 2**32 - 1)
_STRINGS = _list_of(_string)
_NODE: dict[str, Check] = {
    "path": _filled,
    "hostPath": _string,
    "type": _one_of(*DEVICE_TYPES),
    "major": _INT64,
    "minor": _INT64,
    "fileMode": _UINT32,
    "permissions": _permissions,
    "uid": _UINT32,
    "gid": _UINT32,
}
_MOUNT: dict[str, Check] = {
    "hostPath": _filled,
    "containerPath": _filled,
    "options": _STRINGS,
    "type": _string,
}
_HOOK: dict[str, Check] = {
    "hookName": _one_of(*HOOK_NAMES),
    "path": _filled,
    "args": _STRINGS,
    "env": _list_of(_env),
    "timeout": _INT64,
}
_NET: dict[str, Check] = {"hostInterfaceName": _filled, "name": _filled}
_INTEL: dict[str, Check] = {
    "closID": _string,
    "l3CacheSchema": _string,
    "memBwSchema": _string,
    "schemata": _STRINGS,
    "enableMonitoring": _boolean,
    "enableCMT": _boolean,  # up to 1.0.0
    "enableMBM": _boolean,
}
_EDITS: dict[str, Check] = {
    "env": _list_of(_env),
    "deviceNodes": _list_of(_object_of(_NODE, "path")),
    "mounts": _list_of(_object_of(_MOUNT, "hostPath", "containerPath")),
    "hooks": _list_of(_object_of(_HOOK, "hookName", "path")),
    "netDevices": _list_of(_object_of(_NET, "hostInterfaceName", "name")),
    "intelRdt": _object_of(_INTEL),
    "additionalGids": _list_of(_UINT32),
}
_DEVICE: dict[str, Check] = {
    "name": _name(device_problem),
    "annotations": _annotations,
    "containerEdits": _device_edits,
}
_DOCUMENT: dict[str, Check] = {
    "cdiVersion": _version,
    "kind": _name(kind_problem),
    "annotations": _annotations,
    "devices": _list_of(_object_of(_DEVICE, "name", "containerEdits")),
    "containerEdits": _edits,
}

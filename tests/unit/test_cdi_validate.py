"""The loader's rules: names, versions, fields, each with a document that breaks it alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from nvc.frontends.cdi.names import class_problem, device_problem
from nvc.frontends.cdi.validate import problems
from nvc.frontends.cdi.versions import KNOWN, lowest_version

EDITS: dict[str, Any] = {"env": ["A=b"]}
MINIMAL: dict[str, Any] = {
    "cdiVersion": "0.3.0",
    "kind": "vendor.com/device",
    "devices": [{"name": "one", "containerEdits": EDITS}],
}
FULL: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/device.class",
    "annotations": {"cdi.k8s.io/name": "text", "plain": ""},
    "devices": [
        {
            "name": "0",
            "annotations": {"a": "b"},
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/a", "hostPath": "/dev/b", "type": "c", "major": 1, "minor": 2, "fileMode": 438,
                     "permissions": "rw", "uid": 0, "gid": 1},
                ],
                "netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}],
            },
        }
    ],
    "containerEdits": {
        "env": ["A=", "B=c"],
        "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "none"}],
        "hooks": [{"hookName": "createContainer", "path": "/x", "args": ["x"], "env": ["A=b"], "timeout": 3}],
        "intelRdt": {"closID": "a", "memBwSchema": "", "schemata": [], "enableMonitoring": True},
        "additionalGids": [0, 4294967295],
    },
}  # fmt: skip


def changed(path: str, value: Any, base: dict[str, Any] = FULL) -> dict[str, Any]:
    """A copy of a document with one value replaced, or removed where it is `...`."""
    made = copy.deepcopy(base)
    at: Any = made
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        at = at[part]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return made


NODE = "devices.0.containerEdits.deviceNodes.0."
HOOK = "containerEdits.hooks.0."


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("cdiVersion", "0.9.0", "cdiVersion"),
        ("cdiVersion", 1, "cdiVersion"),
        ("cdiVersion", ..., "cdiVersion"),
        ("kind", "vendor", "kind"),
        ("kind", "1vendor/class", "kind"),
        ("kind", "vendor/class-", "kind"),
        ("kind", ..., "kind"),
        ("devices", [], "devices"),
        ("devices", {}, "devices"),
        ("devices", ..., "devices"),
        ("devices.0", 3, "devices[0]"),
        ("devices.0.name", "", "devices[0].name"),
        ("devices.0.name", "a b", "devices[0].name"),
        ("devices.0.name", "a:", "devices[0].name"),
        ("devices.0.name", ..., "devices[0].name"),
        ("devices.0.containerEdits", {}, "devices[0].containerEdits"),
        ("devices.0.containerEdits", ..., "devices[0].containerEdits"),
        ("devices.0.unknown", 1, "devices[0].unknown"),
        ("containerEdits.env", ["=b"], "containerEdits.env[0]"),
        ("containerEdits.env", "A=b", "containerEdits.env"),
        (NODE + "path", "", "devices[0].containerEdits.deviceNodes[0].path"),
        (NODE + "minor", 2**63, "devices[0].containerEdits.deviceNodes[0].minor"),
        (NODE + "fileMode", -1, "devices[0].containerEdits.deviceNodes[0].fileMode"),
        (NODE + "permissions", "rx", "devices[0].containerEdits.deviceNodes[0].permissions"),
        (NODE + "gid", 2**32, "devices[0].containerEdits.deviceNodes[0].gid"),
        ("containerEdits.mounts.0.containerPath", ..., "containerEdits.mounts[0].containerPath"),
        ("containerEdits.mounts.0.options", [1], "containerEdits.mounts[0].options[0]"),
        (HOOK + "hookName", "createcontainer", "containerEdits.hooks[0].hookName"),
        (HOOK + "env", ["LD_PRELOAD"], "containerEdits.hooks[0].env[0]"),
        ("containerEdits.additionalGids", [-1], "containerEdits.additionalGids[0]"),
        ("containerEdits.intelRdt.unknown", 1, "containerEdits.intelRdt.unknown"),
        ("annotations", {"a/": "x"}, "annotations"),
        ("annotations", {"a b": "x"}, "annotations"),
        ("annotations", {"a": 1}, "annotations.a"),
        ("annotations", {"a": "x" * (1 << 19)}, "annotations"),
    ],
)
def test_one_thing_wrong(path: str, value: Any, where: str) -> None:
    found = problems(changed(path, value))
    assert found and found[0].startswith(f"{where}: "), found


def test_names_that_are_there_twice() -> None:
    two = changed("devices", MINIMAL["devices"] * 2, MINIMAL)
    assert problems(two) == ["devices[1].name: one occurs twice"]
    nets = [{"hostInterfaceName": "eth0", "name": "a"}, {"hostInterfaceName": "eth0", "name": "b"}]
    found = problems(changed("containerEdits.netDevices", nets))
    assert found == ["containerEdits.netDevices: a hostInterfaceName occurs twice"]


@pytest.mark.parametrize(
    ("path", "value", "needed"),
    [
        ("devices.0.name", "0", "0.5.0"),
        ("kind", "vendor.com/a.b", "0.6.0"),
        ("annotations", {"a": "b"}, "0.6.0"),
        ("devices.0.annotations", {"a": "b"}, "0.6.0"),
        ("containerEdits", {"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "none"}]}, "0.4.0"),
        ("containerEdits", {"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}, "0.5.0"),
        ("containerEdits", {"additionalGids": [1]}, "0.7.0"),
        ("containerEdits", {"intelRdt": {"closID": "a"}}, "0.7.0"),
        ("containerEdits", {"intelRdt": {"schemata": ["a"]}}, "1.1.0"),
        ("containerEdits", {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, "1.1.0"),
    ],
)
def test_a_version_must_have_what_is_used(path: str, value: Any, needed: str) -> None:
    made = changed(path, value, MINIMAL)
    assert lowest_version(made) == needed
    assert problems({**made, "cdiVersion": needed}) == []
    before = KNOWN[KNOWN.index(needed) - 1]
    assert problems({**made, "cdiVersion": before}) == [
        f"cdiVersion: is {before}, what the document uses needs {needed}"
    ]


def test_class_and_device_names() -> None:
    assert class_problem("a" * 63) == "" and class_problem("a" * 64)
    for name in ("0", "0:1", "a.b_c-d", "GPU-1", "x" * 253):
        assert device_problem(name) == ""
    for name in ("", ":0", "0:", "a/b", "a b", "-1", "x" * 254, "é"):
        assert device_problem(name)


def test_only_so_many_problems_are_listed() -> None:
    devices = [{"name": "", "containerEdits": {}}] * 1000
    assert len(problems(changed("devices", devices, MINIMAL))) == 101

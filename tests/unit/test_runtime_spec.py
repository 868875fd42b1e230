"""Edits of an OCI configuration: each once, unknown content kept, numbers as they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.fastjson import JsonError, parse, write
from nvc.frontends.runtime.spec import Spec, apply_edits
from nvc.request.oci import MAX_CONFIG, Malformed

DENY = {"allow": False, "access": "rwm"}
NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
RULE = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}


def spec(**document: Any) -> Spec:
    return Spec(document)


def plain(made: Spec) -> Any:
    return made.document


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**19), 10**19) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON, st.sampled_from([None, "\t", "    "]))
def test_what_is_read_is_written(value: Any, indent: Any) -> None:
    """To the byte, for the two forms that json.dumps has: on one line and indented."""
    text = json.dumps(value, indent=indent, separators=(",", ":" if indent is None else ": "))
    data = text.encode() + (b"\n" if "\n" in text else b"")
    assert write(parse(data, MAX_CONFIG), data) == data


def test_a_number_beyond_all_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(parse(b"[1e400]", MAX_CONFIG), b"")


@pytest.mark.parametrize("text", ["", "[", "{}x", "NaN", '{"a": Infinity}', "[" * 70 + "]" * 70, '"\ud800"'])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(JsonError):
        parse(text.encode("utf-8", "surrogatepass"), MAX_CONFIG)


def test_another_device_of_that_path_is_replaced() -> None:
    made = spec(linux={"devices": [{**NODE, "minor": 7}, {"path": "/dev/fuse"}]})
    made.add_node(dict(NODE))
    assert plain(made)["linux"]["devices"] == [NODE, {"path": "/dev/fuse"}]


def test_a_rule_comes_after_the_denial() -> None:
    made = spec(linux={"resources": {"devices": [RULE, DENY], "memory": {"limit": 1}}})
    made.allow(195, 0)
    made.allow(195, 0)
    assert plain(made)["linux"]["resources"] == {"devices": [RULE, DENY, RULE], "memory": {"limit": 1}}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({}, False),
        ({"prestart": []}, False),
        ({"prestart": [{"path": "/usr/bin/nvc-hook"}]}, True),
        ({"createRuntime": [{"path": "/x"}, {"path": "/opt/nvidia-container-runtime-hook"}]}, True),
        ({"createRuntime": [{"path": "/opt/nvidia-container-toolkit"}]}, True),
        ({"poststop": [{"path": "/usr/bin/nvc-hook"}]}, False),
        ({"prestart": [{"path": "/usr/bin/nvc-hook-not"}, {"path": 7}, 7]}, False),
        ({"prestart": {"path": "/usr/bin/nvc-hook"}}, False),
    ],
)
def test_hooks_that_give_gpus(hooks: dict[str, Any], expected: bool) -> None:
    made = spec(hooks=hooks)
    assert made.gives_gpus() is expected
    made.remove_givers()
    assert not made.gives_gpus()
    if not expected:
        assert plain(made)["hooks"] == hooks


def test_edits_of_a_specification() -> None:
    made = spec(
        process={"env": ["A=1", "NVIDIA_VISIBLE_DEVICES=all", "A=2"], "user": {"additionalGids": [5]}},
        mounts=[{"destination": "/a", "source": "/old"}],
        linux={"resources": {"devices": [DENY]}},
    )
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{**NODE, "hostPath": "/sim/dev/nvidia0", "permissions": "rw", "fileMode": 438}],
        "mounts": [{"hostPath": "/h/a", "containerPath": "/a", "options": ["ro", "bind"]}],
        "hooks": [{"hookName": "createContainer", "path": "/x", "args": ["x"], "env": ["P=1"]}],
        "additionalGids": [0, 5, 44],
    }
    for _ in range(2):
        apply_edits(made, edits)
    assert plain(made) == {
        "process": {
            "env": ["A=1", "A=2", "NVIDIA_VISIBLE_DEVICES=void"],
            "user": {"additionalGids": [5, 44]},
        },
        "mounts": [{"destination": "/a", "source": "/h/a", "type": "bind", "options": ["ro", "bind"]}],
        "linux": {"resources": {"devices": [DENY, RULE]}, "devices": [{**NODE, "fileMode": 438}]},
        "hooks": {"createContainer": [{"path": "/x", "args": ["x"], "env": ["P=1"]}]},
    }


def test_nodes_are_bound_in_a_user_namespace() -> None:
    made = spec(linux={"namespaces": [{"type": "user"}]})
    assert made.user_namespace and not spec(linux={"namespaces": [{"type": "pid"}, 7]}).user_namespace
    apply_edits(made, {"deviceNodes": [{**NODE, "hostPath": "/sim/dev/nvidia0"}]})
    assert plain(made)["mounts"][0]["source"] == "/sim/dev/nvidia0"
    assert not plain(made)["linux"].get("devices")


@pytest.mark.parametrize(
    "document",
    [
        {"linux": []}, {"linux": {"devices": {}}}, {"linux": {"resources": 1}},
        {"linux": {"resources": {"devices": 1}}},
    ],
)  # fmt: skip
def test_types_that_are_wrong(document: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match="wrong type"):
        made = spec(**document)
        made.add_node(dict(NODE))
        made.allow(195, 0)

"""JSON changed and written anew: only the key in question has another value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.frontends.engines import EngineError
from nvc.frontends.engines.files import jsontext

P = "/etc/docker/daemon.json"
KEYS = st.sampled_from(["a", "b", "runtimes", "ü", 'q"\\', ""])
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
OBJECTS = st.recursive(
    st.dictionaries(KEYS, LEAF, max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | st.lists(inner, max_size=2) | LEAF, max_size=3),
    max_leaves=10,
)


def put(document: Any, keys: tuple[str, ...], value: Any) -> None:
    for name in keys[:-1]:
        document = document.setdefault(name, {})
    document[keys[-1]] = value


@given(OBJECTS, st.lists(KEYS, min_size=1, max_size=3), st.sampled_from([None, 2, 4, "\t"]), LEAF)
def test_assign_and_delete(document: Any, path: list[str], indent: Any, value: Any) -> None:
    """As if the parsed document had been changed, whatever its form."""
    keys = tuple(path)
    text = json.dumps(document, indent=indent)
    try:
        put(document, keys, value)
    except (TypeError, AttributeError):
        with pytest.raises(EngineError, match="is not an object"):
            jsontext.assign(text, P, keys, value)
        return
    changed = jsontext.assign(text, P, keys, value)
    assert json.loads(changed) == document
    assert jsontext.assign(changed, P, keys, value) == changed
    inner = document
    for name in keys[:-1]:
        inner = inner[name]
    del inner[keys[-1]]
    assert json.loads(jsontext.delete(changed, P, keys)) == document


def test_values_order_and_indentation_stay() -> None:
    text = '{\n  "hosts": [\n    "ü",\n    "\\n"\n  ],\n  "x": {\n    "y": 1.5\n  }\n}\n'
    changed = jsontext.assign(text, P, ("runtimes", "nvc"), {"path": "/p"})
    assert changed == text[:-3] + ',\n  "runtimes": {\n    "nvc": {\n      "path": "/p"\n    }\n  }\n}\n'
    assert jsontext.delete(changed, P, ("runtimes",)) == text


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", '{\n    "k": 1\n}\n'),
        ("  \n", '{\n    "k": 1\n}\n'),
        ("{}", '{\n    "k": 1\n}'),
        ('{"a":1}', '{"a": 1, "k": 1}'),
        ('{"a": 1}\n', '{"a": 1, "k": 1}\n'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"k": 1\n}\n'),
        ('{"a": "\\ud800"}', '{"a": "\\ud800", "k": 1}'),
    ],
)
def test_forms(text: str, changed: str) -> None:
    assert jsontext.assign(text, P, ("k",), 1) == changed


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "line 3 column 3: "),
        ('{"a": tru}', "line 1 column 7: "),
        ('{"a": 1} //', "line 1 column 10: "),
        ("[]", "not an object"),
        ('{"a": ' + "[" * 100_000, "too many levels"),
        ('{"k": 0, "a": 1, "k": 2}', 'the key "k" occurs twice'),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
    ],
)
def test_where_it_is_no_json(text: str, where: str) -> None:
    with pytest.raises(EngineError) as caught:
        jsontext.load(text, P)
    assert where in str(caught.value) and P in str(caught.value)

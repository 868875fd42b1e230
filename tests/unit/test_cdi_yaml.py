"""YAML as specifications have it, written and read, against PyYAML."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.cdi import document

from nvc.base.yamlread import YamlError, parse_yaml
from nvc.base.yamlwrite import yaml_text
from nvc.frontends.cdi.store import CdiError, parse_document

KEYS = st.sampled_from(["name", "path", "containerEdits", "devices", "env", "major", "cdi.k8s.io/key", "1"])
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(STRINGS, NUMBERS, st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=5)
#: What Go's and PyYAML's writers leave unquoted, and what they spread over no more than one line.
WORDS = st.from_regex(r"[A-Za-z/][A-Za-z0-9_./=:-]{0,20}[A-Za-z0-9]", fullmatch=True) | st.sampled_from(
    [
        "",
        "null",
        "true",
        "0.5.0",
        "0",
        "10",
        "0x1f",
        "1e3",
        "-",
        "a: b",
        "# no",
        "a #b",
        "'",
        '"',
        "ro",
        "\t",
        "a\nb",
    ]
)
PLAIN = st.recursive(
    st.one_of(WORDS, NUMBERS, st.booleans()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_pyyaml_and_we_read_what_we_write(value: dict[str, Any]) -> None:
    text = yaml_text(value)
    assert text.isascii()
    assert yaml.safe_load(text) == value
    assert parse_yaml(text) == value


@given(st.dictionaries(st.sampled_from(["a", "b"]), PLAIN, min_size=1), st.booleans())
def test_we_read_what_pyyaml_writes(value: Any, sort: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=False, sort_keys=sort, width=10**6)
    try:
        found = parse_yaml(text)
    except YamlError:
        assert "|" in text or "? " in text or "\n\n" in text  # a text of several lines
        return
    assert found == yaml.safe_load(text)


GO = """\
# written by another tool
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset   # comment
    fileMode: 438
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - 'A=it''s'
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - ../libnvidia-allocator.so.1::/usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
  - name: "0"
    containerEdits:
      deviceNodes:
        -
          path: /dev/nvidia0
kind: nvidia.com/gpu
mounts: []
annotations: {}
"""


def test_what_go_writes() -> None:
    assert parse_yaml(GO) == yaml.safe_load(GO)
    assert parse_yaml(GO)["cdiVersion"] == "0.5.0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x 1\nb: *x\n", "line 1 has a value that begins with '&'"),
        ("a: !!str 1\n", "begins with '!'"),
        ("a: |\n  text\n", "begins with '|'"),
        ("a: {b: c}\n", "flow style"),
        ("---\na: 1\n---\nb: 2\n", "line 3 begins another document"),
        ("%YAML 1.2\n---\na: 1\n", "directive"),
        ("a: 1\na: 2\n", "line 2 repeats a key"),
        ("a: 1\n   b: 2\n", "indented unlike"),
        ("a:\n\tb: 1\n", "tab"),
        ('a: "no end\n', "does not end"),
        ('a: "x" y\n', "goes on"),
        ('a: "\\q"\n', "escape"),
        ("a: b: c\n", "mapping inside"),
        ("a: 1\nno key\n", "is no `key: value`"),
        ("- " * 100 + "a\n", "nested too deeply"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(YamlError, match="line [0-9]+ .*") as error:
        parse_yaml(text)
    assert why in str(error.value)


def test_json_is_read_under_any_name() -> None:
    made = document()
    assert parse_document(json.dumps(made).encode(), "x.yaml") == made


@pytest.mark.parametrize(
    "data", [b'{"a": ', b"\xff\xfe", b"[" * 100000, b"{" + b" " * (9 << 20), b"a" * (9 << 20)]
)
def test_hostile_bytes(data: bytes) -> None:
    with pytest.raises(CdiError, match="FILE"):
        parse_document(data, "FILE")

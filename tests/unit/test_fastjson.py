"""The bounded JSON parser: the same values as `json`, and an error, never a crash, for everything else."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import REPO, run

from nvc.base.fastjson import MAX_DEPTH, JsonError, parse

LIMIT = 1 << 24
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(VALUES, st.booleans())
def test_agrees_with_json(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert parse(text, LIMIT) == json.loads(text)


@given(st.binary() | st.text(alphabet='[]{}",:\\ 0e-n\n').map(str.encode))
def test_any_bytes_give_a_value_or_an_error(data: bytes) -> None:
    try:
        value = parse(data, LIMIT)
    except JsonError as error:
        assert "\n" not in str(error) and len(str(error)) < 100
    else:
        assert value == json.loads(data)


def test_depth_is_counted_exactly() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"":', b"}")):
        assert parse(opening * (MAX_DEPTH - 1) + b"[]" + closing * (MAX_DEPTH - 1), LIMIT)
        with pytest.raises(JsonError, match=f"more than {MAX_DEPTH} levels"):
            parse(opening * MAX_DEPTH + b"[]" + closing * MAX_DEPTH, LIMIT)


def test_brackets_in_strings_are_no_levels() -> None:
    for text in ("[" * 200, "\\" * 9 + '"' + "[" * 200, '"[' * 200, "{\\"):
        assert parse(json.dumps([text]).encode(), LIMIT) == [text]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "empty"), (b" \n\t", "empty"), (b"[1", "truncated"), (b'{"a"\n:\n x}', "line 3 column 2"),
        (b"  nul", "line 1 column 3"), (b"[1] 2", "line 1 column 4"), (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"), (b"[" + b"9" * 21 + b"]", "20 digits"), (b'["\x01"]', "line 1"),
        (b'"\xff"', "not UTF-8 at byte 1"), (b"\xef\xbb\xbf{}", "line 1 column 1"),
        (b"[}", "line 1 column 2"), (b'"' * (4 << 20), "strings"), (b"[" * (4 << 20), "arrays and objects"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: bytes, cause: str) -> None:
    with pytest.raises(JsonError, match=cause):
        parse(data, LIMIT)


@pytest.mark.parametrize("text", ['{"a" 1}', "[1,,2]", '["\x01"]', "nul", '{"a": tru}', '["\\x"]'])
def test_where_json_was_not_imported(text: str) -> None:
    """The scanner of Python 3.11 takes the class of its error from the loaded module, and fails without."""
    script = (
        "import sys; from nvc.base.fastjson import *; assert 'json' not in sys.modules\n"
        f"try: parse({text.encode()!r}, 100)\nexcept JsonError as error: print(error)"
    )
    assert run(sys.executable, "-S", "-c", script, cwd=REPO).stdout.startswith("not JSON at line 1 column ")


def test_size_is_bounded() -> None:
    assert parse(b"[]", 2) == []
    with pytest.raises(JsonError, match="larger than 2 bytes"):
        parse(b"[] ", 2)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * LIMIT, b"[" * (1 << 20) + b"]" * (1 << 20), b'\\"' * (LIMIT // 2), b"9" * LIMIT,
        b'"' + b"\\\\" * (LIMIT // 2 - 1) + b'"',
    ],
    ids=['open', 'nested', 'escapes', 'digits', 'backslashes'],
)  # fmt: skip
def test_16_mib_of_malice_takes_a_moment(data: bytes) -> None:
    start = time.process_time()
    try:
        parse(data, LIMIT)
    except JsonError:
        pass
    assert time.process_time() - start < 5

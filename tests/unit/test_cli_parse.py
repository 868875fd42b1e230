"""The fast parser against getopt_long(3) of this machine's C library, and against click's."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.getopt import Refused, getopt

from nvc.base.errors import InputError
from nvc_cli.main import given_values, hot_command, parameters
from nvc_cli.options import FLAG, GLOBAL, HOT, OPTIONAL, REPEATED, SHOW, VALUE
from nvc_cli.parse import Words, parse_line, parse_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc_cli.options import Option
    from nvc_cli.parse import Values

TABLES = {"": GLOBAL, **{name: entry[0] for name, entry in HOT.items()}}
#: A table with what ours happen to lack: names that begin with another name.
NESTED: tuple[Option, ...] = (
    ("lib", "l", VALUE, "X", "-"),
    ("library", "", FLAG, "", "-"),
    ("library-path", "p", REPEATED, "X", "-"),
    ("li", "i", OPTIONAL, "X", "-"),
    ("liv", "v", FLAG, "", "-"),
)
#: Words that no option table knows, and values that look like something else.
WORDS = [
    "",
    "-",
    "--",
    "x",
    "/run/c",
    "-1",
    "--=",
    "---",
    "-=",
    "=",
    "é",
    "--x",
    "-Z",
    "0,1",
    "a=b",
    "--device",
]


@st.composite
def words_for(draw: st.DrawFn, options: tuple[Option, ...]) -> str:
    """One word: a whole or a begun option in one of its spellings, or something else."""
    name, letter, _, _, _ = draw(st.sampled_from(options))
    value = draw(st.sampled_from(WORDS))
    begun = name[: draw(st.integers(1, len(name)))]
    bundle = draw(st.text("".join(option[1] for option in options) + "Zé", max_size=3))
    spellings = [f"--{name}", f"--{name}={value}", f"--{begun}", f"--{begun}={value}", f"-{bundle}", value]
    for one in letter:
        spellings += [f"-{one}", f"-{one}{value}", f"-{bundle}{one}{value}", f"-{bundle}{one}"]
    return draw(st.sampled_from(spellings))


def ours(options: tuple[Option, ...], words: list[str], in_order: bool) -> Words | None:
    try:
        return parse_words(options, words, in_order)
    except InputError as error:
        assert str(error).startswith("input error: ")
        return None


@pytest.mark.parametrize("command", [*TABLES, "nested"])
@given(data=st.data())
def test_as_getopt_long(command: str, data: st.DataObject) -> None:
    options = TABLES.get(command, NESTED)
    words = data.draw(st.lists(words_for(options), max_size=6))
    parsed = ours(options, words, in_order=not command)
    try:
        found, rest, show = getopt(options, words, in_order=not command)
    except Refused:
        assert parsed is None
        return
    assert parsed is not None
    assert parsed.show == show
    assert [name for name, _ in parsed.given] == [name.replace("-", "_") for name, _ in found]
    if not show:
        assert list(parsed.rest) == rest
    kinds = {option[0]: option[2] for option in options}
    values: Values = {}
    for name, value in found:
        key = name.replace("-", "_")
        if kinds[name] == REPEATED:
            values[key] = [*values.get(key, []), value]  # type: ignore[misc]
        else:
            values[key] = True if kinds[name] == FLAG else value
    assert parsed.values == values


@st.composite
def lines_for_click(draw: st.DrawFn, options: tuple[Option, ...]) -> list[str]:
    """Words that click reads as argp does: no begun names, and no optional value left out."""
    words: list[str] = []
    for name, letter, kind, _, _ in draw(st.lists(st.sampled_from(options), max_size=6)):
        value = draw(
            st.sampled_from(["", "x", "0,1", "/a b", "a=b", "é"] + ["-1", "--"] * (kind != OPTIONAL))
        )
        if kind == FLAG:
            words.append(draw(st.sampled_from([f"--{name}", f"-{letter}" if letter else f"--{name}"])))
        elif kind == OPTIONAL:
            words.append(f"-{letter}{value or 'x'}" if draw(st.booleans()) else f"--{name}={value}")
        elif kind != SHOW:
            spellings = [[f"--{name}={value}"], [f"--{name}", value]]
            if letter:
                spellings += [[f"-{letter}", value], [f"-{letter}{value or 'x'}"]]
            words += draw(st.sampled_from(spellings))
    flags = "".join(option[1] for option in options if option[1] and option[2] == FLAG)
    if flags:
        words.append("-" + draw(st.text(flags, min_size=1, max_size=4)))
    return words + draw(
        st.lists(st.sampled_from(["/run/c", "x", "-", "--", "-Z", "--none", "--csv=1"]), max_size=2)
    )


def click_reads(command: str, words: list[str]) -> tuple[Values, tuple[str, ...]] | None:
    """Values and other words according to click, None where it refuses."""
    tree = hot_command(command) if command else click.Group("x", params=parameters(GLOBAL))
    try:
        context = tree.make_context("x", list(words))
    except click.UsageError:
        return None
    params = dict(context.params)
    if not command:
        return given_values(params), (*context._protected_args, *context.args)
    rest = params.pop("words", None)
    return given_values(params), () if rest is None else (rest,)


@pytest.mark.parametrize("command", TABLES)
@given(data=st.data())
def test_as_click(command: str, data: st.DataObject) -> None:
    words = data.draw(lines_for_click(TABLES[command]))
    if not command:
        words.append("info")  # click asks a group for a command
    parsed = ours(TABLES[command], words, in_order=not command)
    if parsed is not None and command and len(parsed.rest) != len(HOT[command][1].split()):
        parsed = None
    theirs = click_reads(command, words)
    assert (parsed is None) == (theirs is None)
    if parsed is not None:
        assert (parsed.values, parsed.rest) == theirs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nope"], "unrecognized option '--nope'"),
        (["--us"], "option '--us' is ambiguous; possibilities: '--user' '--usage'; write one in full"),
        (["-Z"], "invalid option -- 'Z'"),
        (["--load-kmods=1"], "option '--load-kmods' doesn't allow an argument; write it without"),
        (["--roo"], "option '--root' requires an argument"),
        (["-kr"], "option requires an argument -- 'r'"),
        (["configure", "--cuda-compat-mod"], "option '--cuda-compat-mode' requires an argument"),
        (["configure", "--root=/"],
         "unrecognized option '--root'; global options come first: `nvc-cli --root PATH configure`"),
        (["--device=0", "configure"], "unrecognized option '--device'"),
    ],
)
def test_complaints(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_line(words)
    assert str(error.value) == f"input error: {message}"


def test_words_of_other_commands_are_left_alone() -> None:
    line = parse_line(["-k", "sim", "create", "--gpus", "2", "-?"])
    assert (line.command, line.words.values, line.show) == ("sim", {}, "")
    assert line.globals.rest == ("sim", "create", "--gpus", "2", "-?")


def test_tables_are_sound() -> None:
    for options in TABLES.values():
        assert len({option[0] for option in options}) == len(options)
        letters = "".join(option[1] for option in options)
        assert len(set(letters)) == len(letters)
        for _, _, kind, metavar, text in options:
            assert bool(metavar) == (kind not in (FLAG, SHOW))
            assert text

"""Bare calls, forms of output, and what is suggested to somebody who used the words of another program."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import run

from nvc.doctor import FAILED, OK, Check, Finding, Result, text
from nvc_cli import boot, output
from nvc_cli.main import CONTEXT, tree
from nvc_cli.suggest import COMMANDS, ELSEWHERE, OPTIONS, SLICES

Call = Callable[..., tuple[int, str, str]]
GROUPS = ("vgpu", "cdi", "cdi transform", "sim", "config", "runtime")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """`call("words")` runs the command line in this process: exit code, standard output, standard error."""

    def run(words: str) -> tuple[int, str, str]:
        code = boot.run("nvc-cli", shlex.split(words))
        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_a_bare_group_prints_its_help(call: Call, group: str) -> None:
    code, out, err = call(group)
    assert (code, err) == (0, "") and (code, out, err) == call(f"{group} --help")
    assert out.startswith(f"Usage: nvc-cli {group}".rstrip())
    assert out.index("\nCommands:\n") < out.index("\nOptions:\n")


@pytest.mark.parametrize("program", ["nvcd", "nvc-hook", "nvc-cdi-hook", "nvc-kubelet-plugin", "nvc-nri"])
def test_short_help_of_other_programs(stage: str, program: str) -> None:
    path = f"{stage}/bin/{program}"
    assert run(path, "-h").stdout == run(path, "--help").stdout != ""


def test_a_bare_call_lists_every_command(call: Call) -> None:
    out = call("")[1]
    ctx = click.Context(tree, info_name="nvc-cli", **CONTEXT)
    assert all(f"\n  {name} " in out for name in tree.list_commands(ctx))


def test_what_newcomers_need_comes_first(call: Call) -> None:
    commands = call("vgpu")[1].partition("\nCommands:\n")[2]
    assert re.findall(r"^  ([a-z]+) ", commands, re.MULTILINE)[:4] == ["run", "ls", "top", "set"]
    examples = call("")[1].partition("\nExamples:\n")[2]
    assert all(f"  nvc-cli {words}" in examples for words in ("vgpu run ", "vgpu top\n", "doctor\n"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("runtime configure", "Missing option '--engine'. Choose from: docker, containerd, crio, podman; "
                              "see `nvc-cli runtime configure --help`"),
        ("runtime configure --engine podmn", "Invalid value for '--engine': 'podmn' is not one of 'docker', "),
        ("vgpu top -n 0", "Invalid value for '--count' / '-n': 0 is not in the range x>=1"),
        ("vgpu kill web", "unknown command: vgpu kill; end it where it was started: `docker kill NAME`, "),
        ("vgpu rename a b", "unknown command: vgpu rename; a slice keeps the name that it was started with: "),
        ("sim create", "Missing argument 'DIRECTORY'; see `nvc-cli sim create --help`"),
        ("completion --format", "unrecognized option '--format'; see `nvc-cli completion --help`"),
        ("explain -o", "Option '-o' requires an argument; see `nvc-cli explain --help`"),
        ("cdi generate -o json", "--output: json: is the file to write, not its format; write --format json"),
    ],
)  # fmt: skip
def test_what_click_says_is_whole_and_on_one_line(call: Call, words: str, line: str) -> None:
    code, out, err = call(words)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"nvc-cli: input error: {line}") and "?" not in err


def test_version(call: Call) -> None:
    code, out, err = call("version")
    assert (code, out, err) == call("--version") and code == 0
    found = json.loads(call("version -o json")[1])
    assert found == yaml.safe_load(call("version --format yaml")[1])
    assert list(found.values()) == [line.partition(": ")[2] for line in out.splitlines()]
    assert call("version -o table")[1].startswith("NAME ")


@pytest.mark.parametrize(
    "words", ["config show", "config get nvc.timeout", "explain", "explain NVC-1001", "doctor --list"]
)
def test_json_and_yaml_say_the_same(call: Call, words: str) -> None:
    made: list[Any] = [
        json.loads(call(f"{words} --format json")[1]),
        json.loads(call(f"{words} -o json")[1]),
    ]
    made += [yaml.safe_load(call(f"{words} --format yaml")[1]), yaml.safe_load(call(f"{words} -oyaml")[1])]
    assert all(one == made[0] for one in made) and made[0]


@given(
    st.floats() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["no", "on", "Y", "null", "a"]),
)
def test_yaml_of_anything(value: float | int | str, key: str) -> None:
    (found,) = yaml.safe_load(output.document_text({key: [(value,)]}, "yaml")).items()
    assert repr(found) == repr((key, [[value]]))


def flat(table: dict[str, dict[str, str]]) -> list[tuple[str, str, str]]:
    """Where, the foreign word, ours."""
    return [
        (where, word, ours)
        for where, rows in table.items()
        for ours, theirs in rows.items()
        for word in theirs.split()
    ]


FOREIGN = flat({"": {**COMMANDS, **SLICES}, "vgpu": SLICES})


def resolved(words: list[str]) -> click.Command:
    """The command that the words begin with; every option in them is one of it."""
    command: click.Command = tree
    options = []
    for word in words:
        if word.startswith("-"):
            options.append(word)
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command, info_name="nvc-cli"), word)
            if inner is not None:
                command = inner
    ctx = click.Context(command, info_name="x", **CONTEXT)
    known = {name for one in (command, tree) for param in one.get_params(ctx) for name in param.opts}
    assert set(options) <= known, (words, set(options) - known)
    return command


def test_a_foreign_command(call: Call) -> None:
    """It is no command of ours, and what is suggested in its place is one."""
    for group, word, ours in FOREIGN:
        code, out, err = call(f"{group} {word}")
        assert (code, out) == (1, ""), word
        assert f"unknown command: {f'{group} {word}'.strip()}; did you mean `nvc-cli {ours}`? [" in err, word
        assert not isinstance(resolved(ours.split()), click.Group), ours


@pytest.mark.parametrize("group", ["", "vgpu "])
@pytest.mark.parametrize("word", ELSEWHERE)
def test_what_is_done_elsewhere(call: Call, group: str, word: str) -> None:
    """Nothing of ours comes near: what would be suggested may end or lose what somebody wants to keep."""
    code, out, err = call(f"{group}{word} web")
    assert (code, out) == (1, "")
    assert f"unknown command: {group}{word}; {ELSEWHERE[word]} [" in err


@pytest.mark.parametrize(
    ("words", "offer"),
    [
        ("inof", "nvc-cli info"), ("vpgu", "nvc-cli vgpu"), ("vgpu polcy", "nvc-cli vgpu policy"),
        ("vgpu cal", "nvc-cli vgpu calibrate"), ("config gte", "nvc-cli config get"),
        ("help vgpu shwo", "nvc-cli vgpu show"), ("info --fromat json", "--format"),
        ("runtime configure --dryrun", "--dry-run"), ("vgpu ls --json", "--format json"),
        ("vgpu ls --output", "--format"), ("vgpu ls --watch", "nvc-cli vgpu top"),
    ],
)  # fmt: skip
def test_a_slip(call: Call, words: str, offer: str) -> None:
    code, out, err = call(words)
    assert (code, out) == (1, "") and f"did you mean `{offer}`? [" in err


def test_no_table_has_a_word_of_ours() -> None:
    """Such a row would never be read, or hides a command that was added later."""
    for group, word, _ in FOREIGN:
        command = resolved(group.split())
        assert isinstance(command, click.Group)
        assert command.get_command(click.Context(command), word) is None, (group, word)
    for path, word, _ in flat(OPTIONS):
        ctx = click.Context(resolved(path.split()), info_name="x", **CONTEXT)
        assert word not in {name for param in ctx.command.get_params(ctx) for name in param.opts}, (
            path,
            word,
        )


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({b"TERM": b"xterm"}, True),
        ({b"TERM": b"xterm", b"NO_COLOR": b"1"}, False),
        ({b"TERM": b"dumb"}, False),
    ],
)
def test_colour_on_a_terminal_only(
    environment: dict[bytes, bytes], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvc_cli.output.posix.environ", environment)
    assert not output.coloured()
    master, slave = pty.openpty()
    kept = os.dup(1)
    os.dup2(slave, 1)
    try:
        found = output.coloured()
    finally:
        os.dup2(kept, 1)
        for fd in (kept, master, slave):
            os.close(fd)
    assert found == coloured


def test_a_container_without_a_name(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvc.kernel.privileges.reduce", lambda *_: None)  # this process goes on to other tests
    code, out, said = call("doctor --container ''")
    assert (code, out) == (1, "") and "find container: want a process id, or the name or id" in said


@pytest.mark.parametrize("words", [
    "vgpu advise ''", "vgpu report --output ''", "config show --file ''", "config check ''", "doctor --bundle ''",
    "doctor --claim=", "runtime configure --engine docker --dry-run --config ''",
])  # fmt: skip
def test_a_variable_of_a_script_that_was_not_set(call: Call, words: str) -> None:
    """An empty value is not the default: it could be another device or file than was meant."""
    code, out, said = call(words)
    assert (code, out) == (1, "") and ": empty; leave it out for the default" in said, said


def test_doctor_names_each_thing_that_is_well() -> None:
    found = tuple(Finding(OK, f"/dev/nvidia{number} is there") for number in (0, 1, 1))
    shown = text.report((Result(Check("a.b", "title", lambda _: ()), found),), everything=True)
    assert [line.split()[2] for line in shown.splitlines()[:-1]] == ["/dev/nvidia0", "/dev/nvidia1"]


def test_doctor_in_colour() -> None:
    """Colours change nothing but how it looks, and a name from the host cannot add any."""
    finding = Finding(FAILED, "bad \x1b[2J", ("seen \x1b[32m",), ("run this",), "do that")
    results = (Result(Check("a.b", "title", lambda _: ()), (finding,)),)
    plain, shown = text.report(results), text.report(results, colour=True)
    assert "\x1b" not in plain
    assert (
        shown.startswith("\x1b[31mfailed     \x1b[0m  a.b: bad ?[2J\n") and "\x1b[1mrun this\x1b[0m" in shown
    )
    for code in ("\x1b[31m", "\x1b[1m", "\x1b[0m"):
        shown = shown.replace(code, "")
    assert shown == plain

"""Dispatch, exit codes, and what reaches standard error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, PATIENCE, REPO

from nvc import __version__
from nvc.base.errors import DeviceError, InternalError, MountError
from nvc_cli import boot
from nvc_cli.list import asks_for_everything
from nvc_cli.options import GLOBAL, HOT
from nvc_cli.parse import parse_line
from nvc_cli.usage import usage

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """`call(*words)` runs the command line in this process: exit code, standard output, standard error."""

    def run(*words: str, program: str = "nvc-cli") -> tuple[int, str, str]:
        code = boot.run(program, list(words))
        return code, *capfd.readouterr()

    return run


def raising(error: BaseException) -> Callable[..., int]:
    def dispatch(*_: object) -> int:
        raise error

    return dispatch


@pytest.mark.parametrize("words", [["-V"], ["--version"], ["info", "--vers"], ["configure", "-V"]])
def test_version_has_seven_lines(call: Call, words: list[str]) -> None:
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    keys = ["cli-version", "lib-version", "build date", "build revision"]
    keys += ["build compiler", "build platform", "build flags"]
    assert [line.partition(": ")[0] for line in out.splitlines()] == keys
    values = dict(line.split(": ", 1) for line in out.splitlines())
    assert values["cli-version"] == values["lib-version"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d\+00:00", values["build date"])
    assert values["build platform"] == os.uname().machine
    assert "-std=c11" in values["build flags"]


@pytest.mark.parametrize(
    ("words", "cause", "shown"),
    [
        (["-k"], "no command", ""),
        (["frobnicate"], "unknown command: frobnicate", ""),
        (["configure"], "configure needs ROOTFS", "configure"),
        (["configure", "/a", "--utility", "/b"], "too many arguments: /b", "configure"),
        (["list", "--", "-l"], "too many arguments: -l", "list"),
    ],
)
def test_misuse_shows_the_cause_and_the_usage(call: Call, words: list[str], cause: str, shown: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    first, rest = err.split("\n", 1)
    assert first == f"nvc-cli: input error: {cause} [NVC-1002]"
    assert rest.startswith(f"Usage: nvc-cli {shown}".rstrip())
    assert rest.endswith("--usage' for more information.\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--frob"], "input error: unrecognized option '--frob'"),
        (["info", "--csv", "--format=json"], "input error: --csv: not together with --format"),
        (["info", "--format=xml"], "input error: --format: xml: want text, table, json or yaml"),
        (["configure", "--format=json", "/x"], "input error: --format: only with --dry-run"),
        (["configure", "/"], "input error: invalid rootfs directory: /: want an absolute path other than /"),
        (["--root=", "list"], "input error: --root: want a path"),
        (["--debug=/dev/full/x", "info"], "input error: open the debug log: /dev/full/x: not a directory"),
        (["completion", "tcsh"], "input error: Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of"),
        (["help", "nothing"], "input error: unknown command: nothing; see `nvc-cli --help` [NVC-1002]"),
        (["sim", "create", "--frob"], "input error: unrecognized option '--frob'; see `nvc-cli sim create --help`"),
    ],
)
def test_a_wrong_call_is_one_line(call: Call, words: list[str], line: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    assert err.startswith(f"nvc-cli: {line}")
    assert err.count("\n") == 1


def test_errors_carry_their_class_s_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        boot, "_dispatch", raising(MountError("bind", "/a\nb", "no space left on device", "free some"))
    )
    assert call() == (
        1,
        "",
        "nvc-cli: mount error: bind: /a?b: no space left on device; free some [NVC-1701: nvc-cli doctor host]\n",
    )
    monkeypatch.setattr(boot, "_dispatch", raising(DeviceError("7", cause="unknown device", hint="look")))
    assert call(program="nvidia-container-cli") == (
        1,
        "",
        "nvidia-container-cli: device error: 7: unknown device; look [NVC-1501: nvc-cli doctor driver nodes]\n",
    )


def test_our_bugs_show_a_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (ZeroDivisionError("x\ny"), InternalError("count", cause="impossible")):
        monkeypatch.setattr(boot, "_dispatch", raising(error))
        code, out, err = call()
        assert (code, out) == (70, "")
        first, rest = err.split("\n", 1)
        assert first.startswith("nvc-cli: internal error: ")
        assert first.endswith(f"; {InternalError.hint} [NVC-9001]") and "README.md" in first
        assert rest.startswith("Traceback (most recent call last):\n")
        assert "in raise" not in rest
        assert "in dispatch" in rest


def test_interruptions_are_quiet(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_dispatch", raising(KeyboardInterrupt()))
    assert call() == (130, "", "")
    monkeypatch.setattr(boot, "_dispatch", raising(BrokenPipeError()))
    assert call() == (141, "", "")


def launch(*words: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, started as the launcher starts it but for `-S`."""
    code = f"import sys;sys.path+={sys.path!r};from nvc_cli.boot import main;main('nvc-cli')"
    command = [sys.executable, "-I", "-B", "-c", code, *words]
    return subprocess.run(command, env=CLEAN_ENV, cwd=REPO, timeout=PATIENCE, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize("words", [("--usage",), ("vgpu", "-?")])
def test_a_closed_pipe_ends_quietly(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = launch(*words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_closed_standard_error_changes_no_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    done = launch("configure", "/", stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize("words", [("--usage",), ("vgpu", "run", "--help")])
def test_a_full_disk_is_reported(words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = launch(*words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    error = b"nvc-cli: output error: write: standard output: no space left on device; make room: "
    assert done.stderr.startswith(error) and done.stderr.endswith(b" [NVC-2201]\n")


def test_names_that_are_no_text_are_taken_and_quoted() -> None:
    done = launch("configure", b"run/\xff\xfe", stderr=subprocess.PIPE)  # type: ignore[arg-type]
    assert done.returncode == 1
    assert done.stderr.startswith(b"nvc-cli: input error: invalid rootfs directory: run/??: ")


@pytest.mark.parametrize("command", ["", *HOT])
def test_usage(call: Call, command: str) -> None:
    code, out, err = call(*([command] if command else []), "--usage")
    assert (code, err) == (0, "")
    assert out == usage("nvc-cli", command)
    assert max(map(len, out.splitlines())) <= 79
    options, tail, _ = HOT[command] if command else (GLOBAL, "COMMAND [ARG...]", "")
    for option in options:
        assert f"[--{option[0]}" in out
    assert out.endswith(f"{tail}\n" if tail else "]\n")


@pytest.mark.parametrize("group", ["vgpu", "cdi", "config", "runtime", "sim"])
def test_help_of_a_group_cuts_no_sentence_off(call: Call, group: str) -> None:
    code, out, err = call(group, "--help")
    assert (code, err) == (0, "") and "..." not in out.partition("Commands:")[2].partition("\n\n")[0]


@pytest.mark.parametrize("command", HOT)
def test_help_of_a_command_names_every_option(call: Call, command: str) -> None:
    code, out, err = call(command, "-?", "--no-such-option")  # what follows is not looked at, as in argp
    assert call("help", command) == (code, out, err)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: nvc-cli {command} [OPTIONS]")
    assert "Examples:\n  nvc-cli " in out
    for name, letter, _, metavar, _ in HOT[command][0]:
        shown = f"{''.join(f'-{one}, ' for one in letter)}--{name}{f' {metavar}' if metavar else ''}"
        assert shown in out


@pytest.mark.parametrize(
    ("words", "everything"),
    [
        ([], True),
        (["--format=json"], True),
        (["--imex-channel=1"], True),
        (["--imex-channel=1", "--format", "json"], True),
        (["--imex-channel", "1"], False),  # the peers count words
        (["--imex-channel=1", "--imex-channel=2"], False),
        (["--device=0"], False),
        (["--no-persistenced"], False),
        (["-l"], False),
    ],
)
def test_when_list_means_everything(words: list[str], everything: bool) -> None:
    assert asks_for_everything(parse_line(["list", *words]).words) == everything

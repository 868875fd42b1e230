"""What nvc-hook is handed by a runtime and an administrator: wrong calls, documents, configuration, log files."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from typing import Any

import pytest
from support import run
from support.bundle import Bundle
from support.hook import Hook, ask


@pytest.fixture
def hook(stage: str, scratch: str, sim_root: Callable[..., str]) -> Hook:
    return Hook(stage, scratch, sim_root(gpus=1))


@pytest.fixture
def bundle(runc_bundle: Callable[..., Bundle]) -> Bundle:
    """A written bundle that asks for nothing."""
    made = runc_bundle()
    made.write("true")
    return made


def test_no_gpu_no_work(hook: Hook, bundle: Bundle) -> None:
    done = hook.call({"bundle": bundle.directory, "pid": 2})
    assert (done.stdout, done.stderr) == ("", "")
    assert "no GPU is asked for" in hook.logged()


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (b'{"a":' * 100000 + b"1" + b"}" * 100000, "levels"),
        (
            b'{"pid": 5, "bundle": "/no/such/bundle"}',
            "/no/such/bundle/config.json: no such file or directory",
        ),
        (b'{"pid": 5, "bundle": "/\\n\\u001b[2Jbundle"}', "no such file or directory"),
    ],
)
def test_bad_states(hook: Hook, state: bytes, cause: str) -> None:
    said = hook.refusal(state)
    assert said.startswith("nvc-hook: container error: ") and cause in said


def test_100_mib_of_state(hook: Hook, scratch: str) -> None:
    """Read no further than allowed; the rest is the runtime's."""
    path = os.path.join(scratch, "large")
    with open(path, "wb") as out:
        out.truncate(100 << 20)
    with open(path, "rb") as stdin:
        done = run(hook.program, "prestart", stdin=stdin, check=False)
        assert stdin.seek(0, os.SEEK_CUR) <= (1 << 20) + 1
    assert (
        done.returncode == 1 and "larger than 1048576 bytes" in done.stderr and done.stderr.count("\n") == 1
    )


def test_bad_configurations_of_the_bundle(hook: Hook, bundle: Bundle) -> None:
    path = os.path.join(bundle.directory, "config.json")
    state = {"bundle": bundle.directory, "pid": 2}
    with open(path, "rb") as good:
        text = good.read()
    for data, cause in (
        (text[:-3], "truncated"),
        (b"[" * (8 << 20) + b"]" * (8 << 20), "arrays and objects"),
        (json.dumps({"process": "x" * (15 << 20)}).encode(), "ociVersion is missing"),
    ):
        with open(path, "wb") as out:
            out.write(data)
        start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        said = hook.refusal(state)
        assert f"read bundle: {path}: " in said and cause in said
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start < 5
    with open(path, "wb") as out:
        out.truncate(100 << 20)
    assert "larger than 16777216 bytes" in hook.refusal(state)
    os.unlink(path)
    os.mkfifo(path)
    assert "not a regular file" in hook.refusal(state)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no command [NVC-1002]\nUsage: "),
        (("start",), 2, "unknown command: start [NVC-1002]\nUsage: "),
        (("startContainer",), 2, "unknown command: startContainer [NVC-1002]\nUsage: "),
        (("prestart", "now"), 2, "too many arguments: now [NVC-1002]\n"),
        (("-x", "prestart"), 2, "flag provided but not defined: x [NVC-1002]\n"),
        (("-config",), 2, "flag needs an argument: -config [NVC-1002]\n"),
        (("-config", "relative", "prestart"), 2, "-config: relative: want an absolute path [NVC-1002]\n"),
        (("-debug=maybe", "prestart"), 2, "-debug: maybe: want true or false [NVC-1002]\n"),
        (
            ("-config=/no/such/file", "prestart"),
            1,
            "/no/such/file: no such file or directory; name a file that exists [NVC-1801: nvc-cli doctor config]\n",
        ),
    ],
)
def test_wrong_calls(hook: Hook, words: tuple[str, ...], code: int, said: str) -> None:
    done = run(hook.program, *words, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and done.stderr.startswith("nvc-hook: ")


def test_debug_logs_to_standard_error(hook: Hook, bundle: Bundle) -> None:
    state = json.dumps({"bundle": bundle.directory, "pid": 2})
    command = [hook.program, "--debug", f"--config={hook.config}", "prestart"]
    done = run(*command, stdin=None, input=state)
    assert f"] bundle {bundle.directory}, pid 2\n" in done.stderr
    assert hook.logged() == ""


def test_configuration_that_does_not_parse(hook: Hook, bundle: Bundle) -> None:
    state = {"bundle": bundle.directory, "pid": 2}
    with open(hook.config, "a", encoding="utf-8") as out:
        out.write("tiemout = 1\n")
    assert "unknown key: " in hook.refusal(state) and "nearest known key is timeout" in hook.refusal(state)
    with open(hook.config, "a", encoding="utf-8") as out:
        out.write("= 1\n")
    said = hook.refusal(state)
    assert said.startswith(f"nvc-hook: configuration error: parse: {hook.config}: ") and "line" in said


@pytest.mark.parametrize(
    ("owner", "mode", "cause"), [(1234, 0o644, "not owned by root"), (0, 0o666, "writable")]
)
def test_configuration_of_somebody_else(
    hook: Hook, bundle: Bundle, owner: int, mode: int, cause: str
) -> None:
    os.chmod(hook.config, mode)
    os.chown(hook.config, owner, -1)
    said = hook.refusal({"bundle": bundle.directory, "pid": 2})
    assert said.startswith("nvc-hook: configuration error: ") and cause in said


def test_a_log_that_is_not_ours_is_refused(hook: Hook, bundle: Bundle, scratch: str) -> None:
    state = {"bundle": bundle.directory, "pid": 2}
    victim = os.path.join(scratch, "victim")

    def fresh(mode: int = 0o644, owner: int = 0) -> None:
        for path in (victim, hook.log):
            if os.path.lexists(path):
                os.unlink(path)
        with open(victim, "w", encoding="utf-8") as out:
            out.write("precious")
        os.chmod(victim, mode)
        os.chown(victim, owner, -1)

    fresh()
    os.symlink(victim, hook.log)
    assert "open the log" in hook.refusal(state) and "a symbolic link" in hook.refusal(state)
    fresh()
    os.link(victim, hook.log)
    assert "not a file of root alone" in hook.refusal(state)
    for mode, owner in ((0o666, 0), (0o644, 1234)):
        fresh(mode, owner)
        os.rename(victim, hook.log)
        assert "open the log" in hook.refusal(state)
        os.rename(hook.log, victim)
    with open(victim, encoding="utf-8") as text:
        assert text.read() == "precious"
    fresh()
    os.mkfifo(hook.log)
    assert hook.call(state).stderr == ""  # nobody reads: no log, and no waiting


@pytest.mark.parametrize(
    ("mode", "refused"), [("auto", False), ("cdi", True)]
)
def test_modes_in_which_a_hook_comes_too_late(hook: Hook, bundle: Bundle, mode: str, refused: bool) -> None:
    with open(hook.config, "a", encoding="utf-8") as out:
        out.write(f'[nvidia-container-runtime]\nmode = "{mode}"\n')
    state: dict[str, Any] = {"bundle": bundle.directory, "pid": os.getpid()}
    hook.call(state)  # it asks for nothing
    ask(bundle, NVIDIA_VISIBLE_DEVICES="0")
    bundle.write("true")
    said = hook.refusal(state)
    assert ("invoking the NVIDIA Container Runtime Hook directly" in said) is refused
    with open(hook.config, "a", encoding="utf-8") as out:
        out.write("[nvidia-container-runtime-hook]\nskip-mode-detection = true\n")
    assert "shares this mount namespace" in hook.refusal(state)

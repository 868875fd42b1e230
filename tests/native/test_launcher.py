"""The launcher: nothing of its caller's environment, descriptors, signals or directory reaches Python."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, run
from support.launcher import Installation

HOOKS = ("nvc-hook", "nvc-cdi-hook")
FIXED_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIXED = {"PATH": FIXED_PATH, "LC_ALL": "C.UTF-8"}
Poison = Callable[..., tuple[str, str]]


def bitten(mark: str) -> bool:
    """Whether the poison was loaded; forgets it for the next question."""
    try:
        os.unlink(mark)
    except FileNotFoundError:
        return False
    return True


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"])
def test_loader_variables_do_not_reach_the_interpreter(
    installation: Installation, poison: Poison, variable: str
) -> None:
    in_path = variable == "LD_LIBRARY_PATH"
    library, mark = poison("libm.so.6") if in_path else poison()
    env = {variable: os.path.dirname(library) if in_path else library, "NVC_X": "1"}
    run(installation.interpreter, "-I", "-S", "-c", "pass", env=env, check=False)
    assert bitten(mark), "the poison does not work: the test would prove nothing"
    for name in ("nvc-cli", *HOOKS):
        assert variable not in installation.report(program=name, env=env)["env"]
        assert not bitten(mark)


def test_python_variables_do_not_reach_the_interpreter(installation: Installation, scratch: str) -> None:
    hostile = os.path.join(scratch, "hostile")
    mark = os.path.join(scratch, "bitten")
    os.makedirs(hostile)
    for name in ("sitecustomize", "usercustomize", "os", "nvc_cli", "start"):
        with open(os.path.join(hostile, f"{name}.py"), "w", encoding="utf-8") as out:
            out.write(f"open({mark!r}, 'w').close()\n")
    env = {
        "PYTHONPATH": hostile,
        "PYTHONSTARTUP": os.path.join(hostile, "start.py"),
        "PYTHONHOME": hostile,
        "PYTHONINSPECT": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONPYCACHEPREFIX": hostile,
        "PYTHONUSERBASE": hostile,
    }
    run(sys.executable, "-c", "pass", env={"PYTHONPATH": hostile}, check=False)
    assert bitten(mark), "the poison does not work: the test would prove nothing"
    for name in ("nvc-cli", *HOOKS):
        report = installation.report(program=name, env=env)
        assert not bitten(mark)
        assert hostile not in "".join(report["path"])
        assert report["flags"] == [1, 1, 1]


def test_code_is_never_taken_from_the_working_directory(installation: Installation, scratch: str) -> None:
    cwd = os.path.join(scratch, "cwd")
    mark = os.path.join(scratch, "bitten")
    for package in ("nvc", "nvc_cli", "nvc_hooks", "lib/nvc/python/nvc_cli", "bin"):
        os.makedirs(os.path.join(cwd, package))
        for name in ("__init__.py", "boot.py"):
            with open(os.path.join(cwd, package, name), "w", encoding="utf-8") as out:
                out.write(f"open({mark!r}, 'w').close()\n")
    for name in ("sitecustomize.py", "json.py", "pyvenv.cfg", "lib/nvc/launch.conf"):
        with open(os.path.join(cwd, name), "w", encoding="utf-8") as out:
            out.write(f"open({mark!r}, 'w').close()\n")
    os.chmod(cwd, 0o777)
    for name in ("nvc-cli", *HOOKS):
        relative = os.path.relpath(installation.program(name), cwd)
        report = installation.report(executable=relative, cwd=cwd)
        assert not bitten(mark)
        assert report["cwd"] == ("/" if name in HOOKS else cwd)
        assert report["path"][-2:] == [installation.python, installation.site]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_gets_a_fixed_environment(installation: Installation, name: str) -> None:
    env = {"PATH": "/evil", "HOME": "/root", "TERM": "xterm", "NVC_CONFIG": "/evil", "LANG": "de_DE.UTF-8"}
    assert installation.report(program=name, env=env)["env"] == FIXED
    assert installation.report(program=name, env={})["env"] == FIXED


def test_the_cli_gets_an_allow_list(installation: Installation) -> None:
    kept = {
        "PATH": "/opt/bin:/usr/bin",
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "40",
        "NO_COLOR": "1",
        "CLICOLOR_FORCE": "1",
        "LANG": "C.UTF-8",
        "HOME": "/home/u",
        "XDG_RUNTIME_DIR": "/run/user/1000",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
        "NVC_TRACE": "1",
        "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT": "json",
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
        "DRY_RUN": "true",
        "NVC_LONG": "x" * 4096,
        "_NVC_CLI_COMPLETE": "bash_complete",
        "COMP_WORDS": "nvc-cli\nconfigure\n--pid 1",
        "COMP_CWORD": "1",
    }
    dropped = {
        "GCONV_PATH": "/evil",
        "LOCPATH": "/evil",
        "MALLOC_CHECK_": "3",
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "OPENSSL_CONF": "/evil",
        "BASH_ENV": "/evil",
        "HTTP_PROXY": "evil",
        "PATHS": "x",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "DRIVER_ROOT": "relative",
        "NVC_": "no name",
        "NVC_a-b/c": "x",
        "NVC_TOO_LONG": "x" * 4097,
    }
    assert installation.report(env={**kept, **dropped})["env"] == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LANG", "../../evil"),
        ("LC_ALL", "a/b"),
        ("TERM", "x" * 65),
        ("TERM", "/evil"),
        ("HOME", "relative"),
        ("XDG_RUNTIME_DIR", ""),
        ("COLUMNS", "1" * 17),
        ("COMP_WORDS", "x" * 16385),
        ("PATH", "x" * 4097),
    ],
)
def test_a_value_of_the_wrong_shape_is_dropped(installation: Installation, name: str, value: str) -> None:
    assert installation.report(env={name: value})["env"] == FIXED


def test_the_environment_is_bounded_and_has_no_duplicates(installation: Installation) -> None:
    many = {f"NVC_{number}": "x" for number in range(500)}
    env = installation.report(env=many)["env"]
    assert 50 < len(env) < 100 and env["PATH"] == FIXED_PATH and env["LC_ALL"] == "C.UTF-8"
    # execve(2) takes lists that no dictionary can hold: two of a kind, entries without a name or a value.
    read, write = os.pipe()
    lines = [
        b"PATH=/first",
        b"PATH=/second",
        b"NVC_A=1",
        b"NVC_A=2",
        b"=x",
        b"NVC_B",
        b"PATH",
        b"LANG=C.UTF-8",
    ]
    helper = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None); array = ctypes.c_char_p * 9\n"
        f"os.dup2({write}, 1); exe = {installation.program()!r}.encode()\n"
        f"libc.execve(exe, (ctypes.c_char_p * 2)(exe), array(*{lines!r}))"
    )
    run(sys.executable, "-c", helper, pass_fds=[write])
    os.close(write)
    with os.fdopen(read) as reply:
        assert json.load(reply)["env"] == {"PATH": "/first", "NVC_A": "1", "LANG": "C.UTF-8"}


def test_descriptors_are_closed(installation: Installation) -> None:
    read, write = os.pipe()
    for name in ("nvc-cli", *HOOKS):
        report = installation.report(program=name, pass_fds=[read, write])
        assert {int(fd) for fd in report["fds"]} <= {0, 1, 2, 3}  # 3: the probe's own listing
        assert "pipe" not in report["fds"].get("3", "")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_descriptors_are_always_open(installation: Installation, scratch: str, closed: str) -> None:
    out = os.path.join(scratch, "report")
    run("/bin/sh", "-c", f'exec "$0" --to "$1" {closed}', installation.program(), out)
    with open(out, encoding="utf-8") as text:
        report = json.load(text)
    assert {"0", "1", "2"} <= set(report["fds"]) and report["fresh"] > 2
    for number, operator in (("0", "<&-"), ("1", " >&-"), ("2", "2>&-")):
        if operator in f" {closed}":
            assert report["fds"][number] == "/dev/null"


def test_signals_and_umask_are_reset(installation: Installation) -> None:
    """32 is one of the two signals that libc keeps for itself, which posix_spawn(3) sets to ignored."""
    libc = ctypes.CDLL(None)
    ignore = (ctypes.c_ulong * 8)(signal.SIG_IGN)
    rt_sigaction = {"x86_64": 13, "aarch64": 134}[os.uname().machine]

    def spoil() -> None:
        os.umask(0)
        assert libc.syscall(rt_sigaction, 32, ignore, None, 8) == 0
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN + 3):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    for name in ("nvc-cli", *HOOKS):
        report = installation.report(program=name, preexec_fn=spoil, restore_signals=False)
        # The interpreter itself ignores SIGPIPE and SIGXFSZ.
        own = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
        assert report["ignored"] & ~own == 0
        assert report["blocked"] == 0
        assert report["umask"] == 0o022


def test_arguments_pass_unchanged(installation: Installation) -> None:
    hostile = ["--", "", "-c", "import os", "a\nb", "$(id)", "'];import os#", "--help", "ü"]
    assert installation.report(*hostile)["argv"] == hostile
    assert installation.report(b"\xff\xfe")["argv"] == ["\udcff\udcfe"]


@pytest.mark.parametrize(
    ("called", "name", "package"),
    [
        ("nvc-cli", "nvc-cli", "nvc_cli"),
        ("nvidia-container-cli", "nvidia-container-cli", "nvc_cli"),
        ("nvidia-ctk", "nvidia-ctk", "nvc_cli"),
        ("nvc-hook", "nvc-hook", "nvc_hooks"),
        ("nvidia-container-runtime-hook", "nvc-hook", "nvc_hooks"),
        ("nvidia-container-toolkit", "nvc-hook", "nvc_hooks"),
        ("nvc-cdi-hook", "nvc-cdi-hook", "nvc_hooks"),
        ("nvidia-cdi-hook", "nvc-cdi-hook", "nvc_hooks"),
        ("../../../evil/nvc-hook", "nvc-hook", "nvc_hooks"),
        ("something", "nvc-cli", "nvc_cli"),
    ],
)
def test_the_name_decides(installation: Installation, called: str, name: str, package: str) -> None:
    done = run("/bin/bash", "-c", f'exec -a {called} "$0"', installation.program())
    report = json.loads(done.stdout)
    assert (report["name"], report["package"]) == (name, package)
    assert report["path"][-2] == installation.python


def test_a_hook_whose_argv0_is_arbitrary_is_known_by_its_file(installation: Installation) -> None:
    """The `args` of a hook's entry are free text."""
    done = run("/bin/bash", "-c", 'exec -a prestart "$0"', installation.program("nvc-hook"))
    report = json.loads(done.stdout)
    assert (report["name"], report["env"]) == ("nvc-hook", FIXED)


def test_a_linked_launcher_finds_its_own_installation(installation: Installation, scratch: str) -> None:
    elsewhere = os.path.join(scratch, "elsewhere/bin")
    os.makedirs(elsewhere)
    link = os.path.join(elsewhere, "nvidia-container-runtime-hook")
    os.symlink(installation.program("nvc-cli"), link)
    report = installation.report(executable=link)
    assert (report["name"], report["path"][-2]) == ("nvc-hook", installation.python)


def test_secure_execution_is_treated_like_a_hook(installation: Installation) -> None:
    os.chown(installation.program(), 0, 65534)
    os.chmod(installation.program(), 0o2755)
    assert installation.report(env={**CLEAN_ENV, "NVC_A": "1", "HOME": "/root"})["env"] == FIXED


def test_the_staged_program_starts_under_poison(launcher: str, poison: Poison) -> None:
    library, mark = poison()
    done = run(launcher, "--version", env={"LD_PRELOAD": library, "PYTHONHOME": "/nowhere"})
    assert "nvc" in done.stdout or done.stdout.startswith("cli-version")
    assert not bitten(mark)

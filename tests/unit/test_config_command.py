"""`nvc-cli config`: what holds and why, one file changed with care, everything that is wrong with one."""

from __future__ import annotations

import functools
import json
import os
import stat
from typing import Any

import pytest
from support import run
from support.begun import Begun

from nvc.request.config.file import parse
from nvc.request.config.keys import KEYS
from nvc.request.config.origins import lines_of, settings

TEXT = """# of the operator
disable-require = true   # for now
[nvidia-container-cli]
no-cgroups = false
environment = []

[nvidia-container-runtime.modes."cdi"]
spec-dirs = [
    "/etc/cdi",
]
[nvc]
log = '''
/var/log/nvc
'''
timeout = 3 # seconds
"""


@pytest.fixture
def file(scratch: str) -> str:
    path = os.path.join(scratch, "config.toml")
    with open(path, "w", encoding="ascii") as out:
        out.write("# of the operator\n[nvc]\ntimeout = 3 # seconds\n")
    os.chmod(path, 0o640)
    return path


@pytest.fixture
def config(begun: Begun) -> Any:
    return functools.partial(begun, "config")


def read(path: str) -> str:
    with open(path, encoding="utf-8") as text:
        return text.read()


def test_lines() -> None:
    found = lines_of(TEXT)
    assert found["", "disable-require"] == 2
    assert found["nvidia-container-cli", "environment"] == 5
    assert found["nvidia-container-runtime.modes.cdi", "spec-dirs"] == 8
    assert found["nvc", "log"] == 12 and found["nvc", "timeout"] == 15


def test_defaults_are_what_a_file_of_them_says() -> None:
    """Each default, written down, is accepted and changes nothing."""
    from nvc.frontends.engines.files import tomltext

    text = ""
    for item in settings(b"", "")[0]:
        if item.effective:
            text = tomltext.assign(text, "", (*filter(None, item.table.split(".")), item.key), item.value)
    assert parse(text.encode(), "") == parse(b"", "")


def test_show_origin(config: Any, file: str) -> None:
    lines = config("show", "--origin", "--file", file).stdout.splitlines()
    assert f"nvc.timeout = 3.0  # {file}:3" in lines
    assert "nvc.inventory = true  # default" in lines
    assert config("show", "--file", file, "nvc.timeout").stdout == "nvc.timeout = 3.0\n"


def test_show_json(config: Any, file: str) -> None:
    document = json.loads(
        config("show", "--format", "json", "--file", file, "nvc.timeout", "nvc.log").stdout
    )
    assert document == {
        "file": file,
        "settings": [
            {"key": "nvc.log", "value": "", "origin": None, "line": None, "effective": True},
            {"key": "nvc.timeout", "value": 3.0, "origin": file, "line": 3, "effective": True},
        ],
    }


def test_dry_run_changes_nothing(config: Any, file: str) -> None:
    """The diff is the same; the line after it says which of the two it was."""
    before = read(file)
    tried = config("set", "--dry-run", "--file", file, "nvc.timeout", "20").stdout
    assert "+timeout = 20 # seconds" in tried and tried.endswith(f"\nwould write {file}\n")
    assert read(file) == before
    made = config("set", "--file", file, "nvc.timeout", "20").stdout
    assert made == tried.replace("would write", "wrote") and read(file) != before
    again = config("set", "--file", file, "nvc.timeout", "20")
    assert (again.stdout, again.stderr) == ("", f"nvc-cli: {file}: nothing to change\n")
    before = read(file)
    assert config("unset", "--dry-run", "--file", file, "nvc.timeout").stdout.endswith(
        f"would write {file}\n"
    )
    assert read(file) == before


def test_get(config: Any, file: str) -> None:
    """A text as it is, anything else as TOML; a default where the file says nothing."""
    assert config("get", "--file", file, "nvc.timeout").stdout == "3.0\n"
    assert config("get", "--file", file, "nvc.vgpu-variables").stdout == "obey\n"
    assert config("get", "--file", file, "nvidia-container-runtime.runtimes").stdout == '["runc", "crun"]\n'
    made = json.loads(config("get", "-o", "json", "--file", file, "nvc.timeout").stdout)
    assert made == {"key": "nvc.timeout", "value": 3.0, "origin": file, "line": 3, "effective": True}
    done = config("get", "--file", file, "nvc.tmeout", check=False)
    assert done.returncode == 1 and "the nearest is nvc.timeout" in done.stderr


def test_set_warns_of_what_it_brings_about(config: Any, file: str) -> None:
    assert config("set", "--file", file, "nvc.vgpu-cores-max", "20").stderr == ""
    said = config("set", "--file", file, "nvc.vgpu-cores", "30").stderr
    assert said.startswith("nvc-cli: warning: ") and "more than vgpu-cores-max" in said
    assert config("set", "--file", file, "nvc.timeout", "4").stderr == ""  # that was said already


WRONG = '[nvidia-container-runtime]\nmode = "magic"\n[nvidia-container-cli]\nno-cgroups = 1979-05-27\n'


def test_wrong_values_of_nvidias_tables_are_named(config: Any, file: str) -> None:
    """They concern who uses them: the file is shown and changed all the same, but not to another wrong value."""
    with open(file, "a", encoding="ascii") as out:
        out.write(WRONG)
    mode = f"nvc-cli: warning: {file}: [nvidia-container-runtime] mode: want one of "
    cgroups = f"nvc-cli: warning: {file}: [nvidia-container-cli] no-cgroups: want true or false; "
    done = config("show", "--file", file)
    assert 'nvidia-container-runtime.mode = "magic"\n' in done.stdout
    assert (
        'nvidia-container-cli.no-cgroups = "1979-05-27"\n' in done.stdout
        and "nvc.timeout = 3.0" in done.stdout
    )
    assert mode in done.stderr and cgroups in done.stderr and done.stderr.count("\n") == 2
    done = config("get", "--file", file, "nvc.timeout")
    assert done.stdout == "3.0\n" and mode in done.stderr

    done = config("set", "--file", file, "nvc.timeout", "20")
    assert "timeout = 20 # seconds" in read(file) and mode in done.stderr and cgroups in done.stderr
    before = read(file)
    done = config("set", "--file", file, "nvidia-container-runtime.mode", "cdl", check=False)
    assert done.returncode == 1 and "mode: want one of" in done.stderr and read(file) == before
    done = config("set", "--file", file, "nvidia-container-runtime.mode", "cdi")
    assert cgroups in done.stderr and mode not in done.stderr
    assert config("unset", "--file", file, "nvidia-container-cli.no-cgroups").stderr == ""


def test_a_new_file(config: Any, scratch: str) -> None:
    path = os.path.join(scratch, "etc/nvc/config.toml")
    config("set", "--file", path, "nvc.timeout", "20")
    assert read(path) == "[nvc]\ntimeout = 20\n" and stat.S_IMODE(os.stat(path).st_mode) == 0o644


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nvc.timeout", "0"), "more than 0"),
        (("nvc.timeout", "soon"), "want seconds"),
        (("nvc.tmeout", "3"), "the nearest is nvc.timeout"),
        (("foo", "3"), "unknown key: foo; `nvc-cli config show` lists all"),
        (("nvcd", "3"), "unknown key: nvcd; it is a table: its keys are metrics, web, "),
        (("nvc.vgpu-memory", "10gb"), "10gb"),
        (("nvc.timeout",), "Missing argument 'VALUE'"),
        (("--unset", "nvc.timeout"), "did you mean `nvc-cli config unset`?"),
    ],
)
def test_set_refuses(config: Any, file: str, words: tuple[str, ...], says: str) -> None:
    before = read(file)
    done = config("set", "--file", file, *words, check=False)
    assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1
    assert read(file) == before


def test_a_file_that_ends_too_early(config: Any, file: str) -> None:
    """Reading and changing it say the same, and where."""
    with open(file, "w", encoding="ascii") as out:
        out.write('# of the operator\n[nvc]\nlog = """\n')
    for words in (("check", file), ("set", "--file", file, "nvc.timeout", "9"), ("show", "--file", file)):
        done = config(*words, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and f"configuration error: parse: {file}: " in said, words
        assert "at line 3, where the file ends" in said, words


def test_a_driver_root_that_is_not_there(config: Any, file: str, scratch: str) -> None:
    """It may be made later, so it is taken; but that nobody finds a driver there is said."""
    name = "nvidia-container-cli.root"
    done = config("set", "--file", file, name, f"{scratch}/nothing")
    assert f"warning: {scratch}/nothing: no such directory: until there is one" in done.stderr
    assert config("set", "--file", file, name, scratch).stderr == ""


def test_who_may_not_write_is_shown_no_change(launcher: str, file: str, scratch: str) -> None:
    os.chmod(scratch, 0o755)
    os.chmod(file, 0o644)
    words = ("config", "set", "--file", file, "nvc.timeout", "9")
    done = run(launcher, *words, check=False, user=65534, group=65534, extra_groups=[])
    assert (done.returncode, done.stdout) == (1, "")
    assert f"permission error: write: {file}: only root can; run as root" in done.stderr
    dry = run(launcher, *words, "--dry-run", user=65534, group=65534, extra_groups=[])
    assert "+timeout = 9" in dry.stdout
    other = f"{scratch}/daemon.json"
    words = ("runtime", "configure", "--engine", "docker", "--config", other)
    done = run(launcher, *words, check=False, user=65534, group=65534, extra_groups=[])
    assert (done.returncode, done.stdout) == (1, "") and f"write: {other}: only root can" in done.stderr


def test_check_names_everything(config: Any, file: str) -> None:
    assert config("check", file).stdout == f"{file}: errors: 0, warnings: 0\n"
    with open(file, "w", encoding="ascii") as out:
        for table, keys in KEYS.items():
            out.write(f"[{table}]\n" if table else "")
            out.writelines(f"{key} = 1979-05-27\n" for key in keys)
        out.write("[nvc.more]\nx = 1\n[else]\ny = 1\n")
    done = config("check", file, check=False)
    count = sum(len(keys) for keys in KEYS.values())
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == f"{file}: errors: {count + 1}, warnings: 1"
    assert all(f"{key}: want" in done.stdout for keys in KEYS.values() for key in keys)
    os.chmod(file, 0o666)
    assert "writable by others" in config("check", file, check=False).stdout

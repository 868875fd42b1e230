"""The launcher refuses to run as root what others than root could have changed, and an odd launch.conf."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import CLEAN_ENV, EXPLORE, PATIENCE, examples, run
from support.launcher import Installation, sanitized

NOBODY = 65534


@pytest.fixture
def private_interpreter(installation: Installation, scratch: str) -> str:
    """A copy of the interpreter, so that its owner and mode can be changed."""
    copy = os.path.join(scratch, "interpreter/python3")
    os.makedirs(os.path.dirname(copy))
    shutil.copy(installation.interpreter, copy)
    installation.write_conf(f"interpreter {copy}\npath {installation.site}\n")
    return copy


def parts(installation: Installation, interpreter: str) -> dict[str, str]:
    """Everything whose owner and mode matter."""
    archive = os.path.join(installation.library, "hot.bin")
    with open(archive, "wb") as out:
        size = 12
        out.write(b"nvc\nanyN" + size.to_bytes(4, "little"))  # of no version of Python, so passed over
    return {
        "launch.conf": installation.conf,
        "interpreter": interpreter,
        "directory of the interpreter": os.path.dirname(interpreter),
        "code": installation.python,
        "package": os.path.join(installation.python, "nvc"),
        "package of the program": os.path.join(installation.python, "nvc_cli"),
        "extension": installation.extension,
        "archive": archive,
        "path line": installation.site,
        "directory above": installation.library,
        "prefix": installation.prefix,
    }


@pytest.mark.parametrize(
    "part",
    [
        "launch.conf",
        "interpreter",
        "directory of the interpreter",
        "code",
        "package",
        "package of the program",
        "extension",
        "archive",
        "path line",
        "directory above",
        "prefix",
    ],
)
def test_what_others_can_change_is_refused(
    installation: Installation, private_interpreter: str, part: str
) -> None:
    path = parts(installation, private_interpreter)[part]
    mode = os.stat(path).st_mode & 0o777
    installation.report()
    for extra in (0o020, 0o002):
        os.chmod(path, mode | extra)
        assert f"error: {path}: writable by others than root" in installation.refusal()
    os.chmod(path, mode)
    os.chown(path, NOBODY, 0)
    assert f"error: {path}: not owned by root" in installation.refusal()
    os.chown(path, 0, 0)
    installation.report()


def test_links_are_followed_before_they_are_judged(installation: Installation, scratch: str) -> None:
    """The staged tree links its code: it is the real directory, and those above it, that count."""
    elsewhere = os.path.join(scratch, "checkout")
    os.makedirs(elsewhere)
    shutil.move(os.path.join(installation.python, "nvc"), elsewhere)
    os.symlink(os.path.join(elsewhere, "nvc"), os.path.join(installation.python, "nvc"))
    installation.report()
    os.chmod(elsewhere, 0o777)
    assert f"error: {elsewhere}: writable by others" in installation.refusal()


def test_a_sticky_directory_above_protects_what_root_owns(installation: Installation, scratch: str) -> None:
    """Nobody can rename or remove root's entries in /tmp; but an entry of somebody else is not root's."""
    os.chmod(scratch, 0o1777)
    installation.report()
    os.chmod(scratch, 0o777)
    assert f"error: {scratch}: writable by others" in installation.refusal()
    os.chmod(scratch, 0o1777)
    os.chown(installation.prefix, NOBODY, 0)
    assert f"error: {installation.prefix}: not owned by root" in installation.refusal()


def test_a_sticky_directory_itself_is_refused(installation: Installation) -> None:
    """Anyone may add a module to it."""
    os.chmod(installation.site, 0o1777)
    assert f"error: {installation.site}: writable by others" in installation.refusal()


@pytest.mark.parametrize("user", [0, NOBODY])
def test_an_upgrade_that_replaces_files_meanwhile(installation: Installation, scratch: str, user: int) -> None:
    """dpkg renames a new file over the old one: a start finds one of them, and not neither."""
    with open(installation.conf, "rb") as conf:
        text = conf.read()
    stop = threading.Event()

    def upgrade() -> None:
        while not stop.is_set():
            with open(f"{installation.conf}.new", "wb") as new:
                new.write(text)
            os.rename(f"{installation.conf}.new", installation.conf)

    thread = threading.Thread(target=upgrade)
    thread.start()
    try:
        done = [installation.start(user=user) for _ in range(6)]
    finally:
        stop.set()
        thread.join()
    assert {(one.returncode, one.stderr) for one in done} == {(0, "")}


def test_a_user_runs_what_is_theirs(installation: Installation) -> None:
    for path, _, files in os.walk(installation.prefix):
        for name in (".", *files):
            os.chown(os.path.join(path, name), 1234, 1234)
    assert "not owned by root" in installation.refusal()
    assert installation.report(user=1234, group=1234, extra_groups=[])["uid"] == 1234


def test_root_of_a_user_namespace_trusts_unmapped_owners(installation: Installation) -> None:
    """A rootless hook: the installation belongs to a root whom the namespace does not know."""
    unshare = ["/usr/bin/unshare", "--user", "--map-root-user"]

    def start() -> subprocess.CompletedProcess[str]:
        return run(*unshare, installation.program(), check=False, user=1234, group=1234, extra_groups=[])

    done = start()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["uid"] == 0
    os.chmod(installation.site, 0o777)
    done = start()
    assert done.returncode == 1 and f"error: {installation.site}: writable by others" in done.stderr


@pytest.mark.parametrize("missing", ["conf", "extension", "interpreter", "site", "python"])
def test_a_missing_part_is_named(installation: Installation, private_interpreter: str, missing: str) -> None:
    path = private_interpreter if missing == "interpreter" else getattr(installation, missing)
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    assert installation.refusal() == f"nvc-cli: initialization error: {path}: No such file or directory"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no `interpreter` line"),
        ("path {site}\n", "no `interpreter` line"),
        ("interpreter {python}\ninterpreter {python}\n", "an unknown or repeated key"),
        ("interpreter {python}\nlibrary /x\n", "an unknown or repeated key"),
        ("interpreter {python}\nhello\n", "a line is neither"),
        ("interpreter python3\n", "a path is not absolute"),
        ("interpreter {python}\npath \n", "a path is not absolute"),
        ("interpreter {python}\npath nowhere/else\n", "lib/nvc/nowhere/else: No such file or directory"),
        ("interpreter {python}\npath /a'];import os;['\n", "a path is not absolute or has"),
        ("interpreter {python}\npath /a\\x27\n", "a path is not absolute or has"),
        ("interpreter {python}\npath /a\tb\n", "a path is not absolute or has"),
        ("interpreter {python}\npath /ü\n", "a path is not absolute or has"),
        ("interpreter {python}\n" + "path {site}\n" * 9, "too many `path` lines"),
        ("interpreter {python}\n#" + "x" * 4096, "the file is too large"),
        ("interpreter {python}\n\0", "the file holds a NUL byte"),
        ("interpreter /" + "x" * 4080 + "\n", "File name too long"),
    ],
)
def test_an_odd_conf_is_refused(installation: Installation, text: str, cause: str) -> None:
    text = text.replace("{python}", installation.interpreter).replace("{site}", installation.site)
    installation.write_conf(text)
    assert cause in installation.refusal()


def test_a_relative_path_begins_beside_the_conf(installation: Installation, scratch: str) -> None:
    """And is judged as any other: pip's packages say so where their dependencies are."""
    installation.write_conf(f"interpreter {installation.interpreter}\npath ../beside\n")
    beside = os.path.join(installation.prefix, "lib/beside")
    os.mkdir(beside)
    assert installation.report(cwd=scratch)["path"][-1] == beside
    os.chmod(beside, 0o777)
    assert f"error: {beside}: writable by others" in installation.refusal()


def test_comments_and_blank_lines_are_allowed(installation: Installation) -> None:
    installation.write_conf(f"# which Python\n\ninterpreter {installation.interpreter}")
    assert installation.report()["path"][-1] == installation.python


def test_a_prefix_that_python_could_misread_is_refused(built_launcher: str, scratch: str) -> None:
    odd = Installation(os.path.join(scratch, "a'];import os;['b"), built_launcher, "/usr/bin/python3")
    assert "plain ASCII" in odd.refusal()


def test_an_interpreter_that_cannot_run_is_reported(installation: Installation) -> None:
    installation.write_conf(f"interpreter {installation.conf}\n")
    assert "Permission denied" in installation.refusal()


@pytest.fixture(scope="module")
def tried(built_launcher: str) -> Iterator[Installation]:
    """An installation whose launcher, when tests explore, aborts on every memory error and undefined operation."""
    launcher = sanitized() if EXPLORE else built_launcher
    with tempfile.TemporaryDirectory(prefix="nvc-test-") as directory:
        os.chmod(directory, 0o755)
        yield Installation(os.path.join(directory, "prefix"), launcher, "/bin/true")


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["interpreter /bin/true", "path /usr", "path /", "interpreter ", "path", "#", " ", ""]
        ),
        st.text(max_size=40).map("path /".__add__),
        st.text(max_size=40),
    ).map(lambda line: line.encode("utf-8", "replace")),
    max_size=12,
).map(b"\n".join)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(conf=st.one_of(LINES, st.binary(max_size=5000)))
def test_no_conf_breaks_the_launcher(tried: Installation, conf: bytes) -> None:
    tried.write_conf(conf)
    done = tried.start()
    if done.returncode != 0:
        assert done.returncode == 1
        assert done.stderr.startswith("nvc-cli: initialization error: ") and done.stderr.count("\n") == 1


ENTRIES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"PATH=/x", b"PATH", b"=", b"", b"NVC_=1", b"NVC_A=1", b"LANG=" + b"x" * 65, b"LC_ALL="]
        ),
        st.binary(max_size=30).map(lambda value: b"NVC_" + value.replace(b"\0", b"")),
        st.binary(max_size=30).map(lambda value: value.replace(b"\0", b"")),
    ),
    max_size=150,
)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(entries=ENTRIES)
def test_no_environment_breaks_the_launcher(tried: Installation, entries: list[bytes]) -> None:
    """What comes out is bounded, and has known names only."""
    tried.write_conf(f"interpreter {os.path.realpath('/usr/bin/python3')}\n")
    helper = (
        "import ctypes, sys; lines = sys.stdin.buffer.read().split(b'\\0'); libc = ctypes.CDLL(None)\n"
        f"exe = {tried.program()!r}.encode()\n"
        "libc.execve(exe, (ctypes.c_char_p * 2)(exe), (ctypes.c_char_p * (len(lines) + 1))(*lines))"
    )
    command = ["/usr/bin/python3", "-I", "-S", "-c", helper]
    done = subprocess.run(command, input=b"\0".join(entries), capture_output=True, env=CLEAN_ENV, timeout=PATIENCE)
    assert done.returncode == 0 and not done.stderr, done.stderr
    env = json.loads(done.stdout)["env"]
    assert len(env) < 100
    assert {name for name in env if not name.startswith("NVC_")} <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE"}

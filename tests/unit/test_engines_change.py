"""Changes of files and their way back: byte for byte, or key by key where others have changed the file since."""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable

import pytest

from nvc.frontends.engines import EngineError, FileEdit, Key, link
from nvc.frontends.engines.files import change, tomltext, undo

KEYS = (Key(("runtimes", "nvc"), {"path": "/p"}), Key(("default-runtime",), "nvc"))
SOMEBODY = 1234
ORIGINAL = '{\n  "debug": true,\n  "default-runtime": "runc"\n}'


@pytest.fixture
def path(tmp_path: object) -> str:
    return os.path.join(os.path.realpath(str(tmp_path)), "etc/docker/daemon.json")


def write(path: str, text: str, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, mode)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def configure(path: str, *keys: Key, form: str = "json", content: str = "") -> change.Change:
    made = change.configure(FileEdit(path, form, keys, content))
    change.make(made)
    return made


def take_out(path: str, form: str = "json") -> change.Change:
    made = change.remove(path, form)
    assert made is not None
    change.make(made)
    assert change.remove(path, form) is None
    return made


def files(path: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(path)))


def test_a_file_and_directories_that_were_not_there(path: str) -> None:
    configure(path, *KEYS)
    assert files(path) == ["daemon.json", "daemon.json.nvc-undo"]
    take_out(path)
    assert not os.path.exists(os.path.dirname(os.path.dirname(path)))


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_others_have_changed(path: str, there: bool) -> None:
    """Their change stays, ours goes, and what was before comes back."""
    if there:
        write(path, ORIGINAL)
    configure(path, *KEYS)
    write(path, read(path).replace("{\n", '{\n    "mtu":  1400,\n', 1))
    take_out(path)
    assert json.loads(read(path))["mtu"] == 1400 and "nvc" not in read(path)
    assert ('"default-runtime": "runc"' in read(path)) is there


def test_a_change_between_two_of_ours(path: str) -> None:
    write(path, ORIGINAL)
    configure(path, KEYS[0])
    write(path, read(path).replace("true", "false"))
    configure(path, KEYS[1])
    take_out(path)
    assert read(path) == ORIGINAL.replace("true", "false")


def test_a_link_is_followed(path: str) -> None:
    real = path + ".real"
    write(real, ORIGINAL)
    os.symlink(real, path)
    configure(path, *KEYS)
    assert os.path.islink(path) and "nvc" in read(real)
    take_out(path)
    assert os.path.islink(path) and read(real) == ORIGINAL


@pytest.mark.parametrize("of_directory", [False, True])
def test_a_link_of_somebody_else_is_refused(path: str, of_directory: bool) -> None:
    victim = os.path.join(os.path.dirname(os.path.dirname(path)), "victim/daemon.json")
    write(victim, ORIGINAL)
    link_path, target = (os.path.dirname(path), os.path.dirname(victim)) if of_directory else (path, victim)
    os.makedirs(os.path.dirname(link_path), exist_ok=True)
    os.symlink(target, link_path)
    os.lchown(link_path, SOMEBODY, SOMEBODY)
    for call in (lambda: configure(path, *KEYS), lambda: change.remove(path, "json"), lambda: change.read(path)):
        with pytest.raises(EngineError, match=f"{link_path}: a link of user {SOMEBODY}; remove it"):
            call()
    assert read(victim) == ORIGINAL and files(victim) == ["daemon.json"]


def test_a_link_that_is_put_there_meanwhile_is_refused(path: str) -> None:
    """Between the look and the change, by whoever owns a directory above."""
    victim = os.path.join(os.path.dirname(os.path.dirname(path)), "victim")
    os.mkdir(os.path.dirname(os.path.dirname(path)))
    os.mkdir(victim)
    made = change.configure(FileEdit(path, "json", KEYS))
    os.symlink(victim, os.path.dirname(path))
    with pytest.raises(EngineError, match="make directory: .*not a directory"):
        change.make(made)
    assert os.listdir(victim) == []


@pytest.mark.parametrize(("owner", "mode"), [(SOMEBODY, 0o644), (0, 0o666)])
@pytest.mark.parametrize("place", [undo.record_of, undo.backup_of])
def test_records_of_somebody_else_are_refused(
    path: str, place: Callable[[str], str], owner: int, mode: int
) -> None:
    write(path, ORIGINAL)
    configure(path, *KEYS)
    os.chown(place(path), owner, owner)
    os.chmod(place(path), mode)
    for call in (lambda: configure(path, KEYS[0]), lambda: change.remove(path, "json")):
        with pytest.raises(EngineError, match="others could have written it; nothing was undone"):
            call()


def test_a_backup_and_a_record_are_ours_whoever_owns_the_file(path: str) -> None:
    """So they count afterwards; and nobody reads them who could not read the file: both have all of it."""
    write(path, ORIGINAL, 0o660)
    os.chown(path, SOMEBODY, SOMEBODY)
    configure(path, *KEYS)
    for kept in map(os.stat, (undo.backup_of(path), undo.record_of(path))):
        assert (kept.st_uid, kept.st_mode & 0o777) == (os.geteuid(), 0o640)
    take_out(path)
    assert read(path) == ORIGINAL
    assert (os.stat(path).st_uid, os.stat(path).st_mode & 0o777) == (SOMEBODY, 0o660)


def test_only_directories_around_the_file_are_removed(path: str) -> None:
    other = os.path.join(os.path.dirname(os.path.dirname(path)), "other")
    configure(path, *KEYS)
    os.mkdir(other)
    with open(undo.record_of(path), encoding="utf-8") as file:
        record = json.load(file)
    write(undo.record_of(path), json.dumps({**record, "directories": [other]}))
    with pytest.raises(EngineError, match="not written by this program"):
        change.remove(path, "json")
    assert os.path.isdir(other)


def test_a_user_who_is_not_root() -> None:
    """As one who runs rootless Docker, over a link of root and one of his own."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        os.mkdir(f"{base}/home")
        os.chown(f"{base}/home", SOMEBODY, SOMEBODY)
        os.symlink("home", f"{base}/of-root")
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
                os.symlink("real.json", f"{base}/home/daemon.json")
                write(f"{base}/home/real.json", ORIGINAL)
                configure(f"{base}/of-root/daemon.json", *KEYS)
                assert '"nvc"' in read(f"{base}/home/real.json")
                take_out(f"{base}/of-root/daemon.json")
                assert read(f"{base}/home/real.json") == ORIGINAL
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert sorted(os.listdir(f"{base}/home")) == ["daemon.json", "real.json"]


def test_a_file_of_ours_alone(path: str) -> None:
    configure(path, content="{}\n")
    configure(path, content='{"new": 1}\n')
    take_out(path)
    assert not os.path.exists(path)
    write(path, "{}")
    with pytest.raises(EngineError, match="already exists"):
        configure(path, content='{"new": 1}\n')
    assert read(path) == "{}"


def test_a_file_of_ours_that_others_have_changed(path: str) -> None:
    configure(path, content="{}\n")
    write(path, "{ }\n")
    with pytest.raises(EngineError, match="was changed since nvc wrote it"):
        change.remove(path, "json")


def test_files_that_cannot_be_read(path: str) -> None:
    os.makedirs(path)
    with pytest.raises(EngineError, match="is a directory|not a regular file"):
        change.read(path)
    os.rmdir(path)
    os.mkfifo(path)
    with pytest.raises(EngineError, match="not a regular file"):
        change.read(path)
    os.unlink(path)
    with open(path, "wb") as out:
        out.write(b'{\n"a": "\xff"}')
    with pytest.raises(EngineError, match="line 2: not UTF-8"):
        change.document_of(path, "json")


@pytest.mark.parametrize(
    ("base", "one", "other", "merged"),
    [
        ("a\nb\nc\n", "a\nb\nc\nd\n", "a\nc\n", "a\nc\nd\n"),
        ("a\nb\n", "a\nb\nx\n", "a\n", "a\nx\n"),
        ("a\nb\nc\n", "a\nX\nc\n", "a\nY\nc\n", None),
        ("a\nb\nc\n", "a\nb\nc\n", "a\n", "a\n"),
        ("a\n", "a\nx\n", "a\ny\n", None),
        ("a\nb\nc\nd\n", "a\nb\nx\nc\nd\n", "a\nd\n", None),
    ],
)
def test_merge(base: str, one: str, other: str, merged: str | None) -> None:
    assert change.merge(base, one, other) == merged


@pytest.mark.parametrize(
    ("text", "where"), [("a = [\n1,,\n]", "line 2"), ("[t\n", "line 1"), ("a = 1\na = 2\n", "a")]
)
def test_where_it_is_no_toml(text: str, where: str) -> None:
    with pytest.raises(EngineError) as caught:
        tomltext.load(text, "/f")
    assert where in str(caught.value) and "left as it was" not in str(caught.value).split(";")[0]


def test_toml_that_has_something_else_there() -> None:
    with pytest.raises(EngineError, match="is not a table"):
        tomltext.assign("a = 1\n", "/f", ("a", "b"), 1)


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o775, 0), (0o1777, 0), (0o755, 65534)])
def test_no_link_where_others_can_write(tmp_path: object, mode: int, owner: int) -> None:
    """Root would run what they put there. Nor is a file of theirs nvc's by its name."""
    mine, theirs = (os.path.join(str(tmp_path), name) for name in ("mine", "theirs"))
    for directory in (mine, theirs):
        os.mkdir(directory, 0o755)
    os.chmod(theirs, mode)
    os.chown(theirs, owner, owner)
    with pytest.raises(EngineError, match="others than root can write there"):
        link.make(f"{theirs}/nvidia-hook", "/usr/bin/nvc-hook")
    assert os.listdir(theirs) == []
    write(f"{theirs}/nvc-hook", "")
    os.symlink(f"{theirs}/nvc-hook", f"{mine}/nvidia-hook")
    assert not link.leads_to(f"{mine}/nvidia-hook", "/usr/bin/nvc-hook")
    os.symlink(f"{mine}/nvc-hook", f"{theirs}/nvidia-hook")
    assert not link.leads_to(f"{theirs}/nvidia-hook", "/usr/bin/nvc-hook")


def test_a_link_or_file_of_others(tmp_path: object) -> None:
    path, target = (os.path.join(str(tmp_path), name) for name in ("nvidia-hook", "nvc-hook"))
    os.symlink(target, path)
    write(target, "")
    assert link.leads_to(path, target)
    os.chmod(target, 0o775)
    assert not link.leads_to(path, target)
    os.chmod(target, 0o755)
    os.lchown(path, 65534, 65534)
    assert not link.leads_to(path, target)


def test_links(tmp_path: object) -> None:
    path, target = os.path.join(str(tmp_path), "bin/nvidia-hook"), "/usr/bin/nvc-hook"
    assert link.state(path, target) == "missing"
    link.make(path, target)
    link.make(path, target)
    assert os.readlink(path) == target
    assert link.remove(path, target) and not link.remove(path, target)
    os.symlink("/usr/bin/of-nvidia", path)
    with pytest.raises(EngineError, match="leads to /usr/bin/of-nvidia"):
        link.make(path, target)
    assert not link.remove(path, target) and os.path.islink(path)
    os.unlink(path)
    write(path, "")
    with pytest.raises(EngineError, match="already exists"):
        link.make(path, target)

"""What others have written or removed stays so: no change of a file loses it, and no way back."""

from __future__ import annotations

import errno
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator

import pytest

from nvc.frontends.engines import EngineError, FileEdit, Key
from nvc.frontends.engines.files import change, tomltext, undo

KEYS = (Key(("runtimes", "nvc"), {"path": "/p"}), Key(("default-runtime",), "nvc"))
ORIGINAL = '{\n  "debug": true,\n  "default-runtime": "runc"\n}'


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield f"{os.path.realpath(directory)}/daemon.json"


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def configure(path: str, *keys: Key) -> None:
    change.make(change.configure(FileEdit(path, "json", keys or KEYS)))


def take_out(path: str) -> None:
    made = change.remove(path, "json")
    assert made is not None
    change.make(made)


def full_at(path: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
    """Do a call while the disk has no room for the file `path`."""

    def full(where: str, *rest: object) -> None:
        if where == path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(where, *rest)  # type: ignore[arg-type]

    replace = change.place.replace
    with monkeypatch.context() as patched, pytest.raises(EngineError, match="no space left"):
        patched.setattr(change.place, "replace", full)
        call()


#: For acl(5): the group may read, a user read and write, and so the mode shows what the mask is for the group's.
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in ((1, 6, -1 % 2**32), (2, 6, 1234), (4, 4, -1 % 2**32), (16, 6, -1 % 2**32), (32, 0, -1 % 2**32))
)


def files(path: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(path)))


def test_a_backup_of_a_change_that_was_cut_short(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full behind the backup. What others then wrote is what comes back."""

    write(path, "{}")
    full_at(undo.record_of(path), monkeypatch, lambda: configure(path))
    assert read(path) == read(undo.backup_of(path)) == "{}"
    write(path, ORIGINAL)
    configure(path)
    take_out(path)
    assert read(path) == ORIGINAL and files(path) == ["daemon.json"]


@pytest.mark.parametrize("there", [True, False])
def test_what_somebody_writes_meanwhile_is_kept(path: str, there: bool) -> None:
    """An engine is asked between the look and the change, which can take half a minute."""
    if there:
        write(path, ORIGINAL)
    made = change.configure(FileEdit(path, "json", KEYS))
    write(path, '{"mtu": 1400}')
    with pytest.raises(EngineError, match="has changed it meanwhile"):
        change.make(made)
    assert read(path) == '{"mtu": 1400}' and files(path) == ["daemon.json"]
    configure(path)
    undone = change.remove(path, "json")
    assert undone is not None
    write(path, read(path).replace("1400", "9000"))
    with pytest.raises(EngineError, match="has changed it meanwhile"):
        change.make(undone)
    take_out(path)
    assert json.loads(read(path)) == {"mtu": 9000}


@pytest.mark.parametrize("others", [False, True])
def test_a_second_change_that_was_cut_short(path: str, others: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record tells of values that the file has not: those of the first are nvc's as well."""
    write(path, ORIGINAL)
    configure(path, KEYS[0])
    second = Key(("runtimes", "nvc"), {"path": "/new"}), KEYS[1], Key(("features", "cdi"), True)
    full_at(path, monkeypatch, lambda: configure(path, *second))
    assert '"/p"' in read(path) and "/new" in read(undo.record_of(path))
    if others:
        write(path, read(path).replace("true", "false"))
    made = change.remove(path, "json")
    assert made is not None and made.notes == ()
    change.make(made)
    assert json.loads(read(path)) == {**json.loads(ORIGINAL), "debug": not others}


def test_an_access_control_list(path: str) -> None:
    """Without it, the group would have what the mask allows: to write, and so to be root by dockerd."""
    write(path, ORIGINAL)
    os.chmod(path, 0o640)
    os.setxattr(path, "system.posix_acl_access", ACL)
    configure(path)
    assert os.getxattr(path, "system.posix_acl_access") == ACL and os.stat(path).st_mode & 0o777 == 0o660
    take_out(path)
    assert os.getxattr(path, "system.posix_acl_access") == ACL and read(path) == ORIGINAL


@pytest.mark.parametrize("mounted", [False, True])
def test_engines_see_no_file_that_is_not_whole(path: str, mounted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRI-O reads every file of a directory of drop-ins: also one that nvc, when it was killed, has left there."""
    drop_in = f"{os.path.dirname(path)}/crio.conf.d/99-nvc.conf"
    key = Key(("crio", "runtime", "default_runtime"), "nvc")
    seen = []

    def fsync(fd: int) -> None:
        seen.append(os.listdir(os.path.dirname(drop_in)))

    def rename(one: str, other: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        if src_dir_fd != dst_dir_fd:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.rename(one, other, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr("nvc.base.files.os.fsync", fsync)
    if mounted:
        os.mkdir(os.path.dirname(drop_in))
        monkeypatch.setattr("nvc.base.files.os.rename", rename)
    change.make(change.configure(FileEdit(drop_in, "toml", (key,))))
    assert os.listdir(os.path.dirname(drop_in)) == ["99-nvc.conf"]
    assert seen and (mounted or set(map(tuple, seen)) == {(), ("99-nvc.conf",)})
    assert files(path) == ["99-nvc.conf.nvc-undo", "crio.conf.d"]


RUNTIME = Key(("plugins", "cri", "nvc"), {"runtime_type": "v2", "options": {"BinaryName": "/p"}})


def changed_by_others(path: str, before: str, more: str, *keys: Key) -> tuple[str, tuple[str, ...]]:
    """What a file says, and what is told, when `more` was written behind our keys and these are taken out."""
    if before:
        write(path, before)
    change.make(change.configure(FileEdit(path, "toml", keys)))
    write(path, read(path) + more)
    made = change.remove(path, "toml")
    assert made is not None
    change.make(made)
    return read(path), made.notes


def test_a_line_of_others_keeps_its_table(path: str) -> None:
    """It was written for ours: without our lines it would be one of the table above."""
    text, notes = changed_by_others(path, "[metrics]\naddress = ''\n", "SystemdCgroup = true\n", RUNTIME)
    assert "nvc was changed since nvc wrote it: left as it is" in notes[0]
    assert tomltext.load(text, path) == {
        "metrics": {"address": ""},
        "plugins": {"cri": {"nvc": {"runtime_type": "v2", "options": {"BinaryName": "/p", "SystemdCgroup": True}}}},
    }


@pytest.mark.parametrize("more", ["", "[debug]\nlevel = 'info'\n", "SystemdCgroup = true\n"])
def test_a_version_stays_with_what_it_is_of(path: str, more: str) -> None:
    """containerd takes a file without one for version 1, in which plugins have other names."""
    keys = Key(("version",), 2), RUNTIME
    if not more:
        change.make(change.configure(FileEdit(path, "toml", keys)))
        made = change.remove(path, "toml")
        assert made is not None and made.after is None
        return
    text, _ = changed_by_others(path, "", more, *keys)
    document = tomltext.load(text, path)
    assert document["version"] == 2 and ("nvc" in text) is ("Systemd" in more) and len(document) == 2


#: TOML in an order in which tomlkit does not find all tables again.
SCATTERED = """version = 2
[metrics]
[plugins.cri.registry]
k = 1
[plugins.x]
[plugins.cri.containerd.runtimes]
k = 1
[grpc]
[plugins.cri.registry.mirrors]
k = 1
[plugins.cri]
k = 1
"""


def test_tables_in_any_order(path: str) -> None:
    """Lines are taken out where keys could not be."""
    place = ("plugins", "cri", "containerd")
    keys = (Key((*place, "runtimes", "nvc"), {"options": {"a": 1}}), Key((*place, "default"), "nvc"))
    write(path, SCATTERED)
    change.make(change.configure(FileEdit(path, "toml", keys)))
    others = (
        ("[plugins.cri.containerd.runtimes]\n", "[plugins]\nu = true\n"),
        ("[plugins.cri]\n", "[plugins.cri.containerd.runtimes.runc.options]\n"),
    )
    text, wanted = read(path), SCATTERED
    for before, more in others:
        text, wanted = (one.replace(before, more + before) for one in (text, wanted))
    write(path, text)
    made = change.remove(path, "toml")
    assert made is not None and made.after == wanted.encode() and made.notes == ()


def test_a_table_in_two_places_is_refused() -> None:
    with pytest.raises(EngineError, match="p.c.r.n cannot be changed where it stands"):
        tomltext.delete("[p.c.r]\n[t]\n[p.c.r.n]\nt = 2\n[m]\n[p.c.r.n.o]\nB = 1\n", "/f", ("p", "c", "r", "n"))


@pytest.mark.parametrize("together", [False, True])
def test_a_drop_in_by_the_name_of_the_file(path: str, together: bool) -> None:
    """Their records are one file: the second would have that of the first, and the first would stay for good."""
    drop_in = f"{os.path.dirname(path)}/conf.d/daemon.json"
    write(path, ORIGINAL)
    made = [change.configure(FileEdit(one, "json", KEYS)) for one in (drop_in, path)]
    change.make(made[0])
    with pytest.raises(EngineError, match=f"is not of {path}, but"):
        change.make(made[1]) if together else configure(path)
    assert read(path) == ORIGINAL and change.remove(path, "json") is None
    take_out(drop_in)
    assert files(path) == ["daemon.json"]

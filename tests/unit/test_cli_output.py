"""Numbers with their nouns; files that `vgpu report` and `vgpu trace` write: not those to which links lead."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvc.model.slices.entry import RegistryError
from nvc.model.slices.time_settings import TO_START
from nvc.slices.client import suspend as client
from nvc_cli import output, vgpu_control
from nvc_cli.output import OutputError, one_of_many
from nvc_cli.vgpu_report import check_writable, write_file


@pytest.mark.parametrize("there", [True, False])
def test_no_link_is_followed(tmp_path: Path, there: bool) -> None:
    victim, path = tmp_path / "victim", tmp_path / "shares.svg"
    if there:
        victim.write_text("kept", encoding="ascii")
    path.symlink_to(victim)
    with pytest.raises(OutputError, match="shares.svg"):
        check_writable(str(path))
    with pytest.raises(OutputError, match="shares.svg"):
        write_file(str(path), "drawn")
    assert path.is_symlink() and victim.exists() == there
    assert not there or victim.read_text(encoding="ascii") == "kept"


def test_the_trial_removes_nothing_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody puts under that name meanwhile stays."""
    path = tmp_path / "shares.svg"
    close = os.close

    def meanwhile(fd: int) -> None:
        close(fd)
        path.write_text("another's", encoding="ascii")

    monkeypatch.setattr("posix.close", meanwhile)
    check_writable(str(path))
    monkeypatch.undo()
    assert path.read_text(encoding="ascii") == "another's" and os.listdir(tmp_path) == [path.name]


def test_a_file_and_a_pipe(tmp_path: Path) -> None:
    path, pipe = tmp_path / "shares.svg", tmp_path / "pipe.svg"
    check_writable(str(path))
    assert not path.exists()
    for text in ("long", "new"):
        write_file(str(path), text)
        check_writable(str(path))
        assert path.read_text(encoding="ascii") == text
    os.mkfifo(pipe)
    check_writable(str(pipe))
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        write_file(str(pipe), "piped")
        assert reader.read() == b"piped"
    with pytest.raises(OutputError, match="no such file or directory"):
        check_writable(str(tmp_path / "none/shares.svg"))


def test_progress_of_a_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third second on, five times a second, and nothing of it stays."""
    now = 0.0
    said: list[str] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(
        client.nvcd, "answer", lambda *_, **__: {"state": "suspending" if now < 2.5 else "suspended"}
    )
    monkeypatch.setattr(output, "put", lambda fd, text: said.append(text))
    monkeypatch.setattr(output.posix, "isatty", lambda fd: True)
    monkeypatch.setattr(output, "columns", lambda fd: 80)
    monkeypatch.setitem(output.posix.environ, b"TERM", b"xterm")
    with vgpu_control._telling("web") as tell:
        client.suspend("key", "web", 600, tell)
    assert len(said) == 4 and said[0].startswith("\rslice web is suspending: 2 s") and said[-1] == "\r\x1b[K"


def test_nothing_is_on_its_way_that_nvcd_was_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.nvcd, "socket_path", lambda: str(tmp_path / "none"))
    with pytest.raises(RegistryError) as found:
        client.suspend("key", "web", 600, lambda *_: None)
    assert found.value.hint == TO_START


def test_documents_that_follow_each_other() -> None:
    assert one_of_many({"a": 1}, "yaml") == "---\na: 1\n" and one_of_many({"a": 1}, "json") == '{"a": 1}\n'

"""What TAB offers where it depends on the host: slices that live, slices that have ended, programs, commands."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest

from nvc.model.slices.entry import Entry
from nvc.slices.store.status import SliceStatus
from nvc_cli import completion
from nvc_cli.main import help_command


def tenant(name: str, *pids: int) -> SliceStatus:
    entry = Entry(name, f"/run/nvc/vgpu/{name}", 1, 1, "/rootfs", "/usr/lib", 0, ())
    return SliceStatus(entry, name, pids, (), (), name=name)


def values(found: list[Any]) -> list[str]:
    return [item.value for item in found]


def context(**params: object) -> Any:
    ctx = click.Context(help_command)
    ctx.params = params
    return ctx


def test_slices_that_live_and_slices_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = (tenant("web", 7), tenant("old"), tenant("train", 8, 9))
    monkeypatch.setattr(completion, "_tenants", lambda: everybody)
    parameter = click.Argument(["names"])
    assert values(completion.slices(context(), parameter, "")) == ["web", "train"]
    assert values(completion.slices(context(names=("web",)), parameter, "")) == ["train"]
    assert values(completion.gone_slices(context(), parameter, "")) == ["old"]


def test_programs_and_then_files(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("python-nvc", 0o755), ("python-text", 0o644), ("other", 0o755)):
        path = os.path.join(tmp_path, name)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        os.chmod(path, mode)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere:{tmp_path}")
    parameter = click.Argument(["words"])
    assert values(completion.programs(context(), parameter, "py")) == ["python-nvc"]
    for found in (
        completion.programs(context(words=("python-nvc",)), parameter, ""),
        completion.programs(context(), parameter, "./p"),
    ):
        assert [item.type for item in found] == ["file"]


def test_commands_after_help() -> None:
    parameter = click.Argument(["command"])
    assert values(completion.command_words(context(), parameter, "vg")) == ["vgpu"]
    assert values(completion.command_words(context(command=("vgpu",)), parameter, "to")) == ["top"]
    assert values(completion.command_words(context(command=("vgpu", "top")), parameter, "")) == []

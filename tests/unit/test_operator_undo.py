"""The image in the place of NVIDIA's toolkit container: what it says of the way back."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support import REPO


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("toolkit", f"{REPO}/packaging/kubernetes/toolkit.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "ENTER", ())
    return made


@pytest.mark.parametrize("runtime", ["", "/opt/other-runtime"])
def test_what_is_left_is_told(
    toolkit: ModuleType, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], runtime: str,
) -> None:  # fmt: skip
    """A runtime that somebody has changed stays: the log does not say that all are gone."""
    os.makedirs(tmp_path / "toolkit")
    os.symlink(f"{stage}/bin/nvc-cli", tmp_path / "toolkit/nvidia-container-cli")
    path = tmp_path / "daemon.json"
    path.write_text("{}", encoding="utf-8")
    cli = [f"{stage}/bin/nvc-cli", "runtime", "configure", "--engine=docker", f"--config={path}"]
    subprocess.run([*cli, "--runtime-name=nvidia"], check=True)
    if runtime:
        document = json.loads(path.read_text(encoding="utf-8"))
        document["runtimes"]["nvidia"]["path"] = runtime
        path.write_text(json.dumps(document), encoding="utf-8")
    capfd.readouterr()
    for name, value in {"RUNTIME": "docker", "ROOT": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(toolkit, "engine_files", lambda settings: ([], [f"--config={path}"]))
    toolkit.unconfigure(toolkit.Settings())
    said = capfd.readouterr().out
    left = f"; {path}: runtimes.nvidia was changed since nvc wrote it: left as it is" if runtime else ""
    assert said == f"nvc toolkit: docker: runtimes removed{left}\n"

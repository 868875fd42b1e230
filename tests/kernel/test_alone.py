"""What a test leaves behind, most of all one that failed, is not there for the next one in its process."""

from __future__ import annotations

import os
import subprocess

import pytest

RUN = "/run/nvc"
_left: list[subprocess.Popen[bytes]] = []


@pytest.mark.parametrize("which", ["first", "next"])
def test_neither_files_nor_processes(which: str) -> None:
    assert os.listdir(RUN) == []
    with open(f"{RUN}/left", "w", encoding="ascii"):
        pass
    for process in _left:
        assert not os.path.exists(f"/proc/{process.pid}")
    _left.append(subprocess.Popen(["sleep", "600"]))

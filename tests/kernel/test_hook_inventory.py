"""What a hook need not do again: looking for kernel modules and nodes, while the inventory holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from nvc.discovery import discover
from nvc.discovery.devices import kmods
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions


def test_modules_are_looked_for_when_something_changed(
    sim_root: Callable[..., str], scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sim_root(gpus=1, imex_channels=(0,))
    directory = os.path.join(scratch, "run")
    os.mkdir(directory, 0o700)
    real, calls = kmods.load_kmods, []

    def counted(*arguments: Any) -> tuple[str, ...]:
        calls.append(arguments)
        return (*real(*arguments), *complaints)

    def warnings(**options: Any) -> tuple[str, ...]:
        found = discover(LinuxKernel(), DriverOptions(root, load_kmods=True, **options), directory=directory)
        return found.warnings

    monkeypatch.setattr(kmods, "load_kmods", counted)
    complaints: tuple[str, ...] = ()
    for expected in (1, 1):
        assert warnings() == () and len(calls) == expected
    os.unlink(f"{root}/dev/nvidia-modeset")
    assert warnings() == () and len(calls) == 2
    assert os.path.exists(f"{root}/dev/nvidia-modeset")
    assert warnings() == () and len(calls) == 2
    # The node of a channel is made for the first that asks for it.
    warnings(imex_channels=(0,))
    assert len(calls) == 3
    # What could not be loaded is tried, and said, every time.
    os.unlink(f"{root}/dev/nvidia-modeset")
    complaints = ("kernel module nvidia could not be loaded",)
    for expected in (4, 5):
        assert warnings() == complaints and len(calls) == expected

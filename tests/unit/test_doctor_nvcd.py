"""`vgpu.suspension`: what doctor says of suspended slices and of idle-suspend."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.base.errors import InitializationError
from nvc.doctor.host import nvcd
from nvc.model.slices.suspension import FAILED, SUSPENDED, Suspension
from nvc.slices.policy.policies import DevicePolicy

CHECK = next(check for check in nvcd.CHECKS if check.name == "vgpu.suspension")
UUID = "GPU-5c1e0000-0000-0000-0000-00000000000a"


def slice_(name: str, state: str = "") -> Any:
    away = Suspension("key", state, 0, (), "the driver does not answer") if state else None
    device = SimpleNamespace(uuid=UUID, used=4 << 30)
    entry = SimpleNamespace(idle_suspend="")
    return SimpleNamespace(name=name, suspension=away, state=state or "running", devices=(device,), entry=entry)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks the check of these slices; `time`: who keeps it, `idle`: seconds of the policy, `free`: GiB there."""
    (tmp_path / "vgpu-policy").mkdir()
    (tmp_path / "vgpu-policy" / UUID).touch()

    def examine(
        *slices: Any, time: str = "by the driver", idle: int = 0, scope: str = "1", free: int = 64,
        swap: int | None = None,
    ) -> list[str]:  # fmt: skip
        def ask(*_: Any) -> dict[str, Any]:
            if not time:
                raise InitializationError("ask nvcd", "", "it does not run")
            size = swap << 30 if swap is not None else None
            state: dict[str, Any] = {"swap": {"size": size, "used": 3 << 30, "kept": 1 << 30}}
            return {**state, "devices": [{"uuid": UUID, "time": time}]}

        monkeypatch.setattr(nvcd, "ask", ask)
        monkeypatch.setattr(nvcd.policies, "read", lambda _: DevicePolicy(idle_s=idle))
        said = {nvcd.PTRACE: scope, "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {free << 20} kB"}
        monkeypatch.setattr(nvcd, "read_text", said.get)
        context: Any = SimpleNamespace(living=lambda: slices, runtime_directory=str(tmp_path))
        return [f"{found.status} {found.text}" for found in CHECK.run(context)]

    return examine


def test_nothing_to_say(said: Any) -> None:
    assert said(slice_("a")) == []
    assert said(slice_("a", SUSPENDED)) == ["ok 1 suspended slice"]
    assert said(slice_("a"), idle=60) == ["ok 0 suspended slices"]


def test_a_slice_that_is_not_back(said: Any) -> None:
    assert said(slice_("web", FAILED))[0] == "failed slice web is not back: the driver does not answer"


def test_nvcd_is_gone(said: Any) -> None:
    (line,) = said(slice_("a", SUSPENDED), time="")
    assert line == "failed nvcd cannot be reached, and suspended slices stay so: it does not run"
    (line,) = said(slice_("a"), time="", idle=60)
    assert line.startswith("warning idle-suspend suspends nothing: nvcd cannot be reached")


def test_idle_suspend_that_does_nothing(said: Any) -> None:
    assert "warning idle-suspend suspends nothing: nobody may" in said(idle=60, scope="3")[0]
    (line, _) = said(idle=60, time="by the shim, because it is old")
    assert line.endswith(f"suspends nothing on {UUID}: its time is kept by the shim, because it is old")


def test_the_host_has_no_room_for_all(said: Any) -> None:
    slices = slice_("a"), slice_("b"), slice_("c", SUSPENDED)
    (line, _) = said(*slices, idle=60, free=8)
    assert line == "warning not all slices can be suspended: they use 8192 MiB, the host has 7168 MiB for that"
    assert said(*slices, idle=60, free=9) == ["ok 1 suspended slice"]
    (line, _) = said(*slices, idle=60, swap=9)
    assert line == "warning not all slices can be suspended: they use 8192 MiB, swap-size leaves 7168 MiB"
    assert said(*slices, idle=60, swap=10) == ["ok 1 suspended slice"]

"""nvcd's log: names that tenants give reach no terminal as they are, and cannot begin a line of their own."""

from __future__ import annotations

import pytest

from nvc.daemon import main
from nvc.kubernetes import main as plugin

NAME = "/sys/fs/cgroup/x\x1b]0;title\x07\x1b[2J\r\nnvcd: forged\x85\u2028\u202e\udc9b"
SHOWN = r"/sys/fs/cgroup/x\x1b]0;title\x07\x1b[2J\r\nnvcd: forged\x85\u2028\u202e\udc9b"


@pytest.mark.parametrize("by_systemd", [False, True])
def test_a_hostile_name(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by_systemd: bool
) -> None:
    monkeypatch.setattr(main, "BY_SYSTEMD", by_systemd)
    main.log(f"slice é: {NAME}")
    assert capfd.readouterr().err == f"{'<4>' if by_systemd else ''}nvcd: slice é: {SHOWN}\n"


def test_a_hostile_name_in_the_plugins_log(capsys: pytest.CaptureFixture[str]) -> None:
    plugin.log(NAME)
    assert capsys.readouterr().err == f"nvc-kubelet-plugin: {SHOWN}\n"

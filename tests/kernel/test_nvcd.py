"""nvcd with real sockets: who may ask it, and what systemd does for it."""

from __future__ import annotations

import os
import stat

import pytest
from support import REPO, run
from support.nvcd import Place, eventually


@pytest.fixture(autouse=True)
def _launched(place: Place) -> None:
    place.forks = False


def test_sockets_and_their_rights(place: Place) -> None:
    daemon = place.start()
    assert stat.S_IMODE(os.stat(f"{place.run}/nvcd/nvcd.sock").st_mode) == 0o600
    with open(f"/proc/{daemon.pid}/status", encoding="ascii") as file:
        capabilities = {line.split()[0]: int(line.split()[1], 16) for line in file if line.startswith("Cap")}
    assert capabilities["CapEff:"] & (1 << 21 | 1 << 12) == 0  # neither SYS_ADMIN nor NET_ADMIN
    assert capabilities["CapBnd:"] == capabilities["CapEff:"]


def test_a_link_in_the_place_of_a_socket_is_refused(place: Place) -> None:
    """Or of its directory, wherever the link leads."""
    config = os.path.join(place.scratch, "config.toml")
    with open(config, "w", encoding="ascii") as out:
        out.write('[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n')
    place.start(f"--config={config}").end()
    for name, cause in (("/nvcd.sock", "a symbolic link"), ("/metrics.sock", "a symbolic link"), ("", "")):
        path = f"{place.run}/nvcd{name}"
        os.rename(path, f"{path}.elsewhere")
        os.symlink(f"{os.path.basename(path)}.elsewhere", path)
        done = run(*place.enter(f"{place.stage}/bin/nvcd", f"--config={config}"), check=False)
        assert done.returncode == 1 and done.stderr.startswith("nvcd: initialization error: "), done.stderr
        assert f"/run/nvc/nvcd{name}" in done.stderr and cause in done.stderr
        os.unlink(path)
        os.rename(f"{path}.elsewhere", path)


def test_what_is_in_force_is_told(place: Place) -> None:
    """Who shares a device, by which policy, what each is entitled to, and who keeps time; and what changes."""
    place.start()
    one, other = place.tenant("weight"), place.tenant("weight", weight=3)
    state = eventually(
        place, lambda state: bool(state["devices"]) and len(state["devices"][0]["tenants"]) == 2
    )
    (device,) = state["devices"]
    assert device["policy"] == "weight" and device["time"].startswith("by the shim, because ")
    assert {tenant["key"]: tenant["entitlement"] for tenant in device["tenants"]} == {
        one.key: 0.25,
        other.key: 0.75,
    }
    one.set(weight=9)
    other.set(flags=1)

    def changed(state: dict[str, list[dict[str, list[dict[str, object]]]]]) -> bool:
        found = {str(tenant["key"]): tenant["entitlement"] for tenant in state["devices"][0]["tenants"]}
        return found == {one.key: 1.0, other.key: 0.0}

    eventually(place, changed)


def test_the_unit_takes_no_call_away() -> None:
    """That nvcd makes: these have openat2(2) answered with ENOSYS, or devices denied that they do not name."""
    with open(os.path.join(REPO, "packaging/systemd/nvcd.service"), encoding="ascii") as unit:
        names = {line.partition("=")[0] for line in unit if "=" in line and line[0] != "#"}
    assert not names & {
        "RestrictSUIDSGID",
        "DynamicUser",
        "SystemCallFilter",
        "ProtectClock",
        "PrivateDevices",
    }

"""Which packages of Debian's sid are too old for the tests of engines."""

from __future__ import annotations

from support.sid import PACKAGES
from support.unpacked import lacking, named

FOUND = [
    "conmon_2.1.13+ds1-2_amd64.deb", "containerd_2.1.9+ds1-5_amd64.deb", "crun_1.28-1_amd64.deb",
    "docker-cli_28.5.2+dfsg4-5_amd64.deb", "docker.io_28.5.2+dfsg4-5_amd64.deb", "libc6_2.43-7_amd64.deb",
    "libcap2_1%3a2.78-1+b1_amd64.deb", "netavark_1.17.2-3_amd64.deb", "podman_5.8.6+ds1-3_amd64.deb",
    "runc_1.3.6+ds1-2_amd64.deb",
]  # fmt: skip


def test_what_will_do() -> None:
    """Sid moves on, and may not stop anything by that."""
    assert lacking(FOUND, PACKAGES) == []
    epoch = [name.replace("podman_5", "podman_1%3a5") for name in FOUND]
    assert lacking(epoch, PACKAGES) == [] and named(epoch)["podman"] == "5.8.6+ds1-3"
    for old, new in (("podman_5.8.6", "podman_6.0.0~rc1"), ("crun_1.28", "crun_1.100"), ("libc6_2.43", "libc6_3")):
        assert lacking([name.replace(old, new) for name in FOUND], PACKAGES) == []


def test_what_will_not() -> None:
    """A package that is too old, or gone."""
    older = [name.replace("podman_5.8.6", "podman_5.7.12") for name in FOUND]
    assert lacking(older, PACKAGES) == ["podman 5.7.12+ds1-3, not 5.8 or newer"]
    assert lacking(FOUND[1:], PACKAGES) == ["conmon missing, not 2.1 or newer"]
    assert len(lacking([], PACKAGES)) == len(PACKAGES)

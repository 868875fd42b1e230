"""Which packages of Debian's sid are not those that tests of engines mean."""

from __future__ import annotations

from support.sid import PACKAGES, changed

FOUND = [
    "conmon_2.1.13+ds1-2_amd64.deb", "containerd_2.1.9+ds1-5_amd64.deb", "crun_1.28-1_amd64.deb",
    "docker-cli_28.5.2+dfsg4-5_amd64.deb", "docker.io_28.5.2+dfsg4-5_amd64.deb", "libc6_2.43-7_amd64.deb",
    "libcap2_1%3a2.78-1+b1_amd64.deb", "netavark_1.17.2-3_amd64.deb", "podman_5.8.6+ds1-3_amd64.deb",
    "runc_1.3.6+ds1-2_amd64.deb",
]  # fmt: skip


def test_the_versions_that_are_meant() -> None:
    assert changed(FOUND) == []
    assert changed([name.replace("podman_5", "podman_1%3a5") for name in FOUND]) == []


def test_others_are_named() -> None:
    """A release, or a package that is gone; libraries may change."""
    newer = [name.replace("podman_5.8.6", "podman_6.0.1").replace("libc6_2.43", "libc6_2.99") for name in FOUND]
    assert changed(newer) == ["podman 6.0.1+ds1-3, not 5.8.*"]
    assert changed([name.replace("crun_1.28", "crun_1.29") for name in FOUND]) == ["crun 1.29-1, not 1.28*"]
    assert changed(FOUND[1:]) == ["conmon missing, not 2.1.*"]
    assert len(changed([])) == len(PACKAGES)

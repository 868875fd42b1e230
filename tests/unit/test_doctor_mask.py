"""What is taken out of texts that leave the host."""

from __future__ import annotations

import os

import pytest

from nvc.doctor import archive
from nvc.doctor.mask import GONE, Mask

SECRETS = (
    ('password = "{}"', "hunter2"),
    ("PASSWD={}", "hunter2"),
    ('"identitytoken": "{}"', "eyJhbGciOiJub25lIn0.e30."),
    ("db_password: {}", "x1"),
    ('{{"auth": "{}"}}', "dXNlcjpwYXNz"),
    ("https://user:{}@r.example/v2", "pa:ss"),
    ("https://{}@r.example/v2", "token9"),
    ("Authorization: Bearer {}", "abcdefgh12345"),
    ("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG"),
    ("api-key={}", "k-1"),
    ("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"),
)
HARMLESS = (
    "kernel module 580.159.04 is loaded",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04 -> libcuda.so.1",
    "crw-rw-rw- 0:0 /dev/nvidia0 195:0",
    "0000:1b:00.0",
    "GPU 0000:43:00.0 reported Xid 79",
    "cgroup2 /sys/fs/cgroup/unified rw,nosuid",
)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
@pytest.mark.parametrize("names", [True, False])
def test_a_secret(text: str, secret: str, names: bool) -> None:
    masked = Mask(names)(f"before {text.format(secret)} after")
    assert secret not in masked and GONE in masked and masked.startswith("before ")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_needed_stays(text: str) -> None:
    assert Mask()(text) == text


def test_names() -> None:
    mask = Mask()
    home = os.path.join("/home", "alice")
    one, other = "GPU-8efa4f82-422a-46bb-bc98-9ded2d084950", "MIG-8dff5b8b-85b1-45cc-ba19-aeac602470ad"
    first, second = mask(f"{one} {other}").split()
    assert mask(one) == first != second and first.startswith("GPU-0") and second.startswith("MIG-0")
    assert mask(f"on {os.uname().nodename}.") == "on <host>."
    assert mask(f"{home}/x and 10.0.0.1 and 02:42:ac:11:00:02") == "/home/<user>/x and <address> and <mac>"
    assert Mask(names=False)(f"{home}/{one}") == f"{home}/{one}"


def test_what_to_do_about_an_archive_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_parts", lambda *_: [("report.txt", "x" * 99)])
    for path, remedy in (("/dev/null/a", "namei"), ("/no/such/directory", "namei"), ("/dev/null", "another name")):
        with pytest.raises(archive.ArchiveError, match=remedy):
            archive.write_archive(None, (), "", path)

"""README.md, pasted as root into a Debian that has nothing: from a checkout to two tenants that share a GPU."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import time

import pytest
from support import CLEAN_ENV, PATIENCE, REPO
from support.checkout import copy_checkout
from support.debian import APT, Debian, clean

#: What the README promises, in seconds. The download of packages and other work on this machine are in it.
PROMISE = 300


def blocks() -> list[str]:
    """The commands of README.md to install it, and to try it without a GPU, block by block."""
    with open(os.path.join(REPO, "README.md"), encoding="utf-8") as file:
        sections = dict(part.split("\n", 1) for part in file.read().split("\n## "))
    text = sections["Install"] + sections["Without a GPU"]
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.nightly
def test_from_a_checkout_to_two_tenants(scratch: str) -> None:
    install, tenants, watch, change, container = blocks()
    assert watch == "nvc-cli vgpu top\n"
    with Debian(f"{scratch}/debian", clean()) as debian:
        copy_checkout(f"{debian.root}/srv/nvc")
        # This machine may reach package registries through somebody with a certificate of its own.
        authorities = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        shutil.copy(authorities, f"{debian.root}/srv/authorities.pem")
        debian.write("/etc/pip.conf", "[global]\ncert = /srv/authorities.pem\n")
        start = time.monotonic()
        debian.sh(f"{APT} update && {APT} install -y git make", timeout=PROMISE)
        debian.sh(f"cd /srv/nvc\n{install}", timeout=PROMISE)
        shell = subprocess.Popen(
            [*debian.namespace, "/bin/bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=CLEAN_ENV,
            text=True,
        )
        assert shell.stdin and shell.stdout
        # Each program prints a line a second: by the second one of each, all of them have been running.
        both = "for log in one three; do tail -n +1 -F /tmp/$log.log | grep -q -m 1 '^ *2 s '; done"
        shell.stdin.write(f"set -m\n{tenants}{both}\necho seen\nnvc-cli vgpu top --once\n")
        shell.stdin.flush()
        lines = iter(shell.stdout.readline, "")
        assert any(line == "seen\n" for line in lines)
        shell.stdin.write("echo end\n")
        shell.stdin.flush()
        seen = "".join(iter(shell.stdout.readline, "end\n"))
        took = time.monotonic() - start
        assert re.search(r"^one .* 25\.0% +\w+ +25% ", seen, re.MULTILINE), seen
        assert re.search(r"^three .* 75\.0% +\w+ +75% ", seen, re.MULTILINE), seen

        shell.stdin.write(f"{change}wait %2 %3\nkill %1\nwait %1\n{container}")
        rest, _ = shell.communicate(timeout=PATIENCE)
        assert re.search(r"^one .* 10\.0% +\w+ +10% ", rest, re.MULTILINE), rest
        assert "0MiB / 10240MiB" in rest
        assert took < PROMISE, f"{took:.0f} s"
        print(f"from a checkout to two tenants: {took:.0f} s")

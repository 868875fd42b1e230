"""docs/daemon.md and docs/nvcd-state.md: every command as written, on a host with a simulated driver."""

from __future__ import annotations

import json
import os
import re

import pytest
from support import REPO
from support.engines import DRIVER, Host

from nvc.daemon.audit.verify import BYPASS, DENY, EXCESS, REPORT, STOP, STRANGER
from nvc.request.config.keys import KEYS

#: The driver of this host is where nothing looks by itself.
WRAPPER = f"""#!/bin/sh
export LD_LIBRARY_PATH={DRIVER}/usr/lib/{os.uname().machine}-linux-gnu
exec /usr/local/bin/nvc-cli --root {DRIVER} "$@"
"""


#: What `curl` does, which is not on every host.
METRICS = """python3 -c '
import socket, sys
made = socket.socket(socket.AF_UNIX)
made.connect("/run/nvc/nvcd/metrics.sock")
made.sendall(b"GET /metrics HTTP/1.1\\r\\n\\r\\n")
while data := made.recv(65536):
    sys.stdout.write(data.decode())
'"""


def page() -> str:
    """Both pages, as a reader goes through them."""
    text = ""
    for name in ("daemon", "nvcd-state"):
        with open(os.path.join(REPO, f"docs/{name}.md"), encoding="utf-8") as file:
            text += file.read()
    return text


@pytest.mark.nightly
def test_every_command(host: Host) -> None:
    starting, setting, looking = re.findall(r"^```sh\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)
    host.write("/usr/local/sbin/nvc-cli", WRAPPER, 0o755)
    host.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n', 0o644)
    host.sh(setting)
    begin, _, rest = starting.partition("&\n")
    waiting = "echo $! >/run/nvcd.pid; wait $!; echo $? >/run/nvcd.end"
    host.sh("mkfifo /run/nvcd.end")
    host.sh(f"({begin} >/tmp/nvcd.log 2>&1 & {waiting}) >/dev/null 2>&1 &")
    try:
        host.sh(rest)
        done = host.sh(looking)
        metrics = host.sh(METRICS).stdout
        second = host.sh(f"{begin}", check=False)
    finally:
        code = host.sh("kill $(cat /run/nvcd.pid); cat /run/nvcd.end").stdout
        said = host.read("/tmp/nvcd.log")
    assert "error" not in said, said
    assert code == "0\n"
    assert second.returncode == 1 and "another nvcd listens there" in second.stderr
    found = json.loads(done.stdout)
    assert found["devices"][0]["policy"] == "weight" and found["slices"][0]["running"]
    assert found["devices"][0]["tenants"][0]["weight"] == 3
    rows = [line.split("|")[1] for line in page().partition("## Inspect its")[2].splitlines() if "|" in line]
    fields = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(found) <= fields
    names = set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE))
    named = set(re.findall(r"`((?:nvc|nvcd|hami)_\w+)", page()))
    assert names == named
    host.sh("rm /usr/local/sbin/nvc-cli /etc/nvc/config.toml")


def test_every_kind_and_key() -> None:
    rows = [line.split("|")[1].strip() for line in page().splitlines() if line.startswith("| `")]
    for kind in (BYPASS, EXCESS, STRANGER, REPORT, DENY, STOP):
        assert f"`{kind}`" in rows
    for key in KEYS["nvcd"]:
        assert f"nvcd.{key}" in page()

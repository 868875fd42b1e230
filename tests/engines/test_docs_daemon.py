"""docs/daemon.md: every command as written, on a host with a simulated driver."""

from __future__ import annotations

import json
import os
import re

from support import REPO
from support.engines import DRIVER, Host

#: The driver of this host is where nothing looks by itself.
WRAPPER = f"""#!/bin/sh
export LD_LIBRARY_PATH={DRIVER}/usr/lib/{os.uname().machine}-linux-gnu
exec /usr/local/bin/nvc-cli --root {DRIVER} "$@"
"""


def test_every_command(host: Host) -> None:
    with open(os.path.join(REPO, "docs/daemon.md"), encoding="utf-8") as file:
        starting, looking = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    host.write("/usr/local/sbin/nvc-cli", WRAPPER, 0o755)
    host.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n', 0o644)
    begin, _, rest = starting.partition("&\n")
    host.sh(f"{begin} >/tmp/nvcd.log 2>&1 &\necho $! >/run/nvcd.pid")
    try:
        host.sh(rest)
        done = host.sh(looking)
    finally:
        said = host.sh("kill $(cat /run/nvcd.pid); cat /tmp/nvcd.log").stdout
    assert "error" not in said, said
    found = json.loads(done.stdout)
    assert found["devices"][0]["policy"] == "weight" and found["slices"][0]["running"]
    assert found["devices"][0]["tenants"][0]["weight"] == 3
    host.sh("rm /usr/local/sbin/nvc-cli /etc/nvc/config.toml")

"""docs/doctor.md: every command as it is written."""

from __future__ import annotations

import os
import re

from support import REPO
from support.engines import Host


def test_every_command(host: Host) -> None:
    with open(os.path.join(REPO, "docs/doctor.md"), encoding="utf-8") as file:
        text = file.read()
    simulated, listed, inside, bundled, explained = re.findall(
        r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    shown = host.sh(simulated).stdout
    assert "failed       nodes.control: /srv/sim-doctor/dev/nvidiactl is missing\n" in shown
    assert shown.count("failed") == 2 and shown.endswith("checks: 5 ok\n")
    assert '"schemaVersion": 1' in host.sh(listed).stdout
    host.sh("rm -rf /run/kept; [ ! -e /run/rootfs ] || mv /run/rootfs /run/kept")
    shown = host.sh(inside).stdout
    host.sh("rm -rf /run/rootfs; [ ! -e /run/kept ] || mv /run/kept /run/rootfs")
    last = re.findall(r"^    (a GPU program .*)$", text, re.MULTILINE)
    assert [shown.splitlines()[-1]] == last
    assert "nvc-doctor/report.json" in host.sh(bundled).stdout
    assert "NVC-9001" in host.sh(explained).stdout

"""docs/vgpu.md: every command as written, with docker and on the host itself."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO
from support.engines import Host


@pytest.mark.nightly
def test_every_command(host: Host) -> None:
    with open(os.path.join(REPO, "docs/vgpu.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    asking, running, reserving, looking, naming, measuring = blocks
    host.sh("nvc-cli runtime configure --engine docker; systemctl start docker")
    host.image()
    host.sh("mkdir -p /var/lib/nvc")

    shown = host.sh(asking).stdout
    assert shown.count("10240MiB") == 2 and "4096MiB" in shown and "20389MiB" in shown
    shown = host.sh(running).stdout
    assert shown.count("10240MiB") == 2 and shown.count("GPU 0: ") == 1
    assert host.sh(reserving).stdout == "           50 GiB reserved\n" * 2  # of each GPU
    shown = host.sh(looking).stdout
    for text in ("limit 4 GiB of 81559 MiB", '"limit": 6442450944', '"limit": null', "none", ": active"):
        assert text in shown, shown
    shown = host.sh(naming).stdout
    assert "program    tuning" in shown and "slice      tuning" in shown
    assert " 518M " in host.sh(measuring).stdout
    host.sh("systemctl stop docker")

"""The container of `make test-fresh`: a machine that has just started, and nothing stays of it."""

from __future__ import annotations

import glob
import os

import pytest
from support import REPO
from support.fresh import UPTIME, commands, run_in_container

LOOK = """
cut -d. -f1 /proc/uptime
echo $(($(date +%s) - $(sed -n 's/btime //p' /proc/stat)))
echo $(ls -A /run /tmp /var/tmp /srv /dev/shm && ls -A ~/.cache)
echo $(($(ls -d /proc/[0-9]* | wc -l) < 9)) $(hostname) $(cut -d: -f3 /proc/self/cgroup | sort -u)
touch /etc/of-fresh /tmp/of-fresh
for at in $(findmnt -rn -o TARGET,FSTYPE | sed -n '/ cgroup/s/ .*//p'); do
    mkdir "$at/inner"
done
echo '1 failed in 2 s'
exit 7
"""


def test_it_is_young_and_leaves_nothing(disk: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, closing = run_in_container(disk, "/bin/sh", "-ec", LOOK)
    up, since_boot, empty, alone, *_ = capfd.readouterr().out.splitlines()
    assert UPTIME <= int(up) < UPTIME + 30 and abs(int(since_boot) - int(up)) <= 1
    assert empty.split() == [
        "/dev/shm:",
        "/run:",
        "lock",
        "mount",
        "/srv:",
        "/tmp:",
        "/var/tmp:",
    ]
    assert alone in ("1 fresh /", "1 fresh /init")
    assert status == 7 and closing == ["1 failed in 2 s\n"]
    assert not os.path.exists("/etc/of-fresh") and not os.path.exists("/tmp/of-fresh")
    assert glob.glob(f"/sys/fs/cgroup/**/nvc-fresh-{os.getpid()}", recursive=True) == []


def test_it_runs_what_the_readme_says() -> None:
    assert commands(REPO) == ["make demo", "make test"]

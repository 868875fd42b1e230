"""The container of `make test-fresh`: a machine that has just started, and nothing stays of it."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys

import pytest
from support import PATIENCE, REPO, run
from support.fresh import UPTIME, commands, remove_leftovers, run_in_container

LOOK = """
cut -d. -f1 /proc/uptime
echo $(($(date +%s) - $(sed -n 's/btime //p' /proc/stat)))
cut -d. -f1 /proc/uptime
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
    up, since_boot, later, empty, alone, *_ = capfd.readouterr().out.splitlines()
    # What comes before and between the looks may take long on a busy machine; each is a whole number of seconds.
    assert UPTIME <= int(up) < UPTIME + PATIENCE and int(up) - 1 <= int(since_boot) <= int(later) + 1
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
    assert glob.glob(f"/sys/fs/cgroup/**/nvc-fresh-{os.getpid()}-*", recursive=True) == []


CLUSTER = """
mkdir /var/tmp/nvc-cluster-x
echo '{"addresses": ["ADDRESS"], "nodes": {"n": {"bridge": "BRIDGE"}}}' >/var/tmp/nvc-cluster-x/state.json
ip addr add ADDRESS/32 dev lo
ip link add BRIDGE type bridge
echo made
exec sleep 600
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_one_leaves(number: int) -> None:
    """The container ends with it; what a cluster left in the host's network is removed, and the cgroups."""
    address, bridge = f"10.96.254.{os.getpid() % 250 + 1}", f"nvcfresh{os.getpid() % 10000}"
    script = CLUSTER.replace("ADDRESS", address).replace("BRIDGE", bridge)
    words = [sys.executable, f"{REPO}/tests/support/fresh.py", "--rounds=1", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert "made\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        process.wait(PATIENCE)
    if number == signal.SIGKILL:
        assert f" {address}/32 " in run("ip", "addr", "show", "dev", "lo").stdout
        remove_leftovers()
    assert f" {address}/32 " not in run("ip", "addr", "show", "dev", "lo").stdout
    assert not os.path.exists(f"/sys/class/net/{bridge}")
    name = f"nvc-fresh-{process.pid}-*"
    assert glob.glob(f"/sys/fs/cgroup/**/{name}", recursive=True) == [] == glob.glob(f"/var/tmp/{name}")


def test_it_runs_what_the_readme_says() -> None:
    assert commands(REPO) == ["make demo", "make test"]

"""nvcd as its package has it started: by a real systemd, under all that its units forbid."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, run, until
from support.booted import Booted
from support.mps_program import compile_control
from support.rootfs import LIBS
from support.vgpucap import Worker

pytestmark = pytest.mark.nightly
DRIVER = "/srv/driver"
SLICED = ("nvc-cli", f"--root={DRIVER}", "vgpu", "run", "--memory=8g")
#: Not half a minute, in a test.
DROP_IN = "[Service]\nWatchdogSec=3s\n"


@pytest.fixture
def host(installed: str, scratch: str) -> Iterator[Booted]:
    """A Debian with nvc's package and a simulated GPU."""
    with Booted(f"{scratch}/debian", installed, "nvcd.socket") as debian:
        debian.write("/etc/nvc/config.toml", f'[nvidia-container-cli]\nroot = "{DRIVER}"\n')
        debian.write("/etc/systemd/system/nvcd.service.d/test.conf", DROP_IN)
        debian.start()
        debian.sh(f"nvc-cli sim create --gpus=1 {DRIVER}")  # NVML lists processes to the namespace of this
        yield debian


@pytest.fixture
def busy(host: Booted, work: str) -> Iterator[Callable[..., Worker]]:
    """Factory: `busy("--cores=30")` is a program that launches kernels of 1 ms in a slice of the host."""
    workers: list[Worker] = []
    shutil.copy(work, f"{host.root}/srv/work")

    def start(*words: str) -> Worker:
        every = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{DRIVER}{LIBS}"}
        argv = (*host.namespace, *SLICED, *words, *(() if "--" in words else ("--",)), "/srv/work")
        workers.append(Worker(argv[0], every, *argv[1:], ns=1000000, batch=0, warm=0.1, seconds=600))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def eventually(host: Booted, condition: Callable[[Any], Any]) -> Any:
    """What `nvcd --state` prints, once the condition holds of it."""

    def look() -> Any:
        done = host.sh("nvcd --state", check=False)
        found = json.loads(done.stdout) if done.returncode == 0 else None
        return found if found is not None and condition(found) else None

    return until(look, lambda: host.sh("nvcd --state; journalctl -u nvcd", check=False).stdout)


def shown(host: Booted, name: str) -> str:
    """A property of the service."""
    return host.sh(f"systemctl show --value -p {name} nvcd.service").stdout.strip()


def errors(host: Booted) -> list[str]:
    """What the service complains of, but for the tracer: the container has a pid namespace of its own."""
    lines = host.sh("journalctl -u nvcd").stdout.splitlines()
    return [line for line in lines if "error" in line and "check rights: missing: the host's pid" not in line]


def test_started_by_who_asks_and_again_when_it_ends(host: Booted, busy: Callable[..., Worker]) -> None:
    assert shown(host, "ActiveState") == "inactive"
    assert host.sh("stat -c %a /run/nvc /run/nvc/nvcd").stdout.split() == ["700", "700"]
    workers = [busy(f"--cores={cores}").started() for cores in (30, 70)]

    def all_well(state: Any) -> bool:
        """Both are known, NVML tells what they hold, and the kernel when processes end."""
        tenants = [tenant for device in state["devices"] for tenant in device["tenants"]]
        return bool(
            len(tenants) == 2
            and {**state["nvml"], "answers": 0} == {"failures": 0, "answers": 0, "devices": 1}
            and len(state["memory"]) == 2 and all(len(one["pids"]) == 1 for one in state["memory"])
            and state["watching"] == "netlink"
        )  # fmt: skip

    first = eventually(host, all_well)
    host.sh("systemctl kill --signal=KILL --kill-who=main nvcd.service")
    second = eventually(host, lambda state: state["started"] > first["started"] and all_well(state))
    host.sh("systemctl kill --signal=STOP --kill-who=main nvcd.service")  # the watchdog sees to that
    eventually(host, lambda state: state["started"] > second["started"] and all_well(state))
    assert shown(host, "NRestarts") == "2"
    host.sh("systemctl restart nvcd.service")
    assert shown(host, "ActiveState") == "active"
    assert all(worker.stop().kernels for worker in workers)
    assert errors(host) == []


def test_its_directory_is_removed(host: Booted) -> None:
    """It is reached again: it makes that anew, or ends and is started anew."""
    host.sh("systemctl start nvcd.service")
    first = eventually(host, lambda state: state["pid"])
    refused = host.sh("nvcd --stop", check=False)
    assert refused.returncode == 1 and "systemd runs it as nvcd.service" in refused.stderr
    assert host.sh(f"cat /proc/{first['pid']}/comm").stdout == "nvcd\n"
    host.sh("for place in mps bpf; do umount -l /run/nvc/$place || :; done; rm -rf /run/nvc")
    eventually(host, lambda state: state["devices"] == [])
    until(lambda: host.sh("test -S /run/nvc/nvcd/nvcd.sock", check=False).returncode == 0)
    assert "making again what was removed: " in host.sh("journalctl -u nvcd").stdout


def test_servers_that_it_starts(host: Booted) -> None:
    """In a file system of their own, which a tenant may fill. It leads nobody elsewhere: the servers are root's."""
    shutil.copy(os.path.join(REPO, "tests/support/mps_control.py"), f"{host.root}/srv")
    compile_control(f"{host.root}{DRIVER}/usr/bin/nvidia-cuda-mps-control", "/srv/mps_control.py")
    host.sh("systemctl start nvcd.service")
    argv = (*host.namespace, *SLICED, "--cores=25", "--isolation=mps", "--", "sh", "-c")
    lead = "cd $CUDA_MPS_PIPE_DIRECTORY; ln -s /srv/elsewhere link; (: > link)"
    fill = "head -c 100m /dev/zero > fill; nvcd --state; grep nvc/mps /proc/mounts"
    done = run(*argv, f"{lead}; {fill}", check=False)
    assert "No space left" in done.stderr, done
    assert not os.path.exists(f"{host.root}/srv/elsewhere")
    text, _, mounts = done.stdout.rpartition("\n}\n")
    (server,) = json.loads(text + "}")["mps"]
    assert server["state"] == "ready" and server["percent"] == 25
    assert mounts.startswith("tmpfs /run/nvc/mps tmpfs rw,nosuid,nodev,noexec")
    assert shown(host, "MemoryMax") == "infinity" and int(shown(host, "TasksMax")) > 1000  # theirs too
    eventually(host, lambda state: not state["mps"])
    assert host.sh("ls /run/nvc/mps").stdout == ""
    assert errors(host) == []


def test_its_hooks_reach_other_network_namespaces(host: Booted, busy: Callable[..., Worker]) -> None:
    """Of all kinds of namespaces, the unit lets a process enter those alone."""
    busy("--suspend-hook=http:8000/", "--", "unshare", "--net").started()
    found = eventually(host, lambda state: state["memory"] and state["memory"][0]["pids"])
    host.sh(f"nvc-cli --root={DRIVER} vgpu suspend {found['memory'][0]['key']}", check=False)
    assert "hook http:8000/: network is unreachable" in host.sh("journalctl -u nvcd").stdout

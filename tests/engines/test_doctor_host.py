"""`nvc-cli doctor` on hosts that are not as one would wish, and how fast it is."""

from __future__ import annotations

import json
import os
import statistics
import time

import pytest
from support import run, until
from support.doctor import Case, check, examine, problems
from support.engines import DRIVER, Host

#: The whole of it, with one fault, is to take less than this, in seconds.
FAST = 1.0
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all"


def sensible(host: Host, command: str, code: int | None = None) -> str:
    """What a call prints that must neither fail nor show a traceback."""
    done = host.sh(command, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert done.returncode in ((0, 1, 2) if code is None else (code,)), (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    assert "this check is wrong" not in done.stdout, done.stdout
    return done.stdout


def test_a_host_without_a_driver(host: Host) -> None:
    text = sensible(host, "nvc-cli --root / doctor", 1)
    assert [line for line in text.splitlines() if line.startswith("failed       driver.")]
    assert "not checked: first mend driver.module" in text and "Traceback" not in text


def test_without_root(host: Host) -> None:
    host.sh("mkdir -p -m 700 /run/nvc; mkdir -p /run/nvc/vgpu")
    text = sensible(host, f"{NOBODY} nvc-cli doctor", 2)
    for name in ("inventory.directory", "vgpu.quotas", "vgpu.ledgers"):
        assert f"cannot tell  {name}: " in text, text
    assert "cannot tell  host.rights: this is user 65534" in text and "sudo nvc-cli doctor" in text


def test_without_proc(host: Host) -> None:
    script = "mount -t tmpfs none /proc; exec nvc-cli doctor"
    done = host.sh(f"unshare --mount /bin/sh -ec '{script}'", check=False)
    assert done.returncode and "Traceback" not in done.stderr, done.stderr


def test_in_a_user_namespace(host: Host) -> None:
    text = sensible(host, "unshare --user --map-root-user nvc-cli doctor")
    assert "warning      host.rights: this is a user namespace" in text


def test_without_cgroups(host: Host) -> None:
    script = "umount -R /sys/fs/cgroup; nvc-cli doctor host.cgroups"
    text = sensible(host, f"unshare --mount /bin/sh -ec '{script}'")
    assert "warning      host.cgroups: no cgroup hierarchy with device rules is mounted" in text
    (named,) = problems(text)
    script = f"umount -R /sys/fs/cgroup; {named.commands[0]}; nvc-cli doctor host.cgroups"
    assert "no cgroup hierarchy" not in sensible(host, f"unshare --mount /bin/sh -ec '{script}'")


def test_a_runtime_directory_that_is_full(host: Host) -> None:
    host.sh("mkdir -p /run/nvc; mount -t tmpfs -o size=128k,mode=700 none /run/nvc")
    assert examine(host, "", "vgpu.room").stdout.startswith("ok           vgpu.room: /run/nvc has room")
    host.sh("head -c 90k /dev/zero > /run/nvc/filler")
    (named,) = problems(examine(host, "", "vgpu.room").stdout)
    assert "failed       vgpu.room: /run/nvc is full: " in named.line and "df -h /run/nvc" in named.commands
    host.sh("umount /run/nvc")


def test_the_daemon(host: Host) -> None:
    """It is found while it runs; where no slice needs it, nothing fails without it."""
    start = (
        "nvcd < /dev/null > /run/nvcd.log 2>&1 & echo $!; until nvcd --state >/run/nvcd.state 2>&1; do :; done"
    )
    host.sh("mkdir -p /etc/systemd/system; touch /etc/systemd/system/nvcd.service")
    done = examine(host, "", "--strict vgpu.daemon")
    assert done.stdout.startswith("ok           vgpu.daemon: nvcd does not run; no slice needs it")
    assert done.returncode == 0
    pid = host.sh(start).stdout.strip()
    assert examine(host, "", "vgpu.daemon").stdout.startswith("ok           vgpu.daemon: nvcd answers")
    host.sh(f"kill -STOP {pid}")
    (named,) = problems(examine(host, "", "vgpu.daemon").stdout)
    assert "warning      vgpu.daemon: nvcd cannot be reached: /run/nvc/nvcd/nvcd.sock: timed out" in named.line
    assert list(named.commands) == ["nvcd --stop", "nvcd &"]
    host.sh("mv /run/nvc/nvcd /run/nvc/away")
    line = f"failed       vgpu.daemon: process {pid} is an nvcd that nobody reaches"
    until(lambda: line in examine(host, "", "vgpu.daemon").stdout)
    host.sh("mv /run/nvc/away /run/nvc/nvcd")
    host.sh(f"kill -9 {pid}; while [ -e /proc/{pid}/fd/2 ]; do :; done; mkdir -p /run/systemd/system")
    (named,) = problems(examine(host, "", "vgpu.daemon").stdout)
    assert "nvcd cannot be reached: /run/nvc/nvcd/nvcd.sock: nvcd is not running" in named.line
    assert named.commands[0] == "systemctl restart nvcd"
    host.sh("rm -r /run/nvc/nvcd /etc/systemd/system/nvcd.service; rmdir /run/systemd/system")
    assert "nvcd does not run; no slice needs it" in examine(host, "", "vgpu.daemon").stdout


LIBS = f"{DRIVER}/usr/lib/{os.uname().machine}-linux-gnu"
SHIM = "/usr/local/lib/nvc/vgpu/current"
UUID = "GPU-00000000-1111-2222-3333-444444444444"
SHIMS = (
    Case("vgpu.policies", f"mkdir -pm 700 /run/nvc/vgpu-policy; echo x > /run/nvc/vgpu-policy/{UUID}",
         f"the policy of {UUID} cannot be read"),
    Case("vgpu.shim", f"mv {SHIM} /usr/local/lib/nvc/vgpu/away", "no slices can be made",
         f"mv /usr/local/lib/nvc/vgpu/away {SHIM}"),
    Case("vgpu.shim", f"mount --bind {LIBS}/libcuda.so.1 {SHIM}/libcuda.so",
         "it is libcuda.so.1, for version no of the quota", f"umount {SHIM}/libcuda.so"),
    Case("vgpu.shim", f"echo > /run/new.so; mount --bind /run/new.so {SHIM}/libcuda.so", "is not the shim of",
         f"umount {SHIM}/libcuda.so"),
)  # fmt: skip


@pytest.mark.parametrize("case", SHIMS, ids=lambda case: case.says)
def test_a_shim(host: Host, case: Case) -> None:
    check(host, case)


@pytest.mark.nightly
def test_a_fault_is_named_in_under_a_second(host: Host) -> None:
    """All checks together, in the middle of five runs."""
    host.sh(f"rm {DRIVER}/dev/nvidia1")
    seconds = []
    for _ in range(5):
        begin = time.monotonic()
        text = examine(host).stdout
        seconds.append(time.monotonic() - begin)
        assert f"failed       nodes.gpus: {DRIVER}/dev/nvidia1 is missing\n" in text
    host.sh(f"mknod -m 666 {DRIVER}/dev/nvidia1 c 195 1")
    assert statistics.median(seconds) < FAST, seconds


def test_nothing_is_changed(host: Host) -> None:
    """Not even what is kept for the next run."""
    host.sh("umount -l /run/nvc/bpf || :; rm -rf /run/nvc; touch /run/before")
    examine(host)
    examine(host, "--root /")
    assert host.sh("find /run /etc /var/lib -xdev -newer /run/before ! -path '/run/sim/proc/*'").stdout == ""


def test_json_and_exit_codes(host: Host) -> None:
    found = json.loads(host.sh("nvc-cli doctor driver nodes --format json").stdout)
    assert found["status"] == "ok" and {entry["status"] for entry in found["checks"]} == {"ok"}
    host.sh(f"chmod 600 {DRIVER}/dev/nvidia1")
    sensible(host, "nvc-cli doctor nodes", 0)
    sensible(host, "nvc-cli doctor --strict nodes", 1)
    host.sh(f"chmod 666 {DRIVER}/dev/nvidia1")


def test_wrong_calls(host: Host) -> None:
    for words, said in (
        ("drivr", "there is no such check; did you mean `nvc-cli doctor driver`?"),
        ("container.nodes", "looks at a container; name it: --container ID"),
        ("--format xml", "'xml' is not one of 'text', 'table', 'json', 'yaml'"),
        ("--unmasked", "--unmasked goes with --bundle"),
    ):
        done = run(*host.namespace, "nvc-cli", "doctor", *words.split(), check=False)
        assert done.returncode == 1 and done.stdout == "" and said in done.stderr, done.stderr

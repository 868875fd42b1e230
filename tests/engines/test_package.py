"""The deb in a Debian of its own: installed by apt, used, upgraded beside a running container, removed."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from support import REPO, until
from support.debian import APT, Debian, clean
from support.packages import NEWER, deb, version

pytestmark = pytest.mark.nightly
#: What dpkg, apt and systemd write for themselves.
NOT_OURS = re.compile(
    r"/(var/(lib/(dpkg|apt|systemd)|cache|log)|etc/(alternatives|ld\.so\.cache|resolv\.conf)|root)\b"
)
#: Until `purge`.
STAYS = {
    *("/etc/nvc", "/etc/nvc/config.toml", "/etc/nvc/cdi-refresh.env"),
    *("/var/lib/nvc", "/var/lib/nvc/calibration"),
}


def page() -> list[str]:
    """The blocks of docs/install.md that are marked as shell."""
    with open(os.path.join(REPO, "docs/install.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)


def ours(paths: set[str]) -> set[str]:
    return {path for path in paths if not NOT_OURS.match(path)}


def test_the_page(packages: str, newer: str, scratch: str) -> None:
    """Every command of docs/install.md, from a clean Debian to one where nothing of nvc is left."""
    first, upgrade, settle, remove = page()
    with Debian(f"{scratch}/debian", clean()) as debian:
        debian.sh("mkdir /root/newer")
        debian.put(deb(packages), "/root")
        debian.put(deb(newer), "/root/newer")
        assert len(first.strip().splitlines()) == 3

        start = time.monotonic()
        shown = debian.sh(f"cd /root; {first}").stdout
        assert time.monotonic() - start < 120
        assert shown.count("NVIDIA H100") == 2, shown

        assert NEWER in debian.sh(f"cd /root; {upgrade}").stdout
        assert debian.sh(settle).stdout.count("settled for /usr/bin/python3\n") == 2

        assert debian.sh("dpkg -V nvc").stdout == ""
        debian.sh(remove)
        assert debian.named() == []
        assert "nvc" not in debian.sh("ls /run").stdout


def test_what_stays(packages: str, ready: str, scratch: str) -> None:
    """`remove` leaves what docs/install.md names, `purge` nothing."""
    with Debian(f"{scratch}/debian", ready) as debian:
        before = ours(debian.files())
        debian.put(deb(packages), "/root")
        debian.sh(f"{APT} install -y /root/nvc_*.deb")
        assert "/usr/bin/nvidia-container-cli" in debian.files()
        assert "noexec" in debian.sh("nvc-cli sim create /run/driver", check=False).stderr
        debian.sh("nvc-cli sim create /srv/driver; nvc-cli --root /srv/driver cdi refresh")
        debian.sh("/usr/share/nvc/first-container --root /srv/driver --memory 10GiB")
        debian.sh("nvc-cli --root /srv/driver vgpu calibrate; echo x > /etc/nvc/cdi-refresh.env")
        debian.sh("nvc-cli sim destroy /srv/driver")
        assert debian.sh("ls /run/cdi").stdout

        debian.sh(f"{APT} remove -y nvc")
        assert ours(debian.files()) - before == STAYS
        assert debian.sh("ls -d /run/cdi", check=False).returncode != 0, "its hooks are gone"
        assert debian.sh("ls -d /run/nvc").stdout
        debian.sh("dpkg --purge nvc")
        assert ours(debian.files()) == before
        assert debian.sh("ls -d /run/nvc", check=False).returncode != 0


def test_nvcd_of_a_shell_ends_with_the_package(installed: str, scratch: str) -> None:
    """No unit stops it, nor what it has mounted for the kernel."""
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.sh("nvc-cli sim create /srv/driver")
        debian.sh("mkdir -p -m 700 /run/nvc/bpf && mount -t bpf bpf /run/nvc/bpf")
        debian.sh("(nvcd --root /srv/driver </dev/null >/dev/null 2>&1 & echo $! >/run/nvcd.pid)")
        try:
            until(lambda: debian.sh("nvcd --state", check=False).returncode == 0)
            debian.sh(f"{APT} remove -y nvc")
            assert debian.sh("readlink /proc/$(cat /run/nvcd.pid)/exe", check=False).returncode != 0
            assert debian.sh("grep /run/nvc/bpf /proc/self/mounts", check=False).returncode != 0
        finally:
            debian.sh("kill -9 $(cat /run/nvcd.pid)", check=False)


SIZES = """
[[nvc.vgpu]]
name = "small"
memory = "10GiB"
"""


@pytest.mark.parametrize("verb", ["remove", "purge"])
def test_no_specification_stays(installed: str, scratch: str, verb: str) -> None:
    """Engines would run hooks that are gone. Somebody else's specification is left alone."""
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.write("/etc/nvc/config.toml", debian.read("/etc/nvc/config.toml") + SIZES)
        debian.sh("nvc-cli sim create /srv/driver; nvc-cli --root /srv/driver cdi refresh")
        assert debian.sh("ls /run/cdi").stdout.split() == ["nvidia.com-gpu.json", "nvidia.com-vgpu.json"]
        debian.write("/run/cdi/vendor.json", "{}")
        debian.sh(f"{APT} {verb} -y nvc")
        assert debian.sh("ls /run/cdi").stdout.split() == ["vendor.json"]


def test_alternatives(installed: str, scratch: str) -> None:
    """Under NVIDIA's names, unless NVIDIA's programs are there."""
    with Debian(f"{scratch}/debian", installed) as debian:
        assert f"cli-version: {version()}" in debian.sh("nvidia-container-cli --version").stdout
        assert version() in debian.sh("nvidia-container-runtime-hook -version").stdout
        for runtime in ("", ".cdi", ".legacy"):
            assert "runc version" in debian.sh(f"nvidia-container-runtime{runtime} --version").stdout
        assert "nvc-cdi-hook" in debian.sh("nvidia-cdi-hook --help; nvidia-ctk hook --help").stdout
        assert f"CLI version {version()}\n" in debian.sh("nvidia-ctk --version").stdout
        debian.sh("nvidia-ctk runtime configure --runtime=docker")
        runtimes = json.loads(debian.read("/etc/docker/daemon.json"))["runtimes"]
        assert runtimes["nvidia"]["path"] == "/usr/bin/nvc-runtime"
        debian.sh(f"{APT} remove -y nvc")
        assert debian.sh("ls /usr/bin/nvidia-* /etc/alternatives/nvidia-*", check=False).stdout == ""
    with Debian(f"{scratch}/beside", installed) as debian:
        debian.sh(f"{APT} remove -y nvc")
        debian.write("/usr/bin/nvidia-container-cli", "#!/bin/sh\necho NVIDIA\n", 0o755)
        debian.write("/etc/nvidia-container-runtime/config.toml", "")
        done = debian.sh(f"{APT} install -y /root/nvc_*.deb")
        assert "config.toml is not read any more" in done.stdout
        assert debian.sh("nvidia-container-cli").stdout == "NVIDIA\n"
        debian.sh(f"{APT} purge -y nvc")
        assert debian.sh("nvidia-container-cli").stdout == "NVIDIA\n"


def test_units(installed: str, newer: str, scratch: str) -> None:
    """Sound, enabled, and left as the operator wants them by an upgrade."""
    with Debian(f"{scratch}/debian", installed) as debian:
        listed = debian.sh(
            "dpkg -L nvc | grep -o 'nvc[^/]*[.]\\(service\\|path\\|socket\\)$'"
        ).stdout.split()
        assert {"nvc-cdi-refresh.service", "nvc-cdi-refresh.path"} <= set(listed)
        done = debian.sh(
            f"cd /usr/lib/systemd/system; systemd-analyze verify {' '.join(listed)}", check=False
        )
        assert [line for line in (done.stdout + done.stderr).splitlines() if "nvc" in line] == []
        assert debian.sh("grep -l /usr/local /usr/lib/systemd/system/nvc*", check=False).stdout == ""
        every = "systemctl is-enabled $(cd /usr/lib/systemd/system; grep -l '^.Install.$' nvc* | grep -v nvc-nri)"
        assert set(debian.sh(every).stdout.split()) == {"enabled"}
        assert debian.sh("systemctl is-enabled nvc-nri", check=False).stdout == "disabled\n", "off unless asked for"
        state = "systemctl is-enabled nvc-cdi-refresh.service nvc-cdi-refresh.path || true"
        debian.sh("systemctl disable nvc-cdi-refresh.path")
        debian.put(deb(newer), "/root")
        debian.sh(f"dpkg -i /root/nvc_{NEWER}*.deb")
        assert debian.sh(state).stdout.split() == ["enabled", "disabled"]
        debian.sh(f"{APT} remove -y nvc")
        assert "nvc" not in debian.sh("ls /etc/systemd/system/*.wants").stdout
        debian.sh(f"dpkg -i /root/nvc_{NEWER}*.deb")
        assert set(debian.sh(every).stdout.split()) == {"enabled"}, "removed is not disabled"


HALVES = {
    "its code is gone": "rm -rf /usr/lib/nvc /usr/bin/nvc-cli /var/lib/dpkg/alternatives/nvidia-container-cli",
    "unpacked only": "dpkg --unpack /root/nvc_*.deb; rm -rf /usr/lib/nvc/settle /usr/lib/nvc/python/nvc",
    "removed, with its scripts failing": "rm -rf /usr/lib/nvc/site; echo 'exit 1' > /var/lib/dpkg/info/nvc.prerm;"
    " chmod +x /var/lib/dpkg/info/nvc.prerm; dpkg --remove nvc || true",
    "another one's leftovers": "dpkg --purge nvc; mkdir -p /usr/lib/nvc/python/nvc/__pycache__;"
    " mkdir -p /usr/lib/nvc/vgpu/current; ln -s /nowhere /usr/bin/nvidia-container-cli;"
    " echo nonsense > /usr/lib/nvc/hot.bin; : > /usr/lib/nvc/compiled-here;"
    " echo nonsense > /usr/lib/nvc/python/nvc/__pycache__/errors.cpython-311.pyc",
}


@pytest.mark.parametrize("half", HALVES)
def test_over_half_a_package(installed: str, newer: str, scratch: str, half: str) -> None:
    with Debian(f"{scratch}/debian", installed) as debian:
        debian.sh("echo '# mine' >> /etc/nvc/config.toml")
        debian.sh(HALVES[half], check=False)
        debian.put(deb(newer), "/root")
        debian.sh(f"dpkg -i --force-confold /root/nvc_{NEWER}*.deb")
        debian.sh("nvc-cli sim create /srv/driver --gpus 2")
        shown = debian.sh("/usr/share/nvc/first-container --root /srv/driver nvidia-smi -L").stdout
        assert shown.count("GPU-") == 2
        assert NEWER in debian.sh("nvidia-container-cli --version").stdout
        kept = debian.read("/etc/nvc/config.toml").endswith("# mine\n")
        assert kept == ("purge" not in HALVES[half])
        debian.sh("dpkg --purge nvc")
        assert debian.named() == []


def test_another_python(installed: str, scratch: str) -> None:
    """What another version of Python left or brings: starts work at once, and fast again after its package came."""
    archive = "/usr/lib/nvc/hot.bin"
    with Debian(f"{scratch}/debian", installed) as debian:
        head = f"od -A n -t x1 -N 8 {archive}"
        ours = debian.sh(head).stdout
        debian.sh(f"printf '\\0\\0\\r\\n' | dd of={archive} bs=1 seek=4 conv=notrunc status=none")
        assert debian.sh(head).stdout != ours
        debian.sh("find /usr/lib/nvc -name __pycache__ -prune -exec rm -r {} +")
        assert debian.sh("nvc-cli sim create /srv/driver; nvc-cli --root /srv/driver list").stdout
        debian.sh("dpkg -i /var/cache/apt/archives/python3-minimal_*.deb")
        assert debian.sh(head).stdout == ours
        assert debian.sh("ls /usr/lib/nvc/python/nvc/base/__pycache__/errors.*.pyc").stdout

        linked = "ls /usr/lib/nvc/site | grep -c prctl || true"
        assert debian.sh(linked).stdout == "2\n"
        debian.sh("dpkg --remove python3-prctl")
        assert debian.sh(linked).stdout == "0\n"
        debian.sh("dpkg -i /var/cache/apt/archives/python3-prctl_*.deb")
        assert debian.sh(linked).stdout == "2\n"

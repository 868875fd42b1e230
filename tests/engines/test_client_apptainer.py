"""Apptainer: `--nvccli` calls `nvidia-container-cli configure`, as root and in a user's own namespace."""

from __future__ import annotations

import pytest
from support.clientdebs import CLIENTS
from support.clients import client_ran, named
from support.engines import Host
from support.reachable import reachable

pytestmark = pytest.mark.engines
#: It looks for what belongs to it beside its own program. Root keeps the capabilities that this machine has.
PUT = """
mkdir -p /srv/apptainer /run/upper /run/work
mount -t overlay -o lowerdir={unpacked}/usr,upperdir=/run/upper,workdir=/run/work overlay /srv/apptainer
mkdir -p /srv/apptainer/etc /srv/apptainer/var/lib/apptainer/mnt/session
cp -a {unpacked}/etc/apptainer /srv/apptainer/etc
ln -s ../etc ../var /srv/apptainer/lib
ln -s /srv/apptainer/bin/apptainer /usr/local/bin
sed -i 's/^root default capabilities.*/root default capabilities = no/' /srv/apptainer/etc/apptainer/apptainer.conf
"""
#: An image's directory of root's and one of a user's, with what Apptainer mounts on.
IMAGES = """
echo tenant:x:1001:1001::/home:/bin/sh >> /etc/passwd
echo tenant:x:1001: >> /etc/group
cp -a /run/rootfs /srv/image
mkdir -p /srv/image/home /srv/image/var/tmp
cp -a /srv/image /srv/tenant
chown -R 1001:1001 /srv/tenant
"""
USER = "HOME=/home setpriv --reuid 1001 --regid 1001 --clear-groups"
AS = {
    "root": "apptainer -q exec --contain --nv --nvccli {words} /srv/image",
    "user": f"{USER} apptainer -q exec --userns --contain --nv --nvccli {{words}} /srv/tenant",
}


@pytest.fixture(scope="module", autouse=True)
def apptainer(host: Host) -> None:
    reachable(host)
    named(host)
    host.rootfs()
    host.sh(PUT.format(unpacked=CLIENTS["apptainer"].directory()) + IMAGES)


def test_version(host: Host) -> None:
    what = "`--nv --nvccli`, `--contain`, `--writable`. CDI: its mounts alone, without the program"
    client_ran("Apptainer", host.sh("apptainer --version").stdout, "root, user", what)


@pytest.mark.parametrize("who", AS)
@pytest.mark.parametrize("devices", ["all", "1", ""])
def test_nvccli(host: Host, who: str, devices: str) -> None:
    call = AS[who].format(words="")
    seen = host.sh(f"export NVIDIA_VISIBLE_DEVICES={devices}; {call} nvidia-smi -L", check=False).stdout
    gpus = {"all": 2, "1": 1, "": 0}[devices]
    assert seen.count("UUID: GPU-") == gpus
    assert ("No devices were found" in seen) == (not gpus)


def test_a_user_s_image_that_keeps_changes(host: Host) -> None:
    """Each start is on what the last one left."""
    call = AS["user"].format(words="--writable --no-mount tmp")
    for _ in range(2):
        assert host.sh(f"NVIDIA_VISIBLE_DEVICES=all {call} nvidia-smi -L").stdout.count("UUID: GPU-") == 2


def test_what_cannot_be_had_is_said(host: Host) -> None:
    call = AS["root"].format(words="")
    said = host.sh(f"NVIDIA_VISIBLE_DEVICES=7 {call} nvidia-smi -L", check=False)
    assert said.returncode == 255 and "there is no GPU 7" in said.stderr

"""Calls of clients that Debian does not have, as their sources make them.

enroot 8ea147d3 (conf/hooks/98-nvidia.sh, below pyxis in Slurm).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.clients import client_ran, named
from support.engines import Host

ROOT = "/srv/enroot/img"
#: The job's user, in the namespaces that enroot makes; its image is a directory of the user's.
USER = "setpriv --reuid 1001 --regid 1001 --clear-groups unshare --user --map-current-user --keep-caps --mount"
CALL = "nvidia-container-cli --user configure --no-cgroups --ldconfig=@$(command -v ldconfig)"
#: The caller's own lines: the root file system is a mount, and what follows runs in it.
SCRIPT = f"""
mount --bind {ROOT} {ROOT}
{CALL} {{words}} --utility --compute {{require}} {ROOT}
exec chroot {ROOT} nvidia-smi -L
"""


@pytest.fixture(scope="module")
def slurm(host: Host) -> Iterator[Host]:
    named(host)
    host.sh(f"mkdir -p {ROOT}; cp -a {host.rootfs()}/. {ROOT}; chown -R 1001:1001 /srv/enroot")
    yield host
    host.sh("rm -rf /srv/enroot /usr/local/bin/nvidia-*")


def job(host: Host, words: str = "", require: str = "") -> str:
    """What a job of the user prints, or why it does not start."""
    host.write("/srv/enroot/job", SCRIPT.format(words=words, require=require))
    done = host.sh(f"{USER} sh -e /srv/enroot/job", check=False)
    return done.stdout + done.stderr


def test_enroot(slurm: Host) -> None:
    """Each job starts on what the last one left in the user's directory."""
    client_ran("enroot", "8ea147d3", "user", "its calls; not itself, pyxis or Slurm: no packages")
    said = job(slurm, "--device=all", "'--require=cuda>=12.0 brand=tesla,driver>=470'")
    assert said.count("UUID: GPU-") == 2, said
    assert [line[:6] for line in job(slurm, "--device=1").splitlines() if "UUID" in line] == ["GPU 0:"]
    assert "No devices were found" in job(slurm), "NVIDIA_VISIBLE_DEVICES=none: no --device"


def test_a_job_that_cannot_start_says_why(slurm: Host) -> None:
    assert "there is no GPU 7" in job(slurm, "--device=7")
    assert "requirement error" in job(slurm, "--device=all", "'--require=cuda>=99'")

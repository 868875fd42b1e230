"""Nebius soperator c238d993: what complement_jail.sh asks of `nvidia-container-cli`, as its source makes the calls.

Workers of a cluster share the root file system of the jobs, the jail. Each lists the driver's files, makes a
placeholder for each, mounts them in a namespace of its own, and updates the loader cache later.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.clients import client_ran, driver_in_place, named
from support.engines import Host
from support.rootfs import LIBS

pytestmark = pytest.mark.engines
JAIL = "/srv/jail"
WORKERS, FAILS = ("w1", "w2", "w3"), "w4"
#: A worker sees the tree as a mount of its own, and has a /run/nvc of its own, as each host has.
WORKER = f"""
mount -t tmpfs -o mode=755 tmpfs /run/nvc
mount --bind {JAIL} {JAIL}
cd {JAIL}
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /run run
echo $$ > /srv/ready
exec sleep infinity
"""
MOUNTS = f"sed -n 's|.* \\({JAIL}/[^ ]*\\) .* - .*|\\1|p' /proc/self/mountinfo | sort -u"
#: Each new mount of a file has more in it than a placeholder.
CALLS = f"""
cd {JAIL}
nvidia-container-cli list > /run/nvc/list
exec 9> etc/placeholders.lock
while read -r path; do
    case $path in */lib*.so*) at=.{LIBS}/${{path##*/}} ;; *) at=.$path ;; esac
    [ ! -e $at ] || continue
    flock 9
    mkdir -p ${{at%/*}}
    [ -e $at ] || {{ echo 'gpu placeholder' > $at; chmod --reference=$path $at; }}
done < /run/nvc/list
exec 9>&-
{MOUNTS} > /run/nvc/before
nvidia-container-cli --user --debug=/dev/stderr --no-pivot configure --no-cgroups --cuda-compat-mode=disabled \\
    --ldconfig=/usr/bin/true --device=all --compute --compat32 --display --graphics --utility --video {JAIL}
{MOUNTS} | comm -13 /run/nvc/before - > /run/nvc/new
for at in $(grep -v -e {JAIL}/proc -e firmware /run/nvc/new); do
    [ ! -f $at ] || [ $(stat -c %s $at) -gt 16 ] || {{ echo "$at is a placeholder"; exit 1; }}
done
"""
#: How many mounts are gone, of how many; and what the jobs of a worker see after ldconfig.
LOOK = f"""
echo $({MOUNTS} | comm -23 /run/nvc/new - | wc -l) of
wc -l < /run/nvc/new
chroot {JAIL} ldconfig
chroot {JAIL} nvidia-smi -L
"""


@pytest.fixture(scope="module", autouse=True)
def workers(host: Host) -> Iterator[None]:
    named(host)
    driver_in_place(host)
    host.sh(f"cp -a {host.rootfs()} {JAIL}; cp /sbin/ldconfig {JAIL}/sbin; echo 12 > {JAIL}/etc/debian_version")
    host.sh("mkdir -p /run/nvc /srv/workers; mkfifo /srv/ready")
    host.write("/srv/worker", WORKER)
    for name in (*WORKERS, FAILS):
        start = "unshare --mount sh -e /srv/worker </dev/null >/srv/worker.log 2>&1"
        host.sh(f"{start} & read -r pid < /srv/ready; echo $pid > /srv/workers/{name}")
    host.write("/srv/in", 'exec nsenter --mount=/proc/$(cat /srv/workers/$1)/ns/mnt sh -e "/srv/$2"\n')
    host.write("/srv/calls", CALLS)
    host.write("/srv/look", LOOK)
    yield
    host.sh("cat /srv/workers/* | xargs kill")


def test_workers_that_start_at_once(host: Host) -> None:
    """The fourth fails, as a directory is where a socket goes. The others keep their mounts.

    Nobody writes the loader cache. Once mended, the fourth makes nothing more in the tree.
    """
    client_ran("soperator", "c238d993", "root", "its calls, by workers that share a jail; no cluster")
    spoil = f"mount -t tmpfs tmpfs {JAIL}/run; mkdir -p {JAIL}/run/nvidia-persistenced/socket"
    host.write("/srv/spoil", spoil)
    host.write("/srv/mend", f"umount {JAIL}/run")
    host.write("/srv/start", "sh /srv/in $1 calls >/srv/$1.log 2>&1 || echo $1\n")
    cache = f"stat -c %i.%y {JAIL}/etc/ld.so.cache"
    before = host.sh(f"sh /srv/in {FAILS} spoil; {cache}").stdout
    names = (*WORKERS, FAILS)
    failed = host.sh(f"for name in {' '.join(names)}; do sh /srv/start $name & done; wait").stdout.split()
    said = {name: host.sh(f"tail -n 20 /srv/{name}.log").stdout for name in names}
    assert failed == [FAILS] and "a directory is where a file should be" in said[FAILS], said
    assert host.sh(cache).stdout == before
    for name in WORKERS:
        gone, count, *seen = host.sh(f"sh /srv/in {name} look").stdout.splitlines()
        assert (gone, int(count) > 60) == ("0 of", True), (gone, count)
        assert [line[:6] for line in seen] == ["GPU 0:", "GPU 1:"]
    tree = f"find {JAIL} -xdev | sort"
    left = host.sh(tree).stdout
    host.sh(f"sh /srv/in {FAILS} mend; sh /srv/in {FAILS} calls")
    assert host.sh(tree).stdout == left

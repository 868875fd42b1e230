"""A /dev of a test's host alone (engines.py), in which its simulated driver has its nodes."""

from __future__ import annotations

from .engines import DRIVER

#: Shell lines that make it. runc binds nodes from there for whoever is not root; Incus and LXD look for them there.
DEV = f"""
mkdir /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty {DRIVER}/dev/nvidia* /run/dev
mkdir /run/dev/pts /run/dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts /run/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /run/dev/shm
ln -s pts/ptmx /run/dev/ptmx
ln -s /proc/self/fd /run/dev/fd
umount -l /dev
mount --move /run/dev /dev
chmod 666 /dev/nvidia*
"""

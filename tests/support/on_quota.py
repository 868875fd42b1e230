"""What root in a container does to its slice's quota, and how it is refused."""

from __future__ import annotations

import re

from .rootfs import LIBS

DENIED = re.compile(
    "Read-only file system|Operation not permitted|permission denied|Device or resource busy"
)
QUOTA = f"{LIBS}/nvc/quota"
#: What root in a container does to the quota's file, each by itself.
#: It must fail, or change nothing that counts.
ON_QUOTA = {
    "written": f"busybox dd if=/dev/zero of={QUOTA} bs=64 count=1 conv=notrunc",
    "cut short": f": > {QUOTA}",
    "removed": f"busybox rm -f {QUOTA}",
    "mounted anew, writable": f"busybox mount -o remount,rw,bind {QUOTA} && : > {QUOTA}",
    "unmounted": f"busybox umount -l {QUOTA}",
    "covered": f"busybox mount -t tmpfs none {LIBS}/nvc",
    "given away": f"busybox chown 1000 {QUOTA}; busybox chmod 666 {QUOTA} && : > {QUOTA}",
    "mounted anew in a user namespace": f"busybox unshare -Um busybox mount -o remount,rw,bind {QUOTA}",
    "unmounted in a user namespace": f"busybox unshare -Um busybox umount -l {QUOTA}",
    "written in a user namespace": f"busybox unshare -Um sh -c ': > {QUOTA}'",
    "written from another root": f"busybox chroot {LIBS}/nvc /quota; : > /proc/1/root{QUOTA}",
}

"""A small root file system that a container can really run: busybox, and this machine's glibc.

The static busybox makes a shell without any library. glibc is there because driver libraries need it, and
because a test that loads one wants the real loader to read the cache that nvc wrote.
"""

from __future__ import annotations

import os
import shutil
import sysconfig

from . import need, run

GLIBC = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
)
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
APPLETS = (
    "sh ls cat echo mount umount mkdir rm ln stat id env true false sleep readlink find grep wc".split()
)
DIRECTORIES = "bin sbin etc dev proc sys run tmp root usr/bin usr/sbin usr/lib usr/local/bin var/run".split()


def multiarch() -> str:
    """Debian's name of this machine's library directory, x86_64-linux-gnu or aarch64-linux-gnu."""
    return f"{os.uname().machine}-linux-gnu"


LIBS = f"/usr/lib/{multiarch()}"


def _library(name: str) -> str:
    """Where this machine keeps a glibc library, whichever the distribution."""
    configured = sysconfig.get_config_var("MULTIARCH") or multiarch()
    for directory in (f"/lib/{configured}", f"/usr/lib/{configured}", "/lib64", "/usr/lib64", "/lib"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return path
    raise AssertionError(f"no {name} on this machine: run `make setup`")


def make_rootfs(directory: str | os.PathLike[str], glibc: bool = True, cache: bool = True) -> str:
    """Fill `directory` (made if need be) with a root file system and return its path.

    Without `glibc`, an image like Alpine's: nothing but the static busybox. Without `cache`, no
    /etc/ld.so.cache. Owned by root, modes as in an image: usable from a user namespace too when the
    directories above it can be traversed.
    """
    root = os.fspath(directory)
    old = os.umask(0o022)
    try:
        for name in DIRECTORIES:
            os.makedirs(os.path.join(root, name), exist_ok=True)
        os.chmod(root, 0o755)
        os.chmod(os.path.join(root, "tmp"), 0o1777)
        shutil.copy(need("busybox"), os.path.join(root, "bin/busybox"))
        for applet in APPLETS:
            os.symlink("busybox", os.path.join(root, "bin", applet))
        _write(root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
        _write(root, "etc/group", "root:x:0:\n")
        if glibc:
            _add_glibc(root)
            _write(root, "etc/ld.so.conf", f"/lib/{multiarch()}\n/usr/lib/{multiarch()}\n")
            if cache:
                run("/sbin/ldconfig", "-r", root)
    finally:
        os.umask(old)
    return root


def _add_glibc(root: str) -> None:
    libraries = os.path.join(root, "lib", multiarch())
    os.makedirs(libraries)
    os.makedirs(os.path.join(root, "usr/lib", multiarch()))
    for name in GLIBC:
        shutil.copy(_library(name), libraries)
    loader = LOADERS[os.uname().machine]
    os.makedirs(os.path.dirname(root + loader), exist_ok=True)
    shutil.copy(loader, root + loader)


def _write(root: str, name: str, text: str) -> None:
    with open(os.path.join(root, name), "w", encoding="utf-8") as out:
        out.write(text)


def as_debian(root: str) -> str:
    """Mark it as a Debian, whose libraries are in LIBS; the path is returned."""
    with open(f"{root}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    return root

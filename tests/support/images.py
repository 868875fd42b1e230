"""Root file systems whose loaders search elsewhere than Debian's: real loaders, as distributions have them."""

from __future__ import annotations

import os
import shutil

from . import need, run
from .rootfs import LOADERS, multiarch

MACHINE = os.uname().machine
#: Which directories a loader searches is compiled in; Fedora's, written as long as Debian's.
_BUILT_IN = (
    (f"/lib/{multiarch()}/", "/lib64"),
    (f"/usr/lib/{multiarch()}/", "/usr/lib64"),
    ("/lib/", "/no"),
    ("/usr/lib/", "/none"),
)
MUSL = f"/lib/ld-musl-{MACHINE}.so.1"
_OPEN = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        puts(dlopen(argv[i], RTLD_NOW) ? "loaded" : dlerror());
    return 0;
}
"""
#: What libcuda needs of glibc and musl lacks: gcompat has it, which Debian has not.
_GCOMPAT = r"""
#include <pthread.h>
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object)
{
    (void)object;
    return pthread_atfork(prepare, parent, child);
}
"""


def _compiled(compiler: str, source: str, output: str, *options: str) -> None:
    run(need(compiler), "-x", "c", "-", "-o", output, *options, stdin=None, input=source)


def as_fedora(root: str) -> str:
    """Move the C library to /usr/lib64, and let the loader search where Fedora's does."""
    os.makedirs(f"{root}/usr/lib64", exist_ok=True)
    for name in os.listdir(f"{root}/lib/{multiarch()}"):
        shutil.move(f"{root}/lib/{multiarch()}/{name}", f"{root}/usr/lib64/{name}")
    os.rmdir(f"{root}/lib/{multiarch()}")
    os.rmdir(f"{root}/usr/lib/{multiarch()}")
    loader = f"{root}{LOADERS[MACHINE]}"
    with open(loader, "rb") as file:
        content = file.read()
    before = "\0".join(old for old, _ in _BUILT_IN).encode() + b"\0"
    after = "\0".join(_padded(new, len(old)) for old, new in _BUILT_IN).encode() + b"\0"
    assert before in content and len(before) == len(after), "another loader than Debian's"
    with open(loader, "wb") as file:
        file.write(content.replace(before, after))
    if not os.path.isdir(f"{root}/lib64"):  # aarch64
        os.mkdir(f"{root}/lib64")
    for name in os.listdir(f"{root}/usr/lib64"):
        os.symlink(f"/usr/lib64/{name}", f"{root}/lib64/{name}")
    with open(f"{root}/etc/ld.so.conf", "w", encoding="ascii"):
        pass
    run("/sbin/ldconfig", "-r", root)
    _compiled("cc", _OPEN, f"{root}/bin/open")
    return root


def _padded(directory: str, length: int) -> str:
    """The directory in so many characters, with a slash at its end."""
    return (directory + "/." * length)[: length - 1] + "/"


def as_debian_with_programs(root: str) -> str:
    """A Debian, with the program that opens libraries."""
    with open(f"{root}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    _compiled("cc", _OPEN, f"{root}/bin/open")
    return root


def as_alpine(root: str, path: str | None = None) -> str:
    """Add musl, and a stand-in for gcompat; `path` is the content of musl's list of directories."""
    os.makedirs(f"{root}/lib", exist_ok=True)
    shutil.copy(os.path.realpath(MUSL), f"{root}{MUSL}")
    _compiled("musl-gcc", _GCOMPAT, f"{root}/lib/libgcompat.so.0", "-shared", "-fPIC")
    shutil.copy(f"{root}/lib/libgcompat.so.0", f"{root}/lib/{os.path.basename(LOADERS[MACHINE])}")
    _compiled("musl-gcc", _OPEN, f"{root}/bin/open")
    if path is not None:
        with open(f"{root}/etc/ld-musl-{MACHINE}.path", "w", encoding="ascii") as out:
            out.write(path)
    return root

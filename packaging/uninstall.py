"""Removes what `make install` put below PREFIX, and nothing else: `make uninstall PREFIX=... DESTDIR=...`.

Its nvcd ends before, and what that keeps in the kernel.

Configuration, CDI specifications, simulated drivers and registrations with engines are the user's and stay.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess

import manifest
import tree


def users(library: str) -> str:
    """The containers whose engine needs this installation's nvc-runtime to stop them, one a line."""
    return subprocess.run([os.path.join(library, "in-use")], check=True, stdout=subprocess.PIPE, text=True).stdout


def has_nvcd(library: str) -> bool:
    """Whether an nvcd runs whose code is this installation's.

    It is root's, and in no container. Others may have its name, and hold up who reads more than their `status`.
    """
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/status", "rb") as status:
                lines = status.read().split(b"\n")
            facts = {key: text.split() for key, _, text in (line.partition(b":") for line in lines)}
            if facts[b"Name"] != [b"nvcd"] or facts[b"Uid"][1] != b"0" or len(facts.get(b"NSpid", ())) > 1:
                continue
            with open(f"/proc/{name}/maps", "rb") as maps:
                if os.fsencode(os.path.realpath(library)) in maps.read():
                    return True
    return False


def end_nvcd(prefix: str) -> None:
    if subprocess.run([os.path.join(prefix, "bin/nvcd"), "--stop"], stdout=subprocess.DEVNULL).returncode:
        raise SystemExit("uninstall: stop nvcd first")
    subprocess.run(["umount", "/run/nvc/bpf"], stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description="Removes what `make install` put below PREFIX.")
    parser.add_argument("prefix")
    parser.add_argument("--destdir", default="")
    parser.add_argument("--force", action="store_true", help="also below containers that run")
    options = parser.parse_args()
    prefix = tree.below(options.destdir, options.prefix)
    library = os.path.join(prefix, "lib/nvc")
    try:
        names = manifest.read(prefix)
    except FileNotFoundError as error:
        raise SystemExit(f"uninstall: nothing that `make install` put into {prefix}: no {error.filename}") from None
    if not options.destdir and not options.force:
        running = users(library)
        if running:
            raise SystemExit(
                f"uninstall: engines need nvc-runtime to stop these containers:\n{running}"
                "Stop them first, or add FORCE=1."
            )
    if not options.destdir and has_nvcd(library):
        end_nvcd(prefix)
    manifest.remove(prefix, [name for name in names if not name.endswith("/")])
    shutil.rmtree(library)  # the list is in it: until here, the same command can be given again
    manifest.remove(prefix, [name for name in names if name.endswith("/")])
    print(f"nvc is removed from {prefix}")


if __name__ == "__main__":
    main()

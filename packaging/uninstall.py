"""Removes what `make install` put below PREFIX, and nothing else: `make uninstall PREFIX=... DESTDIR=...`.

Configuration, CDI specifications, simulated drivers and registrations with engines are the user's and stay.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess

import manifest
import tree


def users(library: str) -> str:
    """The containers whose engine needs this installation's nvc-runtime to stop them, one a line."""
    return subprocess.run([os.path.join(library, "in-use")], check=True, stdout=subprocess.PIPE, text=True).stdout


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
    manifest.remove(prefix, [name for name in names if not name.endswith("/")])
    shutil.rmtree(library)  # the list is in it: until here, the same command can be given again
    manifest.remove(prefix, [name for name in names if name.endswith("/")])
    print(f"nvc is removed from {prefix}")


if __name__ == "__main__":
    main()

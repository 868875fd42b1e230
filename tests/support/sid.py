"""Engines of Debian's sid beside this machine's own (unpacked.py)."""

from __future__ import annotations

import glob
import os

from . import unpacked

#: The packages, with the oldest version that will do.
PACKAGES = {
    "conmon": "2.1", "containerd": "2.1", "crun": "1.28", "docker.io": "28.5", "docker-cli": "28.5",
    "netavark": "1.17", "podman": "5.8", "runc": "1.3",
}  # fmt: skip
#: Where they come from.
SUITES = ("sid", "testing")
#: Those that want sid's C library, with their paths there.
RELINKED = "bin/conmon bin/crun bin/podman bin/runc sbin/runc lib/podman/netavark".split()


def sid() -> str:
    """The directory with the unpacked packages; fetched at the first call.

    Raises AssertionError with apt's words where that fails.
    """
    return unpacked.unpacked(PACKAGES, SUITES, RELINKED)


def versions() -> dict[str, str]:
    """The versions of PACKAGES that the cache has."""
    return unpacked.versions(sid(), PACKAGES)


def programs() -> dict[str, str]:
    """Paths of the programs, by their names."""
    root = sid()
    found = {}
    for directory in ("usr/sbin", "usr/bin"):
        for path in glob.glob(f"{root}/{directory}/*"):
            found[os.path.basename(path)] = path
    wanted = "conmon containerd containerd-shim-runc-v2 crun ctr docker dockerd podman runc".split()
    missing = [name for name in wanted if name not in found]
    assert not missing, f"Debian's sid has no {', '.join(missing)} in {', '.join(PACKAGES)}"
    return {name: found[name] for name in wanted} | {"netavark": f"{root}/usr/lib/podman/netavark"}

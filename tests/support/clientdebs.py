"""Clients that this machine's Debian does not have, or only as a service: unpacked (unpacked.py), not installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import unpacked
from .mirror import mirror

if TYPE_CHECKING:
    from .engines import Host


@dataclass(frozen=True)
class Client:
    """Packages, with the oldest version that will do, and the programs of them that a host gets on its PATH.

    `suites` says where they come from; () is the machine's own release. `programs` are paths below /usr.
    """

    packages: dict[str, str]
    programs: tuple[str, ...]
    suites: tuple[str, ...] = ("sid", "testing")

    def directory(self) -> str:
        """Where they are unpacked; fetched at the first call."""
        return unpacked.unpacked(self.packages, self.suites or (mirror()[0],), self.programs)

    def put(self, host: Host) -> None:
        """Put the programs on the host's PATH."""
        names = " ".join(f"{self.directory()}/usr/{program}" for program in self.programs)
        host.sh(f"ln -sf {names} /usr/local/bin")


_TOOLS = ("bin/rsync", "bin/unsquashfs", "bin/getfattr", "bin/setfattr")
_STARTER = f"lib/{os.uname().machine}-linux-gnu/apptainer/bin/starter"
CLIENTS = {
    "incus": Client({"incus-base": "7.0"}, ("libexec/incus/incusd", "bin/incus", *_TOOLS)),
    "lxd": Client({"lxd": "5.0.2", "lxd-client": "5.0.2"}, ("bin/lxd", "bin/lxc", *_TOOLS), ("bookworm",)),
    "compose": Client({"docker-compose": "2.40"}, ("bin/docker-compose",)),
    "gvisor": Client({"runsc": "0.0"}, ("bin/runsc",)),
    "rootless": Client(
        {"rootlesskit": "2.0", "slirp4netns": "1.3"},
        ("bin/rootlesskit", "bin/rootlesskit-docker-proxy", "bin/slirp4netns"),
    ),
    "apptainer": Client({"apptainer": "1.4"}, ("bin/apptainer", _STARTER), ("sid",)),
}


def fetch_all() -> None:
    """Fetch every client, and say which versions there are."""
    for name, client in CLIENTS.items():
        came = unpacked.versions(client.directory(), client.packages)
        print(f"{name}: {' '.join(came.values())}")

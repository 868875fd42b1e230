"""Sockets of plugins in kubelet's directories: where they are, and whether somebody serves them."""

from __future__ import annotations

import glob
import hashlib
import socket

from nvc.base.value import Value


def is_served(path: str) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


class Places(Value):
    """Where one plugin serves a driver: its own sockets, so that an update can start the next one beside it."""

    endpoint: str
    registration: str
    inner: str  # of the worker behind both
    others: tuple[str, ...]  # patterns of the sockets of all plugins of the driver

    def dead(self) -> list[str]:
        """Sockets of other plugins that nobody serves any more."""
        found = [path for pattern in self.others for path in glob.glob(pattern)]
        own = (self.endpoint, self.registration, self.inner)
        return [path for path in found if path not in own and not is_served(path)]


def places_of(driver: str, plugins: str, registry: str, state: str, instance: str) -> Places:
    """The sockets of one plugin in kubelet's directories and its own; `instance` tells two plugins of a node apart.

    A UID of 36 characters would be too long for a socket below a directory that a distribution has moved.
    """
    own = f"-{hashlib.sha256(instance.encode()).hexdigest()[:8]}" if instance else ""
    directory, listed = glob.escape(f"{plugins}/{driver}"), glob.escape(f"{registry}/{driver}")
    return Places(
        f"{plugins}/{driver}/dra{own}.sock", f"{registry}/{driver}{own}-reg.sock", f"{state}/worker{own}.sock",
        (f"{directory}/dra*.sock", f"{listed}-*reg.sock", f"{glob.escape(state)}/worker*.sock"),
    )  # fmt: skip

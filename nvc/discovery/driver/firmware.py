"""GSP firmware: the files that the kernel would load for the running driver version."""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Firmware, identity_of


def firmware_directories(system: HostRoot, version: str) -> tuple[str, ...]:
    """Where the kernel looks for the driver's firmware, in its order; the first may be set by its user.

    Source: drivers/base/firmware_loader of the kernel, /sys/module/firmware_class/parameters/path.
    """
    custom = system.read_optional("/sys/module/firmware_class/parameters/path", 4096) or b""
    release = os.uname().release
    bases = (
        custom.decode("utf-8", "replace").strip(),
        f"/lib/firmware/updates/{release}",
        "/lib/firmware/updates",
        f"/lib/firmware/{release}",
        "/lib/firmware",
    )
    return tuple(f"{base}/nvidia/{version}" for base in bases if base.startswith("/"))


def find_firmwares(
    root: HostRoot, directories: tuple[str, ...]
) -> tuple[tuple[Firmware, ...], tuple[str, ...]]:
    """The files gsp*.bin, each from the first directory that has it, by name; and warnings."""
    found: dict[str, Firmware] = {}
    warnings = []
    for directory in directories:
        for name, _ in root.entries(directory):
            if not name.startswith("gsp") or not name.endswith(".bin") or name in found:
                continue
            path = f"{directory}/{name}"
            try:
                fd, status = root.open_regular(path)
            except (OSError, DetectionError) as error:
                warnings.append(f"firmware {path} is left out: {error}")
                continue
            with closing(fd):
                # The kernel's path, also where /lib is a link: an image may have no such link.
                real = root.real_path(fd)
                found[name] = Firmware(path if real.endswith("/" + name) else real, identity_of(status))
    return tuple(found[name] for name in sorted(found)), tuple(warnings)

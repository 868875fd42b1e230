"""Device nodes of a simulated driver root, and the majors that they get."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import InitializationError, PermissionDenied
from nvc.discovery.devices.nodes import CONTROLS
from nvc.testing.sim.spec import SimGpu, SimSpec, cap_minor

#: Char devices with a dynamic major, in the order in which they get one.
DYNAMIC = ("nvidia-uvm", "nvidia-caps", "nvidia-nvswitch", "nvidia-caps-imex-channels")
#: /dev/null: major, minor, mode.
NULL = (1, 3, 0o666)


def _used_majors() -> set[int]:
    with open("/proc/devices", encoding="ascii", errors="replace") as lines:
        words = (line.split() for line in lines)
        return {int(word[0]) for word in words if len(word) == 2 and word[0].isdigit()}


def choose_majors() -> dict[str, int]:
    """Majors by name: from 511 downwards, where the kernel also hands them out, none that the host uses.

    A node with the major of another driver would open that driver's device.
    """
    used = _used_majors()
    free = [major for major in range(511, 383, -1) if major not in used]
    if len(free) < len(DYNAMIC):
        raise InitializationError("choose majors", "/proc/devices", "none of 384 to 511 is free", "unload a driver")
    return dict(zip(DYNAMIC, free))


def nodes(spec: SimSpec, gpus: tuple[SimGpu, ...], majors: dict[str, int]) -> dict[str, tuple[int, int, int]]:
    """(major, minor, mode) by path inside the root."""
    caps = majors["nvidia-caps"]
    tree = {path[1:]: (majors.get(driver, 195), minor, 0o666) for path, _, driver, minor, _ in CONTROLS}
    for gpu in gpus:
        tree[f"dev/nvidia{gpu.minor}"] = (195, gpu.minor, 0o666)
        for mig in gpu.mig:
            for instance in ((mig.gpu_instance,), (mig.gpu_instance, mig.compute_instance)):
                minor = cap_minor(gpu.minor, *instance)
                tree[f"dev/nvidia-caps/nvidia-cap{minor}"] = (caps, minor, 0o444)
    if any(gpu.model.mig for gpu in gpus):
        tree["dev/nvidia-caps/nvidia-cap1"] = (caps, 1, 0o400)
        tree["dev/nvidia-caps/nvidia-cap2"] = (caps, 2, 0o444)
    for channel in spec.imex_channels:
        major = majors["nvidia-caps-imex-channels"]
        tree[f"dev/nvidia-caps-imex-channels/channel{channel}"] = (major, channel, 0o666)
    return tree


def make_node(path: str, major: int, minor: int, mode: int) -> None:
    """Makes one character device, whatever the umask. Raises PermissionDenied, InitializationError."""
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        os.chmod(path, mode)
    except PermissionError as error:
        hint = "run as root, outside a user namespace"
        raise PermissionDenied.of("make device node", path, error, hint) from None
    except OSError as error:
        raise InitializationError.of("make device node", path, error) from None

"""The device nodes that a container gets: as devices of its configuration, and by mounts of the host's files.

Limits are found by devices. A node that is mounted, of a GPU that has no limit, is the whole GPU.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import InputError
from nvc.frontends.cdi.hooks.bundle import malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.model.facts import HostFacts
    from nvc.request.oci import Mount

#: Where nodes of the driver are, below a directory that is mounted.
_BELOW = ("", "dev", "nvidia-caps", "dev/nvidia-caps")
_PREFIX = "nvidia"


def device_nodes(document: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Major and minor numbers of the devices of a configuration, in its order. Raises ContainerError."""
    entries = (document.get("linux") or {}).get("devices") or []
    if type(entries) is not list or not all(type(entry) is dict for entry in entries):
        raise malformed("linux.devices is not a list of objects")
    found: dict[tuple[int, int], None] = {}
    for entry in entries:
        major, minor = entry.get("major"), entry.get("minor")
        if entry.get("type") in ("c", "u") and type(major) is int and type(minor) is int:
            found[major, minor] = None
    return tuple(found)


def mounted_nodes(bundle: str, mounts: tuple[Mount, ...]) -> tuple[tuple[int, int, str], ...]:
    """Major and minor numbers of character devices that mounts bring into a container, and what is mounted.

    Of a directory those count that the driver could have made. Raises InputError for one that cannot be looked at.
    """
    found = []
    for mount in mounts:
        if not mount.source:
            continue
        source = mount.source if mount.source.startswith("/") else f"{bundle}/{mount.source}"
        for path in _nodes_of(source):
            status = _stat(path)
            if status is not None and stat.S_ISCHR(status.st_mode):
                found.append((os.major(status.st_rdev), os.minor(status.st_rdev), source))
    return tuple(found)


def _nodes_of(source: str) -> list[str]:
    status = _stat(source)
    if status is None:
        return []
    if not stat.S_ISDIR(status.st_mode):
        return [source]
    found = []
    for below in _BELOW:
        try:
            names = os.listdir(f"{source}/{below}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unknown(source, error) from None
        found += [f"{source}/{below}/{name}" for name in names if name.startswith(_PREFIX)]
    return found


def _stat(path: str) -> os.stat_result | None:
    """None: nothing is there, as for a source that is the name of a file system."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unknown(path, error) from None


def _unknown(source: str, error: OSError) -> InputError:
    cause = f"cannot be looked at for device nodes: {error.strerror}"
    return InputError("make a slice", source, cause, "do not mount it into a container with a slice")


def refuse_mounted(
    facts: HostFacts, mounted: tuple[tuple[int, int, str], ...], limited: frozenset[str]
) -> None:
    """Raise InputError where a mount brings in a device that has no limit; `limited` are UUIDs."""
    devices: dict[tuple[int, int], tuple[str, set[str]]] = {}
    for gpu in facts.gpus:
        parts = {part.uuid for part in gpu.mig}
        devices[gpu.node.major, gpu.node.minor] = f"GPU {gpu.index}", {gpu.uuid, *parts}
        for part in gpu.mig:
            for node in (part.gi_node, part.ci_node):
                if node is not None:
                    devices[node.major, node.minor] = f"MIG device {gpu.index}:{part.index}", parts
    for major, minor, source in mounted:
        name, uuids = devices.get((major, minor), ("", set()))
        if name and not uuids & limited:
            raise InputError(
                "make a slice", source, f"the node of {name} is mounted: the container would have all of it",
                "name it as a device instead, like `docker run --device nvidia.com/gpu=...`",
            )  # fmt: skip

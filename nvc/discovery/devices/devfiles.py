"""The device nodes that the loaded driver asks for, with owner and mode, and how to make one.

Attributes: /proc/driver/nvidia/params for GPUs, control and modeset; each capability's own file; else 0666.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.base.errors import InitializationError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.discovery.devices.mig import CAPABILITIES, MINORS, parse_minors
from nvc.discovery.devices.nodes import CAPABILITIES as CAPABILITY_NODES
from nvc.discovery.devices.nodes import (
    CONTROLS,
    NVIDIA_MAJOR,
    has_nvidia_major,
    majors_of_nodes,
    nvidia_major,
)
from nvc.discovery.devices.proc import PROC, char_majors, fields_of, proc_gpus
from nvc.discovery.host import Host
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import O_PATH
from nvc.model.facts import DeviceNode
from nvc.model.request import DriverOptions

IMEX_NODES = "/dev/nvidia-caps-imex-channels"
_BESIDE = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")


class Attributes(Value):
    """Who may open a node. `modify`: whether the driver's configuration lets nodes be made at all."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True


class WantedNode(Value):
    """A device node that a container may need, and how it is to be made."""

    path: str
    major: int
    minor: int
    attributes: Attributes

    def is_there(self, devices: HostRoot) -> bool:
        """Whether the node exists below `devices` with its numbers."""
        status = devices.character(self.path)
        return status is not None and status.st_rdev == os.makedev(self.major, self.minor)

    def make(self, devices: HostRoot) -> None:
        """Makes the node in place of whatever is there, and /dev/char/MAJOR:MINOR, by which systemd finds it.

        The node gets its name last, so that nobody sees it half made. Raises OSError.
        """
        directory, _, name = self.path.rpartition("/")
        with closing(_open_directory(devices, directory)) as parent:
            temporary = f".{name}.nvc"
            try:
                os.unlink(temporary, dir_fd=parent)
            except FileNotFoundError:
                pass
            device = os.makedev(self.major, self.minor)
            os.mknod(temporary, stat.S_IFCHR | 0o600, device, dir_fd=parent)
            os.chown(
                temporary, self.attributes.uid, self.attributes.gid, dir_fd=parent, follow_symlinks=False
            )
            os.chmod(temporary, self.attributes.mode, dir_fd=parent)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        _link_number(devices, self)


def _open_directory(devices: HostRoot, path: str) -> int:
    """A directory below /dev, made with mode 0755 when it is missing."""
    try:
        return devices.open(path, O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        above, _, name = path.rpartition("/")
        with closing(devices.open(above, O_PATH | os.O_DIRECTORY)) as parent:
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chmod(name, 0o755, dir_fd=parent)
        return devices.open(path, O_PATH | os.O_DIRECTORY)


def _link_number(devices: HostRoot, node: WantedNode) -> None:
    try:
        parent = devices.open("/dev/char", O_PATH | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.symlink(f"..{node.path.removeprefix('/dev')}", f"{node.major}:{node.minor}", dir_fd=parent)
    except FileExistsError:
        pass
    finally:
        os.close(parent)


def wanted_nodes(host: Host, options: DriverOptions) -> tuple[WantedNode, ...]:
    """Every node of the modules that are loaded, as far as the configuration lets us make them."""
    system = host.system
    majors = char_majors(system.read_optional("/proc/devices") or b"")
    general = _attributes(system.read_optional(PROC + "/params", 65536), "ModifyDeviceFiles")
    found = [
        node for module, node in _controls(majors, general)
        if system.exists(f"/sys/module/{module.replace('-', '_')}")
    ]  # fmt: skip
    if system.exists("/sys/module/nvidia"):
        minors = (gpu.minor for gpu in proc_gpus(system) or () if gpu.minor >= 0)
        found += [WantedNode(f"/dev/nvidia{minor}", nvidia_major(majors), minor, general) for minor in minors]
    if "nvidia-caps" in majors:
        found += _capability_nodes(system, majors["nvidia-caps"])
    if options.create_imex_channels and "nvidia-caps-imex-channels" in majors:
        major = majors["nvidia-caps-imex-channels"]
        for channel in options.imex_channels:
            found.append(WantedNode(f"{IMEX_NODES}/channel{channel}", major, channel, Attributes()))
    return tuple(node for node in found if node.attributes.modify)


def possible_controls(host: Host) -> tuple[WantedNode, ...]:
    """The nodes that belong to no GPU, also those that the driver's configuration does not let us make.

    Raises InitializationError where the driver is not loaded.
    """
    general = _attributes(host.system.read_optional(PROC + "/params", 65536), "ModifyDeviceFiles")
    return tuple(node for _, node in _controls(_majors(host), general))


def _controls(majors: dict[str, int], general: Attributes) -> Iterator[tuple[str, WantedNode]]:
    """The nodes that belong to no GPU and have a number, each with its kernel module."""
    for path, module, driver, minor, _ in CONTROLS:
        if not driver:
            yield module, WantedNode(path, nvidia_major(majors), minor, general)
        elif driver in majors:
            yield module, WantedNode(path, majors[driver], minor, Attributes())


def _majors(host: Host) -> dict[str, int]:
    """The numbers of the driver's devices. Raises InitializationError where the driver is not loaded."""
    if host.simulated:
        majors = {"nvidia": NVIDIA_MAJOR, **majors_of_nodes(host.driver)}
    else:
        majors = char_majors(host.system.read_optional("/proc/devices") or b"")
    if "nvidia-uvm" not in majors or not has_nvidia_major(majors):
        cause = "the driver's kernel modules are not loaded"
        raise InitializationError("find device numbers", "/proc/devices", cause, "add --load-kernel-modules")
    return majors


def possible_nodes(host: Host) -> tuple[DeviceNode, ...]:
    """Every node that the driver could have for its GPUs, also of MIG devices that nobody has made yet.

    Raises InitializationError where the driver is not loaded.
    """
    majors = _majors(host)
    minors = [gpu.minor for gpu in proc_gpus(host.system) or () if gpu.minor >= 0]
    found = [DeviceNode(node.path, node.major, node.minor) for node in possible_controls(host)]
    found += [DeviceNode(f"/dev/nvidia{minor}", nvidia_major(majors), minor) for minor in minors]
    if "nvidia-caps" in majors:
        gpus = {f"gpu{minor}" for minor in minors}
        for name, minor in parse_minors(host.system.read_optional(MINORS) or b"").items():
            gpu, slash, _ = name.partition("/")
            if not slash or gpu in gpus:
                found.append(DeviceNode(f"{CAPABILITY_NODES}/nvidia-cap{minor}", majors["nvidia-caps"], minor))
    return tuple(found)


def existing_nodes(devices: HostRoot) -> tuple[DeviceNode, ...]:
    """The driver's nodes below /dev; not those of services beside it, which containers do not get."""
    found = []
    for directory in ("/dev", CAPABILITY_NODES):
        for name, _ in devices.entries(directory):
            if not name.startswith("nvidia") or name.startswith(_BESIDE):
                continue
            if status := devices.character(f"{directory}/{name}"):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                found.append(DeviceNode(f"{directory}/{name}", *number))
    return tuple(found)


def _capability_nodes(system: HostRoot, major: int) -> list[WantedNode]:
    """Nodes of the capabilities that exist now; mig-minors lists all that ever could."""
    present = {name for name, _ in system.entries(CAPABILITIES)}
    found = []
    for name, minor in parse_minors(system.read_optional(MINORS) or b"").items():
        gpu, slash, rest = name.partition("/")
        if slash and gpu not in present:
            continue
        path = f"{CAPABILITIES}/{gpu}/mig/{rest}" if slash else f"{CAPABILITIES}/mig/{name}"
        content = system.read_optional(path, 4096)
        if content is not None:
            attributes = _attributes(content, "DeviceFileModify")
            found.append(WantedNode(f"{CAPABILITY_NODES}/nvidia-cap{minor}", major, minor, attributes))
    return found


def _attributes(content: bytes | None, modify: str) -> Attributes:
    """Numbers are decimal, the mode too; what is not a number counts as not said."""
    fields = fields_of(content or b"")

    def number(name: str, default: int, most: int) -> int:
        text = fields.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > most:
            return default
        return int(text)

    return Attributes(
        number("DeviceFileUID", 0, (1 << 32) - 2),
        number("DeviceFileGID", 0, (1 << 32) - 2),
        number("DeviceFileMode", 0o666, 0o777),
        number(modify, 1, 1) == 1,
    )


def missing_nodes(host: Host, wanted: tuple[WantedNode, ...]) -> tuple[WantedNode, ...]:
    """The `wanted` nodes that are absent or are something else."""
    return tuple(node for node in wanted if not node.is_there(host.devices))

"""MIG as the kernel shows it: the capability tree and the minors of the nodes that stand for its files."""

from __future__ import annotations

from nvc.discovery.devices.nodes import CAPABILITIES as NODES
from nvc.discovery.devices.proc import PROC, fields_of
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import DeviceNode

CAPABILITIES = PROC + "/capabilities"
MINORS = "/proc/driver/nvidia-caps/mig-minors"
#: mig-minors lists every instance that could exist: 8000 lines on today's drivers.
_LINES_MAX = 65536
_MINOR_MAX = 1 << 20  # of a device number


class MigCapabilities:
    """Looks up capability files and nodes. `majors` are those of /proc/devices."""

    __slots__ = ("system", "majors", "table")

    def __init__(self, system: HostRoot, majors: dict[str, int]) -> None:
        self.system = system
        self.majors = majors
        # Searched, not parsed: of thousands of lines a host needs those of its few GPUs.
        self.table = b"\n" + (system.read_optional(MINORS) or b"") + b"\n"

    @property
    def major(self) -> int:
        """The major number of nvidia-caps, or -1."""
        return self.majors.get("nvidia-caps", -1)

    def of_gpu(self, gpu_minor: int) -> tuple[int, ...]:
        """The minors of all instances that the GPU could have; none without nodes for them."""
        prefix = b"\ngpu%d/" % gpu_minor
        first, last = self.table.find(prefix), self.table.rfind(prefix)
        if self.major < 0 or first < 0:
            return ()
        block = self.table[first : self.table.find(b"\n", last + 1)]
        start = f"gpu{gpu_minor}/"
        return tuple(sorted(minor for name, minor in parse_minors(block).items() if name.startswith(start)))

    def of_global(self, name: str) -> DeviceNode | None:
        return self._node(name, f"{CAPABILITIES}/mig/{name}")

    def access(
        self, gpu_minor: int, gpu_instance: int, compute_instance: int
    ) -> tuple[str, str, DeviceNode | None, DeviceNode | None]:
        """Access files of a GPU instance and of a compute instance in it, and their nodes."""
        gi = f"gi{gpu_instance}/access"
        ci = f"gi{gpu_instance}/ci{compute_instance}/access"
        base = f"{CAPABILITIES}/gpu{gpu_minor}/mig"
        return (
            f"{base}/{gi}",
            f"{base}/{ci}",
            self._node(f"gpu{gpu_minor}/{gi}", f"{base}/{gi}"),
            self._node(f"gpu{gpu_minor}/{ci}", f"{base}/{ci}"),
        )

    def _node(self, name: str, path: str) -> DeviceNode | None:
        """It need not exist. None: this driver has no such nodes (early R450)."""
        minor = None
        at = self.table.find(b"\n%s " % name.encode())
        if at >= 0:
            minor = parse_minors(self.table[at + 1 : self.table.find(b"\n", at + 1)]).get(name)
        if minor is None:
            content = self.system.read_optional(path, 4096) or b""
            minor = _minor(fields_of(content).get("DeviceFileMinor", ""))
        if minor is None or self.major < 0:
            return None
        return DeviceNode(f"{NODES}/nvidia-cap{minor}", self.major, minor)


def parse_minors(content: bytes) -> dict[str, int]:
    """Minors by name from mig-minors: `gpu0/gi1/access 12`, `gpu0/gi1/ci0/access 13`, `config 1`."""
    minors = {}
    for line in content.split(b"\n", _LINES_MAX)[:_LINES_MAX]:
        name, space, number = line.partition(b" ")
        minor = _minor(number.decode("ascii", "replace"))
        if space and minor is not None:
            minors[name.decode("ascii", "replace")] = minor
    return minors


def _minor(text: str) -> int | None:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) >= _MINOR_MAX:
        return None
    return int(text)

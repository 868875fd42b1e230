"""What discovery finds: frozen facts about a host, its driver and its GPUs.

All paths are absolute as seen *inside the driver root*, with links resolved, unless a field says otherwise.
"""

from __future__ import annotations

from nvc.base.types import Any
from nvc.base.value import Value

#: Capability classes that a container can ask for, in the order in which they are printed.
CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "ngx", "compat32")
#: Kinds of devices beside GPUs that a variable of a container can ask for, once the operator has switched them on.
GATED = ("gds", "mofed", "gdrcopy", "nvswitch")


class Identity(Value):
    """What `fstat` says of a file when it was found; compared again on the descriptor that is mounted."""

    device: int
    inode: int
    size: int  # bytes
    mtime_ns: int  # nanoseconds since the epoch


def identity_of(status: Any) -> Identity:
    """The identity of an opened file, by its os.stat_result, for a later comparison on another descriptor."""
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


#: The kind of libraries of which nothing but the driver's version is known.
OTHER = "other"


class Library(Value):
    """A driver library."""

    path: str  # in the driver root
    soname: str
    kind: str  # utility, compute, video, graphics, glvnd, ngx or OTHER: which capabilities bring it
    arch: str  # x86_64, i386, aarch64, arm
    counted: bool  # a slice counts all memory that it takes of a GPU
    identity: Identity
    link: str = ""  # a name without a version that the driver gives it too, such as libcuda.so


class Binary(Value):
    """A driver program: always an ELF file, never the wrapper script that the PATH may offer."""

    path: str
    kind: str  # utility, compute or graphics
    identity: Identity


class Firmware(Value):
    """A firmware file of the driver."""

    path: str
    identity: Identity


class Manifest(Value):
    """A file by which programs find `library`, or that this reads: an ICD of OpenCL or Vulkan, and the like."""

    path: str
    library: str  # its name up to `.so`
    identity: Identity
    target: str = ""  # where containers have it; "": at its own path


class Module(Value):
    """A module of the driver for the X server."""

    path: str
    target: str  # where the X server finds it
    link: str  # another name beside it, or ""
    identity: Identity


class Ipc(Value):
    """A socket, or the directory of the MPS control daemon (`is_directory`)."""

    path: str
    service: str  # persistenced, fabricmanager, mps
    kind: str  # utility or compute
    is_directory: bool = False


class DeviceNode(Value):
    """A character device. `path` is inside the driver root; `major`:`minor` are the driver's, not the node's."""

    path: str
    major: int
    minor: int


class ControlNode(Value):
    """A node of the driver that belongs to no GPU."""

    node: DeviceNode
    capability: str = ""  # that brings it into containers; "": all of them have it


class MigDevice(Value):
    """One MIG compute instance, as NVML enumerates it on its GPU."""

    index: int
    uuid: str  # MIG-xxxxxxxx-...
    gpu_instance: int
    compute_instance: int
    gi_access: str  # /proc/driver/nvidia/capabilities/gpuM/mig/giG/access
    ci_access: str
    gi_node: DeviceNode | None
    ci_node: DeviceNode | None
    memory: int = 0  # MiB; 0 where NVML does not tell


class Gpu(Value):
    """A GPU."""

    index: int  # NVML's
    uuid: str  # GPU-xxxxxxxx-...
    minor: int
    bus_id: str  # %08x:%02x:%02x.0, lower case
    name: str
    brand: str
    architecture: str  # compute capability, "9.0"
    node: DeviceNode
    proc_dir: str  # /proc/driver/nvidia/gpus/<bus id as the kernel writes it>, or ""
    mig_capable: bool = False
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    capability_major: int = -1  # of nvidia-caps
    capability_minors: tuple[int, ...] = ()  # of every instance that this GPU could have (mig-minors)
    dri_nodes: tuple[str, ...] = ()  # /dev/dri/cardN, /dev/dri/renderDN
    memory: int = 0  # MiB; 0 where NVML does not tell

    @property
    def capability_nodes(self) -> tuple[DeviceNode, ...]:
        """The nvidia-cap nodes of all instances; made when wanted, since a GPU has more than a hundred."""
        return tuple(
            DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", self.capability_major, minor)
            for minor in self.capability_minors
        )


class ProcFile(Value):
    """A file of /proc/driver/nvidia as read at discovery; `name` is relative to that directory."""

    name: str
    content: bytes


class OuterSlice(Value):
    """The slice of the container in which discovery runs: what a nested one shares with it."""

    real: tuple[Library, ...]  # what the shims stand for: the driver's libraries under the shims' SONAMEs
    quota: str
    ledger: str  # a directory


class HostFacts(Value):
    """Everything that selection and planning may know of the host."""

    driver_root: str
    driver_version: str  # digits and dots, the suffix of the library files
    cuda_version: str  # "13.0"
    simulated: bool
    gpus: tuple[Gpu, ...]
    libraries: tuple[Library, ...]
    libraries32: tuple[Library, ...]
    binaries: tuple[Binary, ...]
    firmwares: tuple[Firmware, ...]
    ipcs: tuple[Ipc, ...]
    controls: tuple[ControlNode, ...]  # the nodes of no GPU that exist, such as /dev/nvidiactl
    mig_config: DeviceNode | None  # the nvidia-cap node of mig/config
    mig_monitor: DeviceNode | None
    imex_major: int  # -1 where the driver has no IMEX channels
    proc_files: tuple[ProcFile, ...]  # params, version, registry: those that exist
    warnings: tuple[str, ...] = ()
    system_root: str = "/"  # where /proc and /sys are read: the driver root of a simulated driver, else `/`
    device_root: str = "/"  # where device nodes are: the driver root if it has a /dev/nvidiactl, else `/`
    outer: OuterSlice | None = None  # where libcuda is a shim
    manifests: tuple[Manifest, ...] = ()
    modules: tuple[Module, ...] = ()

    @property
    def driver_label(self) -> str:
        """The driver version for people: a simulated driver says so."""
        return self.driver_version + ("-sim" if self.simulated else "")

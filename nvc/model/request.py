"""What a caller asks for, in one shape for every entry point (command line, hook, CDI)."""

from __future__ import annotations

from nvc.base.value import Value

IMEX_CHANNELS = 1 << 20  # their numbers are smaller
#: A slice's cap, weight and policy, where it asks for none.
CORES_UNCAPPED, WEIGHT, POLICY_NATIVE = 0, 1, 5
#: How the memory of a slice that is suspended is moved: by the driver, or by its programs.
CHECKPOINT, SWAP = "checkpoint", "swap"


class DriverOptions(Value):
    """Where the driver is and how it may be looked at; the global options of the command line."""

    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"  # inside the root
    uid: int = -1  # of the probe; -1: the kernel's overflow id
    gid: int = -1
    load_kmods: bool = False
    create_imex_channels: bool = True
    imex_channels: tuple[int, ...] = ()
    inventory: bool = True
    timeout: float = 10.0  # seconds for each helper process
    search_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    mps_directory: str = "/tmp/nvidia-mps"
    library_directories: tuple[str, ...] = ()  # inside the root; given, the loader cache is not asked
    configuration: bytes = b""  # identity of the file that these come from: facts are kept apart for it
    device_root: str = ""  # where /dev is; "": the driver root where that has device nodes, else /


#: Where CUDA looks for the pipes of an MPS server if no variable names another place.
MPS_PIPES = DriverOptions().mps_directory


def place(root: str, ldcache: str, configured: tuple[str, str] = ("/", "")) -> tuple[str, str]:
    """The driver root that a program uses, and the loader cache in it: as named, else as `configured`.

    "" is not named. A root that is named has its loader cache in the usual place: the configured one is of another.
    """
    if root:
        configured = (root, "")
    return configured[0], ldcache or configured[1] or DriverOptions().ldcache


class Size(Value):
    """An amount of a device's memory, not yet held against a device: bytes, or `part` / `whole` of it."""

    name: str  # of the option or variable that says so, for messages
    text: str  # what it says
    bytes: int
    part: int = 0
    whole: int = 1


class TimeSetting(Value):
    """A cap, a weight or the number of a policy, and the option or variable that gave it."""

    name: str  # of the option or variable, for messages
    text: str  # what it says
    value: int


class Timing(Value, kw_only=True):
    """How a slice has a device's time. From what was asked for to the quota, each form of a slice inherits this."""

    cores: int = CORES_UNCAPPED  # percent of the device's time
    weight: int = WEIGHT  # among the slices of the device
    policy: int = POLICY_NATIVE  # its number; see nvc/model/slices/policy.py
    period_us: int = 0  # of the cap; 0: nvcd's


class Told(Value, kw_only=True):
    """What the registry keeps of a slice as it is written. Requests, portions and entries inherit this."""

    suspend_hook: str = ""  # what is told before the slice is suspended; see nvc/model/slices/hook.py
    resume_hook: str = ""  # and once it runs again
    suspend_by: str = ""  # its memory is moved by the driver, checkpoint, or by its programs, swap; "": the former
    idle_suspend: str = ""  # for how long it may be idle before it is suspended, or off; "": as on its devices


class Portion(Timing, Told, kw_only=True):
    """What a slice has of a device beside its limit of memory, until the slice is made."""

    hold: str = ""  # what of a claim this is: no two slices have it at once, except for containers that share one
    isolation: str = ""  # kernel: the driver limits the container's cgroup, too
    reserved: int = 0  # bytes of its memory that no other slice can reserve; at most the limit
    uncounted: bool = False  # with libraries whose memory is not counted


class Part(Portion):
    """A slice of one device with all its numbers, as a CDI device or a Kubernetes claim has it."""

    uuid: str  # of the GPU or MIG device
    limit: int  # bytes of its memory; NO_LIMIT of nvc/model/slices/layout.py: all of it


class Field(Value):
    """A field of SliceRequest that people can ask for, and everything by which they can."""

    name: str
    kind: str  # of its value: a parser in KINDS of nvc/model/slices/time_settings.py; a flag has none
    metavar: str  # for the help of its option
    text: str  # the help
    by: tuple[str, ...]  # beside `configure`: `vgpu run`, `vgpu set`, variable, annotation, size, claim
    option: str  # of `configure`; commands of `vgpu` have it without `vgpu-`
    key: str  # in tables of config.toml, and in parameters of claims
    page: str  # of docs: more about it
    timing: str = ""  # the field of Timing that it sets as it is
    each: bool = False  # there can be one for each device

    @property
    def variable(self) -> str:
        """Its variable of a container, if it has one."""
        return f"NVC_VGPU_{self.name.upper()}"


_MOST = ("run", "set", "variable", "annotation", "size")
_TOLD = ("run", "set", "variable", "annotation", "claim")
#: In the order in which options are shown. Options, variables, annotations, keys and the chart's schema follow it.
SLICE_FIELDS = (
    Field("memory", "size", "SIZE[,...]", "Memory limit: 10GiB or 25%; one for all devices, or one for each",
          _MOST, "vgpu-memory", "memory", "vgpu.md#sizes", each=True),
    Field("reserved", "size", "SIZE", "Reserve this much of each device; refuse if that is not free",
          ("run", "size"), "vgpu-memory-request", "request", "vgpu.md#reservations"),
    Field("cores", "cores", "PERCENT[,...]",
          "Cap: the highest percentage of the device's time; one for all devices, or one for each; 100: no cap",
          _MOST, "vgpu-cores", "cores", "sharing.md", each=True),
    Field("period", "period", "TIME", "How often a cap begins anew, 20ms to 1s (default: 100ms)",
          (*_MOST, "claim"), "vgpu-period", "period", "sharing.md#what-a-cap-does", "period_us"),
    Field("weight", "weight", "N", "Weight: slices that compete get time in proportion to it (default: 1)",
          (*_MOST, "claim"), "vgpu-weight", "weight", "sharing.md", "weight"),
    Field("policy", "policy", "NAME", "How slices share time: {policies}",
          (*_MOST, "claim"), "vgpu-policy", "policy", "sharing.md#the-policies"),
    Field("isolation", "isolation", "KIND",
          "mig: a MIG device of its own; mps: an MPS server of its own; kernel: a memory limit by the driver",
          ("run", "variable", "size", "claim"), "isolation", "isolation", "isolation.md"),
    Field("uncounted", "flag", "", "Keep libraries whose memory the shim cannot count (OpenCL, graphics, video)",
          ("claim",), "vgpu-uncounted", "uncounted", "memory-limits.md"),
    Field("suspend_hook", "hook", "HOOK", "Tell its programs before it is suspended, by HTTP or a signal",
          _TOLD, "vgpu-suspend-hook", "suspendHook", "suspend.md#hooks"),
    Field("resume_hook", "hook", "HOOK", "Tell its programs once it runs again",
          _TOLD, "vgpu-resume-hook", "resumeHook", "suspend.md#hooks"),
    Field("suspend_by", "mechanism", "HOW", "Suspend it by checkpoint (default), or faster by swap",
          _TOLD, "vgpu-suspend-by", "suspendBy", "suspend.md#mechanisms"),
    Field("idle_suspend", "idle", "TIME", "Suspend it when idle for this long, until it is used; off: never",
          _TOLD, "vgpu-idle-suspend", "idleSuspend", "suspend.md#when-it-is-idle"),
)  # fmt: skip
#: The rows of what Told has, by name.
TEXTS = {row.name: row for row in SLICE_FIELDS if row.name in Told._fields}


def fields_by(way: str) -> tuple[Field, ...]:
    """The fields that can be asked for in this way."""
    return tuple(row for row in SLICE_FIELDS if way in row.by)


class SliceRequest(Told):
    """A part of each device in place of all of it. What is not given is not limited.

    What the operator grants at most (`largest`, `most_cores`, `most_weight`) has one meaning everywhere: what asks
    for more is refused, what asks for nothing gets that much. `resolve` in nvc/model/slices/slice.py applies it.
    """

    # `memory` and `cores`: one for every device, or one for each in the order in which they were asked for.
    # `..._at`: for the device at this place in that order; wins over the others.
    memory: tuple[Size, ...] = ()
    memory_at: tuple[tuple[int, Size], ...] = ()
    cores: tuple[TimeSetting, ...] = ()  # percent of the device's time; 0: all of it
    cores_at: tuple[tuple[int, TimeSetting], ...] = ()
    weight: TimeSetting | None = None  # among the containers of a device
    policy: TimeSetting | None = None  # its number
    period: TimeSetting | None = None  # of the cap, microseconds
    devices: tuple[str, ...] = ()  # only these selectors; (): every device
    isolation: str = ""  # mig: its own MIG device, mps: its own MPS server, kernel: the driver limits its cgroup
    reserved: Size | None = None  # what no other slice can reserve of each device; at most the limit
    uncounted: bool = False  # keep libraries whose memory the shim does not see (OpenCL, graphics, video)
    library_path: tuple[str, ...] = ()  # where else the image's programs look for libraries
    largest: Size | None = None  # what the operator lets anybody ask for
    most_cores: int = 0  # likewise; 0: all
    most_weight: int = 0
    usual_period: int = 0  # microseconds: of caps for which no period is given; 0: nvcd's
    require_daemon: bool = False  # the operator refuses slices that only nvcd can keep where it does not run
    label: str = ""  # of SELinux: what is mounted for the container alone gets it
    parts: tuple[Part, ...] = ()  # for the devices with these UUIDs; win over all others


class Request(Value):
    """One container's wishes, checked for shape but not yet held against the host."""

    devices: tuple[str, ...] = ()  # selectors as written; none: driver files only
    capabilities: tuple[str, ...] = ()  # of model.CAPABILITIES
    requirements: tuple[str, ...] = ()  # each must hold
    mig_config: str = ""  # "" or "all"
    mig_monitor: str = ""
    imex_channels: tuple[int, ...] = ()
    cgroups: bool = True
    devbind: bool = True
    persistenced: bool = True
    fabricmanager: bool = True
    gsp_firmware: bool = True
    cuda_compat_mode: str = "ldconfig"  # ldconfig, mount, disabled
    ldconfig: str = ""  # never run; one with another name, such as /bin/true: the loader cache stays
    vgpu: SliceRequest | None = None


def clean_path(path: str) -> str:
    """An absolute path without empty parts, `.` and `..`, as runtimes and loaders understand those of an image."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)

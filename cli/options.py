"""Every option of the commands that must start fast, as plain tuples.

The parser of the hot path (parse.py), the usage text (usage.py) and click's tree (main.py) are all built
from these tables, so none can know an option that another does not.
"""

from __future__ import annotations

from nvc.model.request import SLICE_FIELDS

#: Long name, its letters or "", kind, name of the argument or "", help.
Option = tuple[str, str, int, str, str]

FLAG, VALUE, REPEATED, OPTIONAL, SHOW = range(5)

#: The value of an OPTIONAL option that was given none; no argument of a process can hold a NUL.
OMITTED = "\0"

COMMON: tuple[Option, ...] = (
    ("help", "h?", SHOW, "", "Show this help"),
    ("usage", "", SHOW, "", "Show a short usage message"),
    ("version", "V", SHOW, "", "Show the version"),
)

GLOBAL: tuple[Option, ...] = (
    ("debug", "d", VALUE, "FILE", "Log debug information to FILE (/dev/stderr is allowed)"),
    ("load-kmods", "k", FLAG, "", "Load kernel modules and create device nodes first"),
    ("no-pivot", "n", FLAG, "", "Accepted without effect: nvc executes nothing in the container"),
    ("user", "u", OPTIONAL, "UID[:GID]", "User and group of the probe, which loads NVML; without a value, yours"),
    ("root", "r", VALUE, "PATH", "Driver root directory (default: as configured, or /)"),
    ("ldcache", "l", VALUE, "FILE", "Loader cache inside the driver root (default: as configured)"),
    ("no-create-imex-channels", "", FLAG, "", "Do not create IMEX channel device nodes"),
    ("no-inventory", "", FLAG, "", "Ask the driver instead of using the inventory of an earlier run"),
    ("timeout", "", VALUE, "SECONDS", "Time limit of each helper process (default: 10)"),
    *COMMON,
)

FORMATS = ("text", "table", "json", "yaml")
_FORMAT: Option = ("format", "o", VALUE, "FORMAT", "text (default), table, json or yaml")

_DRIVER: tuple[Option, ...] = (
    ("mig-config", "", REPEATED, "ID", "Give the right to configure MIG; the only value is `all`"),
    ("mig-monitor", "", REPEATED, "ID", "Give the right to monitor MIG; the only value is `all`"),
    ("imex-channel", "", REPEATED, "CHANNEL", "IMEX channels, a comma-separated list of numbers"),
    ("no-persistenced", "", FLAG, "", "Omit the socket of nvidia-persistenced"),
    ("no-fabricmanager", "", FLAG, "", "Omit the socket of the fabric manager"),
    ("no-gsp-firmware", "", FLAG, "", "Omit the GSP firmware"),
)

INFO: tuple[Option, ...] = (
    ("csv", "", FLAG, "", "Comma-separated values, as nvidia-container-cli prints them"),
    _FORMAT,
    *COMMON,
)

LIST: tuple[Option, ...] = (
    ("device", "d", REPEATED, "ID", "Devices to list: index, UUID, PCI bus id, GPU:MIG index or `all`"),
    ("libraries", "l", FLAG, "", "List driver libraries"),
    ("binaries", "b", FLAG, "", "List driver programs"),
    ("ipcs", "i", FLAG, "", "List sockets and directories of driver services"),
    ("firmwares", "f", FLAG, "", "List GSP firmware"),
    ("compat32", "", FLAG, "", "With --libraries: 32-bit libraries too"),
    *_DRIVER,
    _FORMAT,
    *COMMON,
)

#: A slice of each device; `vgpu run` takes the same without the prefix.
VGPU: tuple[Option, ...] = tuple(
    (row.option, "", FLAG if row.kind == "flag" else VALUE, row.metavar, row.text) for row in SLICE_FIELDS
)

CONFIGURE: tuple[Option, ...] = (
    ("pid", "p", VALUE, "PID", "The container's init process"),
    ("host", "", FLAG, "", "No container: mount in ROOTFS on this host, until --undo"),
    ("undo", "", FLAG, "", "Undo what configure --host did to ROOTFS"),
    ("device", "d", REPEATED, "ID", "Devices to inject: index, UUID, PCI bus id, GPU:MIG index or `all`"),
    ("require", "r", REPEATED, "EXPR", "Refuse unless the host meets EXPR, such as `cuda>=12.4`"),
    ("ldconfig", "l", VALUE, "PATH", "Not executed; /bin/true keeps the loader cache as it is"),
    ("compute", "c", FLAG, "", "Add the compute capability"),
    ("utility", "u", FLAG, "", "Add the utility capability"),
    ("video", "v", FLAG, "", "Add the video capability"),
    ("graphics", "g", FLAG, "", "Add the graphics capability"),
    ("display", "D", FLAG, "", "Add the display capability"),
    ("ngx", "n", FLAG, "", "Add the ngx capability"),
    ("compat32", "", FLAG, "", "Add 32-bit libraries"),
    ("no-cgroups", "", FLAG, "", "Do not change device rules"),
    ("no-devbind", "", FLAG, "", "Do not bind device nodes"),
    ("no-cntlibs", "", FLAG, "", "The same as --cuda-compat-mode=disabled"),
    ("cuda-compat-mode", "", VALUE, "MODE",
     "CUDA forward compatibility: ldconfig (default; mount is the same) or disabled"),
    *_DRIVER,
    *VGPU,
    ("dry-run", "", FLAG, "", "Print the plan and change nothing"),
    ("format", "o", VALUE, "FORMAT", "With --dry-run: text (default), table, json or yaml"),
    *COMMON,
)

#: Commands that are parsed and run without click: options, what follows them, summary.
HOT: dict[str, tuple[tuple[Option, ...], str, str]] = {
    "info": (INFO, "", "Report the driver and its GPUs"),
    "list": (LIST, "", "List the files that a container needs"),
    "configure": (CONFIGURE, "ROOTFS", "Give a container access to GPUs"),
}


def dest(option: Option) -> str:
    """The key of an option's value."""
    return option[0].replace("-", "_")

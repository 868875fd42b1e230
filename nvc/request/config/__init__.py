"""The configuration file, config.toml: NVIDIA's keys under their own names, and ours in the table [nvc].

The file is TOML, whose parser takes longer to import than a hook may take to run. So what was parsed is kept
beside the inventory, under the identity of the file, and only a changed file is parsed again.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

import nvc
from nvc.base.errors import NvcError
from nvc.base.files import closing, read_up_to
from nvc.base.rundir import CONFIGURATIONS, belongs_to_us
from nvc.base.value import Value
from nvc.discovery import inventory
from nvc.model.request import MPS_PIPES, DriverOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Looked for in this order; where there is neither, the defaults hold.
PATHS = CONFIGURATIONS
MAX_SIZE = 1 << 20  # bytes
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ConfigError(
    NvcError, code="NVC-1801", stage="configuration", doctor="config",
    hint="correct it; docs/configuration.md has every key",
):  # fmt: skip
    """The configuration file cannot be read, is not TOML, or has a value that makes no sense."""

    #: Of Config: whoever asks for one of them gets this error. None: nothing of the file holds.
    fields: tuple[str, ...] | None = None
    #: Table and key that have the wrong value, where it is one.
    key: tuple[str, str] | None = None


class Config(Value):
    """Every setting. docs/configuration.md says what each one does and which key sets it.

    NVIDIA's keys are there for many programs, and a wrong value of one concerns those that use it: to ask for such
    a field raises ConfigError.
    """

    path: str = ""  # "": no file, all defaults
    identity: bytes = b""  # differs whenever the file does
    warnings: tuple[str, ...] = ()  # about keys that are not known, and values that are wrong
    refused: tuple[tuple[str, str], ...] = ()  # fields whose values are wrong, each with key and cause

    disable_require: bool = False
    swarm_resource: tuple[str, ...] = ()  # names of variables
    accept_environment_unprivileged: bool = True
    accept_volume_mounts: bool = False
    supported_capabilities: tuple[str, ...] = (
        "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
    )  # fmt: skip

    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"
    cli_debug: str = ""
    mps_directory: str = MPS_PIPES
    load_kmods: bool = True
    no_cgroups: bool = False
    uid: int = -1  # of the probe; -1: the kernel's overflow id
    gid: int = -1
    ldconfig: str = ""

    runtime_debug: str = ""
    log_level: str = "info"
    runtimes: tuple[str, ...] = ("runc", "crun")
    mode: str = "auto"  # auto, legacy (hook), csv, cdi, jit-cdi
    cdi_spec_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    cdi_default_kind: str = "nvidia.com/gpu"
    cdi_annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    jit_feature_flags: tuple[str, ...] = ()
    jit_disabled_hooks: tuple[str, ...] = ()  # of edits that are made for one container
    cuda_compat_mode: str = "ldconfig"  # ldconfig, mount, hook, disabled

    hook_path: str = ""  # of nvc-hook under one of its names, as nvc-runtime writes it; "": of this installation
    cdi_hook_path: str = ""  # likewise of nvc-cdi-hook
    skip_mode_detection: bool = False

    disable_imex_channel_creation: bool = False
    ignore_imex_channel_requests: bool = False
    disable_cuda_compat_lib_hook: bool = False
    no_additional_gids: bool = False

    log: str = ""
    timeout: float = 10.0  # seconds
    inventory: bool = True
    library_directories: tuple[str, ...] = ()  # inside the root; given, the loader cache is not asked
    kinds: tuple[str, ...] = ()  # of devices beside GPUs for which variables of containers may ask
    vgpu_variables: str = "obey"  # or refuse, ignore
    vgpu_memory: str = ""  # a size: the slice of containers that ask for none
    vgpu_memory_max: str = ""  # a size: more is refused
    vgpu_cores: int = 0  # percent of a device's time for containers that ask for no cap; 0: all
    vgpu_cores_max: int = 0  # more is refused; 0: all is granted
    vgpu_period: str = ""  # of caps for which no period is asked
    vgpu_weight: int = 0  # for containers that ask for none; 0: none
    vgpu_weight_max: int = 0  # more is refused; 0: nothing is
    vgpu_policy: str = ""  # for containers that ask for no share of time
    vgpu_isolation: str = ""  # kernel: the driver limits the cgroup of every container that has a size
    vgpu_uncounted: bool = False
    require_nvcd: bool = False  # refuse slices whose policy only nvcd enforces, where it does not run
    nvcd_web: str = ""  # where nvcd's live page is: address:port; "": nowhere
    nvcd_metrics: str = ""  # where nvcd's metrics are had: unix:/path or address:port; "": nowhere
    nvcd_on_bypass: str = "report"  # or deny, stop
    nvcd_on_excess: str = "deny"  # or report, stop
    nvcd_on_stranger: str = "leave"  # or slice, stop
    nvcd_swap_size: str = ""  # a size: the host's memory for suspended slices; "": no bound
    #: name, devices, and fields of SliceRequest with their texts, of each; see nvc.request.config.vgpu
    vgpu_devices: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]], ...] = ()

    if not TYPE_CHECKING:

        def __init__(self, *args, **fields):
            super().__init__(*args, **fields)
            for name, _ in self.refused:
                object.__delattr__(self, name)

        def __getattr__(self, name):  # a field that was taken out
            for field, cause in self.refused if name != "refused" else ():
                if field == name:
                    raise ConfigError("invalid value", self.path, cause)
            raise AttributeError(name)

    def __iter__(self) -> Iterator[Any]:
        """The values in order, defaults for fields that are refused: `Config(*config)` is the same again."""
        wrong = dict(self.refused)
        return (self._defaults[name] if name in wrong else getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:  # a field that was taken out cannot be compared
        return type(other) is type(self) and tuple(self) == tuple(other)

    __hash__ = Value.__hash__

    def replace(self, **changes: Any) -> Config:
        """A copy with the named fields changed. A field that was refused is well with a new value."""
        refused = tuple(one for one in self.refused if one[0] not in changes)
        return super().replace(**{"refused": refused, **changes})


def load(named: str = "", directory: str = "") -> Config:
    """The settings of the file `named`, else of the first of PATHS that exists, else the defaults.

    `directory` replaces the runtime directory, where the parsed form is kept. Raises ConfigError; only one of
    PATHS may be missing. A file that others could have changed is refused.
    """
    for path in (named,) if named else PATHS:
        try:
            fd = os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError) as error:
            if named:
                raise ConfigError.of("open", path, error, "name a file that exists") from None
            continue
        except OSError as error:
            raise ConfigError.of("open", path, error) from None
        with closing(fd):
            return _load(fd, path, directory)
    return Config()


def check_file(path: str) -> tuple[tuple[str, ...], tuple[ConfigError, ...]]:
    """All warnings and errors about a file, for somebody who is to correct it."""
    from nvc.request.config.file import examine

    try:
        fd = os.open(path, _READ)
    except OSError as error:
        return (), (ConfigError.of("open", path, error, "name a file that can be read"),)
    try:
        _check(os.fstat(fd), path)
        _, warnings, errors = examine(_read(fd, path), path)
    except ConfigError as error:
        return (), (error,)
    finally:
        os.close(fd)
    return warnings, errors


def driver_options(config: Config, channels: tuple[int, ...] = ()) -> DriverOptions:
    """Where the driver is and how it may be looked at; `channels` are the IMEX channels that may be made.

    Raises ConfigError where a value of the file is wrong.
    """
    return DriverOptions(
        root=config.root,
        ldcache=config.ldcache,
        uid=config.uid,
        gid=config.gid,
        load_kmods=config.load_kmods,
        create_imex_channels=not config.disable_imex_channel_creation,
        imex_channels=channels,
        inventory=config.inventory,
        timeout=config.timeout,
        mps_directory=config.mps_directory,
        library_directories=config.library_directories,
        configuration=config.identity,
    )


def _load(fd: int, path: str, directory: str) -> Config:
    status = os.fstat(fd)
    _check(status, path)
    identity = (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        status.st_uid, status.st_mode,
    )  # fmt: skip
    key = (nvc.__version__, Config._fields, path, identity)
    name = "config" + path.replace("/", "-")[-200:]
    kept = inventory.load(name, directory)
    try:
        if kept is not None and kept[0] == key:
            return Config(*kept[1])
    except (TypeError, ValueError, IndexError):
        pass  # kept by something else
    from nvc.request.config.file import parse

    config = parse(_read(fd, path), path).replace(path=path, identity=repr(identity).encode())
    inventory.store(name, (key, tuple(config)), directory)
    return config


def _check(status: os.stat_result, path: str) -> None:
    """Refuse a file that somebody else could have written: it says what root does."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError("open", path, "not a regular file")
    if status.st_size > MAX_SIZE:
        raise ConfigError("open", path, f"larger than {MAX_SIZE} bytes")
    if not belongs_to_us(status):
        raise ConfigError("open", path, "not owned by root", f"chown root {path}")
    if status.st_mode & 0o022:
        raise ConfigError("open", path, "writable by others", f"chmod go-w {path}")


def _read(fd: int, path: str) -> bytes:
    try:
        data = read_up_to(fd, MAX_SIZE)
    except OSError as error:
        raise ConfigError.of("read", path, error) from None
    if len(data) > MAX_SIZE:
        raise ConfigError("read", path, f"larger than {MAX_SIZE} bytes")
    return data

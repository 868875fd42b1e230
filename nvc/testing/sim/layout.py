"""Lays out and removes simulated driver roots."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nvc.base.errors import InitializationError, InputError, NvcError
from nvc.base.rundir import belongs_to_us
from nvc.discovery.driver.library_table import DriverLibrary
from nvc.model.request import MPS_PIPES
from nvc.testing.sim import description, elffile, graphics, loadercache, nodes, procfiles, state
from nvc.testing.sim.libraries import FIRMWARE, FOREIGN, LIBRARIES, PROGRAMS, file_name, soname
from nvc.testing.sim.prebuilt import prebuilt
from nvc.testing.sim.spec import SimGpu, SimSpec, gpus_of

#: Made first and removed last: tells a root of ours, even half made, from a directory of somebody else.
MARKER = ".nvc-sim"
_MARKER_TEXT = "root of a simulated NVIDIA driver; `nvc-cli sim destroy` removes it\n"

DESCRIPTION = "proc/driver/nvidia/sim/description"
STATE = "proc/driver/nvidia/sim/state"
#: Where the resource manager of tests is mounted, native/simdriver/rm.
RM = "proc/driver/nvidia/sim/rm"

_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_COMPAT32 = {"x86_64": ("i386", "/usr/lib/i386-linux-gnu")}
_COPY = "/usr/local/nvidia/lib64"
_WRAPPER = b"""#!/bin/sh
# Stands before the real program on the PATH, as on machines whose driver is mounted.
exec /usr/bin/nvidia-smi "$@"
"""


class _Root:
    """A directory being filled. Paths are inside it, without a slash in front."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._made: set[str] = set()

    def full(self, name: str) -> str:
        return os.path.join(self.path, name.lstrip("/"))

    def directory(self, name: str, mode: int = 0o755) -> None:
        if name in self._made:
            return
        self._made.add(name)
        full = self.full(name)
        if not os.path.isdir(full):
            if os.path.dirname(name.strip("/")):
                self.directory(os.path.dirname(name.strip("/")))
            os.mkdir(full)
            os.chmod(full, mode)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self.directory(os.path.dirname(name))
        with open(self.full(name), "xb") as out:
            out.write(content)
            os.fchmod(out.fileno(), mode)

    def copy(self, source: str, name: str, mode: int) -> None:
        self.directory(os.path.dirname(name))
        shutil.copyfile(source, self.full(name))
        os.chmod(self.full(name), mode)

    def link(self, text: str, name: str) -> None:
        self.directory(os.path.dirname(name))
        os.symlink(text, self.full(name))


def host_arch() -> str:
    """The architecture that the simulated driver is built for. Raises InitializationError."""
    machine = platform.machine()
    if machine not in _MULTIARCH:
        known = f"use {' or '.join(_MULTIARCH)}"
        raise InitializationError("simulate a driver", machine, "architecture not supported", known)
    return machine


def _library(
    root: _Root, library: DriverLibrary, version: str, libdir: str, arch: str, source: str
) -> list[tuple[str, str, str]]:
    """Places one library and its links; returns what the loader cache says of it."""
    file, name = file_name(library, version), soname(library, version)
    if source:
        root.copy(source, f"{libdir}/{file}", 0o644)
    else:
        content = elffile.shared_object(name, arch, abi_note=library.name == "libnvidia-tls")
        root.file(f"{libdir}/{file}", content)
    entries = [(name, f"{libdir}/{name}", arch)]
    if name != file:
        root.link(file, f"{libdir}/{name}")
    if library.dev_link:
        root.link(name, f"{libdir}/{library.name}.so")
        entries.append((f"{library.name}.so", f"{libdir}/{library.name}.so", arch))
    return entries


def _libraries(root: _Root, spec: SimSpec, built: str) -> list[tuple[str, str, str]]:
    arch = host_arch()
    standard = f"/usr/lib/{_MULTIARCH[arch]}"
    directories = [spec.libdir or standard] + ([_COPY] if spec.second_copy else [])
    entries: list[tuple[str, str, str]] = []
    for libdir in dict.fromkeys(directories):
        for library in LIBRARIES:
            source = os.path.join(built, f"{library.name}.so")
            source = source if os.path.exists(source) else ""
            entries += _library(root, library, spec.driver_version, libdir, arch, source)
    if spec.compat32 and arch in _COMPAT32:
        arch32, libdir32 = _COMPAT32[arch]
        for library in LIBRARIES:
            if library.compat32:
                entries += _library(root, library, spec.driver_version, libdir32, arch32, "")
    for file, name in FOREIGN:
        root.file(f"{standard}/{file}", elffile.shared_object(name, arch))
        root.link(file, f"{standard}/{name}")
        entries.append((name, f"{standard}/{name}", arch))
    searched = sorted({os.path.dirname(path) for _, path, _ in entries})
    root.file("etc/ld.so.conf", "".join(f"{path}\n" for path in searched).encode())
    if spec.stale_entry:
        entries.append(("libnvidia-ml.so.1", "/usr/lib/removed/libnvidia-ml.so.1", arch))
    return entries


def _programs(root: _Root, spec: SimSpec, built: str) -> None:
    for name in PROGRAMS:
        root.copy(os.path.join(built, name), f"usr/bin/{name}", 0o755)
    if spec.smi_wrapper:
        root.file("usr/local/bin/nvidia-smi", _WRAPPER, 0o755)
    for name in FIRMWARE:
        content = f"{name} of a simulated NVIDIA driver\n".encode()
        root.file(f"lib/firmware/nvidia/{spec.driver_version}/{name}", content)


def _graphics(root: _Root, spec: SimSpec) -> None:
    for name, content in graphics.files(spec.driver_version).items():
        root.file(name, content.encode())
    for name, soname_ in graphics.modules(spec.driver_version).items():
        root.file(name, elffile.shared_object(soname_, host_arch()))
        file, _, version = os.path.basename(name).partition(".so")
        if version:
            root.link(os.path.basename(name), f"{os.path.dirname(name)}/{file}.so")


def _sockets(root: _Root, spec: SimSpec) -> None:
    """Sockets that nobody listens on: enough to be found and mounted."""
    root.directory("run")
    root.directory("var")
    root.link("/run", "var/run")
    for wanted, service in ((spec.persistenced, "persistenced"), (spec.fabricmanager, "fabricmanager")):
        if wanted:
            root.directory(f"run/nvidia-{service}")
            socket = root.full(f"run/nvidia-{service}/socket")
            os.mknod(socket, stat.S_IFSOCK)
            os.chmod(socket, 0o666)
    root.directory("tmp", 0o1777)
    if spec.mps:
        root.directory(MPS_PIPES)
        control = root.full(f"{MPS_PIPES}/control")
        os.mkfifo(control)
        os.chmod(control, 0o666)


def _kernel_files(root: _Root, spec: SimSpec, gpus: tuple[SimGpu, ...]) -> None:
    majors = nodes.choose_majors()
    for name, content in procfiles.files(spec, gpus, majors).items():
        root.file(name, content.encode(), 0o444)
    root.directory("dev")
    if spec.device_nodes:
        for name, (major, minor, mode) in nodes.nodes(spec, gpus, majors).items():
            root.directory(os.path.dirname(name))
            nodes.make_node(root.full(name), major, minor, mode)
    text = description.render(spec, gpus, majors["nvidia-uvm"], majors["nvidia-caps"])
    root.file(DESCRIPTION, text, 0o444)
    root.file(STATE, state.empty(os.stat("/proc/self/ns/pid").st_ino), 0o666)
    os.truncate(root.full(STATE), state.SIZE)
    root.directory(RM)


def is_root(directory: str) -> bool:
    """Whether `create` made this directory."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(os.path.join(directory, MARKER), flags)
    except OSError:
        return False
    with open(fd, "rb") as marker:
        return marker.read(len(_MARKER_TEXT)) == _MARKER_TEXT.encode()


def not_a_root(step: str, directory: str) -> InputError:
    """The error for a directory that `create` has not made."""
    return InputError(step, directory, "not the root of a simulated driver", "name what `nvc-cli sim create` made")


@contextmanager
def _opened(step: str, directory: str) -> Iterator[str]:
    """A path that leads to this very directory, whatever others rename or link meanwhile; errors name the old one.

    Raises InputError for a link and for a directory of somebody else, InitializationError.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(directory):
            raise InputError(step, directory, "is a link", "name the directory itself") from None
        raise InitializationError.of(step, directory, error, "name another directory") from None
    held = f"/proc/self/fd/{fd}"
    try:
        owner = os.fstat(fd)
        if not belongs_to_us(owner):
            cause = f"belongs to user {owner.st_uid}"
            raise InputError(step, directory, cause, "name a new directory, or have its owner do that")
        yield held
    except OSError as error:
        where = str(error.filename or directory).replace(held, directory)
        raise InitializationError.of(step, where, error) from None
    except NvcError as error:
        error.path = error.path.replace(held, directory)
        raise
    finally:
        os.close(fd)


def _check_unused(root: str, directory: str) -> None:
    """Raises InputError while a root of ours is in use."""
    try:
        users = sorted({str(use.pid) for use in state.usage(os.path.join(root, STATE))})
    except OSError:
        users = []
    if users:
        cause = f"in use by {', '.join(users)}"
        raise InputError("remove simulated driver", directory, cause, "end these processes first")
    if os.path.ismount(os.path.join(root, RM)):
        raise InputError("remove simulated driver", directory, "its resource manager runs", "end it first")


def _empty(root: str) -> None:
    for name in sorted(os.listdir(root), key=lambda name: name == MARKER):
        path = os.path.join(root, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _check_mount(root: str, directory: str, spec: SimSpec) -> None:
    """Refuses a file system where libraries cannot be loaded or nodes not be opened, as Debian's /run is."""
    flags = os.statvfs(root).f_flag
    if flags & os.ST_NOEXEC or (spec.device_nodes and flags & os.ST_NODEV):
        cause = "its file system is mounted noexec or nodev"
        hint = "name a directory elsewhere, as /srv/sim"
        raise InputError("create simulated driver", directory, cause, hint)
    if spec.device_nodes:  # before an earlier root is removed
        probe = os.path.join(root, ".nvc-sim-node")
        nodes.make_node(probe, *nodes.NULL)
        os.unlink(probe)


def create(directory: str, spec: SimSpec) -> None:
    """Makes `directory` the root of the simulated driver that `spec` describes, replacing one made before.

    The directory may be missing, empty, or a simulated root that no process uses. Raises InputError where it
    is something else or `spec` asks for the impossible, PermissionDenied where device nodes may not be made,
    InitializationError where the compiled part is missing or the file system refuses. What it made is then removed.
    """
    gpus = gpus_of(spec)
    built = prebuilt()
    new = _missing(directory)
    try:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            where, hint = error.filename or directory, "name another directory"
            raise InitializationError.of("create simulated driver", where, error, hint) from None
        with _opened("create simulated driver", directory) as root:
            _replace(root, directory, spec, gpus, built)
    except BaseException:
        with suppress(OSError):
            for path in new:
                os.rmdir(path)
        raise


def _replace(root: str, directory: str, spec: SimSpec, gpus: tuple[SimGpu, ...], built: str) -> None:
    """Fills an opened directory, in place of what was simulated there before."""
    if os.listdir(root) and not is_root(root):
        cause = "not empty, and not a simulated driver"
        raise InputError("create simulated driver", directory, cause, "name a new directory")
    os.chmod(root, 0o755)  # from here on nobody else puts anything there
    _check_mount(root, directory, spec)
    _check_unused(root, directory)
    _empty(root)
    try:
        _fill(root, spec, gpus, built)
    except BaseException:
        with suppress(OSError):
            _empty(root)
        raise


def _missing(directory: str) -> list[str]:
    """The directories that have to be made for this one, the innermost first."""
    found = []
    path = os.path.abspath(directory)
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _fill(path: str, spec: SimSpec, gpus: tuple[SimGpu, ...], built: str) -> None:
    root = _Root(path)
    root.file(MARKER, _MARKER_TEXT.encode())
    entries = _libraries(root, spec, built)
    if spec.cache != "none":
        root.file("etc/ld.so.cache", loadercache.write(entries, combined=spec.cache == "combined"))
    _programs(root, spec, built)
    _graphics(root, spec)
    _sockets(root, spec)
    _kernel_files(root, spec, gpus)


def destroy(directory: str) -> None:
    """Removes a simulated root. Raises InputError where it is none or in use, InitializationError."""
    if not os.path.isdir(directory):
        raise not_a_root("remove simulated driver", directory)
    with _opened("remove simulated driver", directory) as root:
        if not is_root(root):
            raise not_a_root("remove simulated driver", directory)
        _check_unused(root, directory)
        _empty(root)
        os.rmdir(directory)  # nothing but an empty directory, whatever the name leads to by now

"""A running container, seen from outside by its first process. Nothing in it is believed: sizes are bounded, links
stay in its root directory, and of its variables only those that ask for GPUs are looked at."""

from __future__ import annotations

import os
import stat

from nvc.cgroup import v1
from nvc.cgroup.evaluate import allows
from nvc.cgroup.extend import Unreadable, readable
from nvc.cgroup.find import device_cgroup, read_all
from nvc.discovery.elf import read_elf
from nvc.discovery.ldcache import ARCH_FLAGS, ARCH_MASK, CACHE_LIMIT, parse_cache
from nvc.doctor.context import read_file
from nvc.errors import ContainerError, NvcError
from nvc.kernel import O_PATH, bpf
from nvc.oci import read_container
from nvc.target import exists
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.cgroup.program import Rule
    from nvc.containers.running import RunningContainer
    from nvc.discovery.elf import Elf
    from nvc.kernel import Kernel
    from nvc.oci import Container

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ENVIRONMENT_LIMIT = 1 << 20
_NODES_MAX = 512
_TOKENS_MAX = 16  # in one directory of LD_LIBRARY_PATH
#: Variables that are looked at; values of others never leave this module.
ASKING = ("NVIDIA_", "NVC_VGPU_", "CUDA_VISIBLE_DEVICES", "CUDA_VERSION", "LD_LIBRARY_PATH")
#: Where loaders look before they look into a directory itself.
_PREFERRED = (
    "glibc-hwcaps/x86-64-v4/", "glibc-hwcaps/x86-64-v3/", "glibc-hwcaps/x86-64-v2/", "tls/", "haswell/",
    "x86_64/", "",
)  # fmt: skip


class Node(Value):
    """A character device below the container's /dev."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


class File(Value):
    """A library as the loader of the container would find it."""

    path: str  # in the container, links resolved
    device: int
    inode: int
    elf: Elf | None  # None: it is no ELF file


class Inside:
    """What is in one container; `close` it when done. Raises ContainerError for a process that is closed to us."""

    def __init__(self, kernel: Kernel, found: RunningContainer) -> None:
        self.kernel = kernel
        self.found = found
        self.pid = found.pid
        self.arch = os.uname().machine
        try:
            self.root = os.open(f"/proc/{found.pid}/root", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ContainerError.of("look at container", f"pid {found.pid}", error, "run as root") from None
        self._environment: dict[str, str] | None = None
        self._cache: list[tuple[int, str, str]] | None = None

    def close(self) -> None:
        """Release what is held open."""
        os.close(self.root)

    @property
    def shares_mounts(self) -> bool:
        """Whether it has the host's mounts: it is then no container."""
        return os.readlink(f"/proc/{self.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")

    @property
    def name(self) -> str:
        """What its first process calls itself."""
        text = (read_file(f"/proc/{self.pid}/comm", 64) or b"").decode("utf-8", "replace").strip()
        return "".join(c if c.isprintable() else "?" for c in text)

    def bundle(self) -> Container | None:
        """Its bundle, None where that is not known. Raises ContainerError for one that makes no sense."""
        return read_container(self.found.bundle) if self.found.bundle else None

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which it asks for GPUs, of the bundle, else of its first process."""
        if self._environment is None:
            try:
                bundle = self.bundle()
            except ContainerError:
                bundle = None
            given = bundle.environment if bundle is not None else self._of_process()
            self._environment = {name: value for name, value in given.items() if name.startswith(ASKING)}
        return self._environment

    def _of_process(self) -> dict[str, str]:
        data = read_file(f"/proc/{self.pid}/environ", _ENVIRONMENT_LIMIT) or b""
        items = (item.decode("utf-8", "replace").partition("=") for item in data.split(b"\0"))
        return {name: value for name, equals, value in items if equals}

    def nodes(self) -> dict[str, Node]:
        """The nodes of NVIDIA below its /dev, by path."""
        found: dict[str, Node] = {}
        for directory in ("/dev", "/dev/nvidia-caps"):
            try:
                fd = self.kernel.open_in_root(self.root, directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                with os.scandir(fd) as entries:
                    names = sorted(entry.name for entry, _ in zip(entries, range(4096)))
                for name in names:
                    if name.startswith("nvidia") and len(found) < _NODES_MAX:
                        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        if stat.S_ISCHR(status.st_mode):
                            found[f"{directory}/{name}"] = Node(
                                f"{directory}/{name}", os.major(status.st_rdev), os.minor(status.st_rdev),
                                status.st_mode, status.st_uid, status.st_gid,
                            )  # fmt: skip
            finally:
                os.close(fd)
        return found

    def denied(self, rules: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], str]:
        """The `rules` that the container's cgroup does not allow, and the path of that cgroup.

        Raises MountError, OSError where the cgroup cannot be read.
        """
        proc = os.open(f"/proc/{self.pid}", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            cgroup = device_cgroup(self.kernel, proc)
        finally:
            os.close(proc)
        if cgroup is None:
            return (), ""
        try:
            if cgroup.version == 1:
                fd = os.open("devices.list", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cgroup.directory)
                entries = v1.parse(read_all(fd))
                everything = any(entry[0] == "a" for entry in entries)
                denied = [rule for rule in rules if not everything and v1.lacking(entries, rule) is not None]
                return tuple(denied), f"{cgroup.path}/devices.list"
            return self._denied_by_programs(cgroup.directory, rules), cgroup.path
        finally:
            cgroup.close()

    def _denied_by_programs(self, directory: int, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        denied: list[Rule] = []
        for number in bpf.attached(directory, effective=True)[0]:
            fd = bpf.open_program(number)
            try:
                code = readable(bpf.read_program(fd))
            except Unreadable:
                continue
            finally:
                os.close(fd)
            denied += [rule for rule in rules if not allows(code, (rule,)) and rule not in denied]
        return tuple(denied)

    def cache(self) -> list[tuple[int, str, str]] | None:
        """Entries of its loader cache for this machine, None where it has none. Raises OSError, DetectionError."""
        if self._cache is None:
            try:
                fd = self._open("/etc/ld.so.cache")
            except FileNotFoundError:
                return None
            try:
                size = min(os.fstat(fd).st_size, CACHE_LIMIT + 1)
                entries = parse_cache(os.pread(fd, size, 0), (b"libcuda.so", b"libnvidia-ml.so"))
            finally:
                os.close(fd)
            self._cache = [entry for entry in entries if entry[0] & ARCH_MASK == ARCH_FLAGS.get(self.arch)]
        return self._cache

    @property
    def musl(self) -> bool:
        """Whether its C library is musl: the driver's libraries are made for glibc."""
        glibc = "/lib64/ld-linux-x86-64.so.2" if self.arch == "x86_64" else "/lib/ld-linux-aarch64.so.1"
        there = exists(self.kernel, self.root, f"/lib/ld-musl-{self.arch}.so.1")
        return there and not exists(self.kernel, self.root, glibc)

    def library_path(self) -> tuple[str, ...]:
        """The directories of its LD_LIBRARY_PATH, with what its tokens can stand for."""
        value = self.environment.get("LD_LIBRARY_PATH", "").replace(";", ":")
        found = [place for item in value.split(":")[:256] for place in self._meant(item)]
        return tuple(dict.fromkeys(found))

    def _meant(self, item: str) -> list[str]:
        """What an item of LD_LIBRARY_PATH can mean: its loader may be that of any distribution."""
        if item.count("$") > _TOKENS_MAX:
            return []  # the container would say how much memory this takes
        try:
            origin = os.path.dirname(os.readlink(f"/proc/{self.pid}/exe"))
        except OSError:
            origin = ""  # it has ended
        tokens = {
            "LIB": ("lib64", f"lib/{self.arch}-linux-gnu", "lib"),
            "PLATFORM": (self.arch, "haswell", "xeon_phi"),
            "ORIGIN": (origin,),
        }
        found = [item]
        for token, values in tokens.items():
            for text in (f"${{{token}}}", f"${token}"):
                if text in item:
                    found = [one.replace(text, value) for one in found for value in values]
        return [place for place in found if place.startswith("/") and len(place) < 4096]

    def directories(self) -> tuple[str, ...]:
        """Where the loader looks last of all."""
        multiarch = f"{self.arch}-linux-gnu"
        return (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")

    def loaded(self, soname: str) -> tuple[File | None, str]:
        """What the loader would load for `soname`, and what leads it there."""
        for directory in self.library_path():
            for below in _PREFERRED:
                file = self.file(f"{directory}/{below}{soname}")
                if file is not None and file.elf is not None:
                    return file, f"LD_LIBRARY_PATH has {directory}"
        try:
            entries = self.cache() or []
        except (OSError, NvcError):
            entries = []
        for _, name, path in entries:
            if name == soname:
                file = self.file(path)
                if file is not None:
                    return file, f"the loader cache names {path}"
        for directory in self.directories():
            file = self.file(f"{directory}/{soname}")
            if file is not None:
                return file, f"it is in {directory}"
        return None, ""

    def file(self, path: str) -> File | None:
        """The regular file at `path`, None where there is none."""
        try:
            fd = self._open(path)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            try:
                elf: Elf | None = read_elf(fd, path)
            except NvcError:
                elf = None
            return File(self._real_path(fd, path), status.st_dev, status.st_ino, elf)
        except OSError:
            return None
        finally:
            os.close(fd)

    def mode(self, path: str) -> int:
        """Permissions of a regular file, 0o777 where there is none."""
        try:
            fd = self._open(path)
        except OSError:
            return 0o777
        try:
            return stat.S_IMODE(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _real_path(self, fd: int, path: str) -> str:
        """The path of an open file in the container: its own name, in the directory of the link `path`."""
        seen = os.readlink(f"/proc/self/fd/{fd}")
        name = os.path.basename(seen)
        return f"{os.path.dirname(path)}/{name}" if name else path

    def open_regular(self, path: str) -> int:
        """A readable descriptor of a regular file. Raises OSError."""
        return self._open(path)

    def _open(self, path: str) -> int:
        fd = self.kernel.open_in_root(self.root, path, O_PATH)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileNotFoundError(2, "not a regular file", path)
            return os.open(f"/proc/self/fd/{fd}", _READ)
        finally:
            os.close(fd)

"""What a start did, for the launcher to do again for the next container of the same kind, without an interpreter.

A record says what a start saw of the host, which files it opened, and the program that it gave to the applier.
The launcher (native/launcher/replay) looks again, and where everything is as it was, it executes that program.
Wherever it is not, the call is Python's. A record is trusted like the inventory: a file of ours alone in the
runtime directory, with a sum over what it holds.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat
from _struct import unpack

import nvc
from nvc.apply.again import PREFIX
from nvc.apply.cgroup.program import allow_block, encode
from nvc.apply.program import build_program
from nvc.base.files import closing, replace_file
from nvc.base.rundir import SYSTEM, in_user_namespace, runtime_directory
from nvc.discovery.devices.proc import PROC
from nvc.discovery.devices.sockets import SOCKETS, look, parents
from nvc.discovery.driver.compat import DIRECTORY as COMPAT
from nvc.discovery.find import kept_looks
from nvc.discovery.hostroot import HostRoot
from nvc.discovery.key import ABSENT, Look
from nvc.kernel import Kernel, privileges
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions, Request
from nvc.plan import ops

_FORMAT = "nvc-replay 2"
#: The field of `record` with the instructions that allow devices.
BLOCK = 3
_MOST = 64  # records that are kept
_LARGEST = 1 << 20  # bytes of a record
_MASK = (1 << 64) - 1


class Unfit(Exception):
    """The launcher cannot do this start again."""


def record(
    kernel: Kernel,
    options: DriverOptions,
    request: Request,
    plan: ops.Plan,
    facts: HostFacts | None,
    configuration: tuple[tuple[str, bytes], ...],
) -> list[bytes]:
    """The fields of a record behind its key, for a cgroup whose program denies the devices.

    Raises Unfit where the launcher cannot do it, OSError, NvcError.
    """
    if facts is None or facts.outer is not None or _names_compat(plan):
        raise Unfit
    kept = kept_looks(options, facts)
    if kept is None:
        raise Unfit
    wants_compat = request.cuda_compat_mode != "disabled" and "compute" in request.capabilities
    seen, services = _seen_looks(kernel, options, facts)
    sources = Places(services)
    program = build_program(plan, sources, b"").packed()  # type: ignore[arg-type]
    rules = tuple((op.major, op.minor) for op in plan.ops if isinstance(op, ops.AllowDevice))
    caps = privileges.PERMITTED["configure"] | (privileges.LOAD_KMODS if options.load_kmods else 0)
    roots = [plan.driver_root, plan.system_root, plan.device_root]
    head = [
        f"{caps:x}",
        str(int(options.timeout * 1000)),
        facts.driver_version if wants_compat else "",
        encode(allow_block(rules)).hex() if rules else "",
        *roots,
    ]
    looks: list[Look] = [("H", "f", path, state) for path, state in configuration]
    looks += kept
    looks += seen
    return [
        *(text.encode("utf-8", "surrogateescape") for text in head),
        *_listed(looks),
        *_listed(sources.looks),
        str(len(program)).encode(),
        program,
    ]


class Places:
    """Stands for the open sources of a plan: a source's number instead of its descriptor, and how it must look."""

    def __init__(self, services: dict[str, bytes]) -> None:
        self.looks: list[Look] = []
        self.services = services  # what is at the path of a socket or of a service's directory

    def _add(self, root: str, kind: str, path: str, answer: bytes) -> int:
        self.looks.append((root, kind, path, answer))
        return len(self.looks) - 1

    def file(self, op: ops.BindFile) -> int:
        """A regular file of the driver."""
        return self._add("D", "i", op.source, b"%o %d %d %d %d" % (stat.S_IFREG, *op.identity))

    def socket(self, op: ops.BindSocket) -> int:
        """A socket, or a service's directory."""
        return self._add("D", "o", op.source, self.services[op.source])

    def proc(self, op: ops.BindProc) -> int:
        """An entry of /proc/driver/nvidia."""
        return self._add("S", "t", op.source, b"%o" % (stat.S_IFDIR if op.is_directory else stat.S_IFREG))

    def device(self, op: ops.BindDevice) -> int:
        """A device node."""
        return self._add("V", "v", op.source, b"%o %d" % (stat.S_IFCHR, os.makedev(op.major, op.minor)))

    def device_directory(self, op: ops.BindDeviceDirectory) -> int:
        """A directory of device nodes."""
        return self._add("V", "t", op.source, b"%o" % stat.S_IFDIR)

    def inside(self, op: object) -> int:
        """A file of the image, or one of nvc's own."""
        raise Unfit

    host_file = inside


def _names_compat(plan: ops.Plan) -> bool:
    """Whether the loader shall take libraries of the image. The launcher repeats starts of images without such."""
    caches = [op for op in plan.ops if isinstance(op, ops.UpdateLoaderCache)]
    return any(entry.path.startswith(COMPAT + "/") for op in caches for entry in op.entries)


def _seen_looks(
    kernel: Kernel, options: DriverOptions, facts: HostFacts
) -> tuple[list[Look], dict[str, bytes]]:
    """What every start looks at anew: files of /proc and sockets. And mode and owner of each socket by its path.

    Raises Unfit where they have changed since.
    """
    contents = {file.name: b"+" + file.content for file in facts.proc_files}
    looks: list[Look] = [
        ("S", "c", f"{PROC}/{name}", contents.get(name, ABSENT))
        for name in ("params", "version", "registry")
    ]
    root = HostRoot.at(kernel, options.root)
    found: dict[str, bytes] = {}
    with root:
        paths = [f"{base}/{name}" for _, name in SOCKETS for base in ("/run", "/var/run")]
        for path in (*paths, *filter(None, (options.mps_directory,))):
            status, real = look(root, path)
            state = ABSENT if status is None else _owned(status)
            if status is not None:
                found[real] = state
                state += b" " + real.encode("utf-8", "surrogateescape")
            looks.append(("D", "s", path, state))
        for path in dict.fromkeys(above for ipc in facts.ipcs if ipc.is_directory for above in parents(ipc.path)):
            looks.append(("D", "o", path, _owned(root.stat(path))))
    if {ipc.path for ipc in facts.ipcs} != set(found):
        raise Unfit
    return looks, found


def _owned(status: os.stat_result) -> bytes:
    return b"%o %d" % (status.st_mode, status.st_uid)


def _listed(looks: list[Look]) -> list[bytes]:
    """A number, then two fields for each look."""
    fields = [str(len(looks)).encode()]
    for root, kind, path, answer in looks:
        fields += [f"{root}{kind}{path}".encode("utf-8", "surrogateescape"), answer]
    return fields


def store(name: str, content: list[bytes]) -> None:
    """Write a record: fields that end with a NUL, the program last, and before them the sum of all their words.

    Raises Unfit, OSError, NvcError.
    """
    if any(b"\0" in field for field in content[:-1]) or os.geteuid() or in_user_namespace():
        raise Unfit
    body = b"\0".join(content)
    body += bytes(-len(body) % 8)
    words = sum(unpack(f"<{len(body) // 8}Q", body)) & _MASK
    data = f"{_FORMAT} {nvc.__version__} {words:016x}".encode() + b"\0" + body
    if len(data) > _LARGEST or runtime_directory() != SYSTEM:
        raise Unfit
    with closing(os.open(SYSTEM, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as base:
        others = [other for other in os.listdir(base) if other.startswith(PREFIX)]
        for other in others if len(others) >= _MOST else ():
            os.unlink(other, dir_fd=base)
        replace_file(name, data, 0o600, base, sync=False)

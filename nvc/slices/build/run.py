"""A slice for a plain process: a mount namespace of its own, in which the shim lies over the driver's files."""

from __future__ import annotations

import os
import posixpath
import signal

from nvc.apply.program import build_program
from nvc.apply.sources import Sources
from nvc.discovery.hostroot import identity_of
from nvc.discovery.outer import refuse_slices
from nvc.errors import ContainerError, InputError, MountError, NvcError, PermissionDenied
from nvc.kernel import O_PATH, ApplyTarget, private_mounts, strerror, writable_over
from nvc.model import HostFacts
from nvc.plan.ops import BindHostFile, Ledger, Plan, Symlink, Tmpfs
from nvc.request import Request, SliceRequest
from nvc.selection import select
from nvc.target import Layout, Target
from nvc.value import Value
from nvc.slices.build import shim
from nvc.slices.client import presence
from nvc.slices.model import layout, ledger
from nvc.slices.store import registry
from nvc.slices.build.confine import die_with, no_new_privileges
from nvc.slices.build.copies import find_copies
from nvc.slices.build.fence import fenced
from nvc.slices.store.living import living_of
from nvc.plan.slices import not_enforced
from nvc.slices.policy.policies import governed
from nvc.slices.build.prepare import by_mps, measured, start_mps
from nvc.slices.store.programs import check_name, claim
from nvc.slices.model.slice import Slice, SliceDevice, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.kernel import Kernel
    from nvc.plan.ops import Op

#: Forwarded to the program; the terminal sends others to it by itself.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
IGNORED = (signal.SIGINT, signal.SIGQUIT)
_MESSAGE_MAX = 4096
MPS = "mps"  # beside the shim: the pipes of the program's own MPS server


class Fence(Value):
    """How a program is fenced off."""

    kind: str  # "", mig or mps
    percent: int  # of the device's threads, for mps


class Program(Value):
    """What is to be run, and as whom."""

    words: tuple[str, ...]
    environment: dict[str, str]
    uid: int = -1  # -1: as the caller
    gid: int = -1
    timeout: float = 10.0  # seconds for the mounts
    name: str = ""  # of the slice; "": by the command


def run(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[str, ...],
    wanted: SliceRequest,
    program: Program,
    warn: Callable[[tuple[str, ...]], None],
) -> int:
    """Run a program with a slice of each of `devices`, and none of the others; its exit code is returned.

    `warn` is told when it has started of what its slice does not keep.

    A program that a signal ended gives 128 and the signal's number. Raises NvcError when it cannot be started.
    """
    if os.geteuid() != 0:
        raise PermissionDenied("make a mount namespace", cause="only root can")
    refuse_slices(facts)
    if program.name:
        check_name(program.name)
    request = Request(devices=devices or ("all",), vgpu=wanted)
    selection = select(facts, request)
    if wanted.fence == "mig":
        request, selection = fenced(kernel, facts, selection, request, "")
    chosen = resolve(facts, selection, request.vgpu or wanted)
    if not chosen:
        raise InputError("make a slice", cause="no device", hint="`nvc-cli info` shows the devices")
    percent = 100
    if wanted.fence == "mps":
        chosen, _, percent = by_mps(chosen, "")
    every = resolve(facts, select(facts, Request(devices=("all",))), SliceRequest())
    uuids = {device.uuid for device in chosen}
    others = tuple(device.replace(limit=0) for device in every if device.uuid not in uuids)
    environment = dict(program.environment)
    environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(device.uuid for device in chosen))
    if facts.simulated:
        _find_simulated(facts, environment)
    ruled = governed(chosen)
    told = not_enforced(ruled, presence.not_enforced(ruled, wanted.require_daemon))
    slice_devices = measured((*ruled, *others), facts.driver_label)

    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        program = program.replace(environment=environment)
        fence = Fence(wanted.fence, percent)
        _child(kernel, facts, slice_devices, fence, program, parent, write)
    os.close(write)
    return _wait(kernel, pid, read, lambda: warn(told))


def _find_simulated(facts: HostFacts, environment: dict[str, str]) -> None:
    """Have a program find a simulated driver, which lies where neither a shell nor a loader looks.

    Not so for other driver roots: they may hold a whole system, whose C library is not to be mixed with the host's.
    """
    wanted = [soname for soname, _ in shim.FILES]
    libraries = [posixpath.dirname(one.path) for one in facts.libraries if one.soname in wanted]
    for name, places in (("LD_LIBRARY_PATH", libraries), ("PATH", ["/usr/bin"])):
        added = [posixpath.normpath(f"{facts.driver_root}/{place}") for place in dict.fromkeys(places)]
        environment[name] = ":".join([*filter(None, [environment.get(name)]), *added])


def _child(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[SliceDevice, ...],
    fence: Fence,
    program: Program,
    parent: int,
    out: int,
) -> None:
    """Become the program. What goes wrong before is told through `out`; never returns."""
    try:
        die_with(parent)
        try:
            program.environment.update(_enter_slice(kernel, facts, devices, fence, program))
        except OSError as error:  # not the program's, as those below are
            raise ContainerError.of("make a slice", str(error.filename or ""), error) from None
        _become(program)
        die_with(parent)  # a change of ids forgets it (prctl(2))
        os.execvpe(program.words[0], list(program.words), program.environment)
    except NvcError as error:
        text = str(error)
    except OSError as error:
        text = str(InputError.of("run", program.words[0], error))
    except BaseException as error:
        text = f"internal error: {type(error).__name__}: {error}"
    os.write(out, text.encode("utf-8", "replace")[:_MESSAGE_MAX])
    os._exit(1)


def _become(program: Program) -> None:
    if program.gid >= 0:
        os.setgroups([])
        os.setresgid(program.gid, program.gid, program.gid)
    if program.uid >= 0:
        os.setresuid(program.uid, program.uid, program.uid)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and programs inherit that
    no_new_privileges()


def _enter_slice(
    kernel: Kernel, facts: HostFacts, devices: tuple[SliceDevice, ...], fence: Fence, program: Program
) -> dict[str, str]:
    """Give this process a mount namespace in which it has the slice; variables that it needs are returned.

    Raises NvcError, OSError.
    """
    private_mounts()
    target = own_target()
    files = shim.installed()
    libraries = [
        (library.soname, posixpath.normpath(f"{facts.driver_root}/{library.path}"))
        for library in facts.libraries
        if library.soname in [soname for soname, _, _ in files.files]
    ]
    if not libraries:
        raise ContainerError(
            "make a slice", facts.driver_root, "the driver has neither libcuda nor libnvidia-ml"
        )
    libs_dir = posixpath.dirname(libraries[-1][1])  # of libcuda, where there is one
    known = tuple(identity for _, _, identity in files.files)
    found = find_copies(kernel, target.rootfs, libs_dir, (), known)
    places = {libs_dir, *(posixpath.dirname(path) for _, path in libraries), *found.links}
    for place in sorted(places):
        writable_over(place)
    mps = ""
    if fence.kind == "mps":
        _, mps, _ = by_mps(devices, registry.key_of(kernel, target))
    slice = Slice(
        devices, files.directory, files.files,
        f"{registry.base_directory()}/{registry.key_of(kernel, target)}/quota",
        found.copies, tuple(sorted(places - {libs_dir})), found.hidden, fence=fence.kind,
        mps=mps, mps_percent=fence.percent, daemon=registry.daemon_directory(),
    )  # fmt: skip
    target.layout = Layout("", libs_dir, "", False)
    registration = registry.enter(kernel, target, slice, libs_dir)
    try:
        claim(kernel, registry.key_of(kernel, target), program.name, program.words[0])
        if mps:
            start_mps(kernel, target, slice, program.timeout)
        _apply(kernel, target, _plan(facts, slice, libraries, libs_dir), program.timeout)
    except BaseException:
        registration.undo()
        raise
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{libs_dir}/{layout.PRIVATE}/{MPS}"} if mps else {}


def own_target() -> Target:
    """This process's own mount namespace as a target."""
    target = Target()
    target.pid, target.pidfd, target.proc, target.mount_namespace = os.getpid(), -1, -1, -1
    target.rootfs = os.open("/", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    target.rootfs_path, target.user_namespace, target.host = "", False, False
    target.id = target.bundle = ""
    target.fsuid, target.fsgid = os.geteuid(), os.getegid()
    return target


def _plan(facts: HostFacts, slice: Slice, libraries: list[tuple[str, str]], libs_dir: str) -> Plan:
    shims = {soname: (path, identity) for soname, path, identity in slice.shims}
    ops: list[Op] = []
    for soname, path in libraries:
        source, identity = shims[soname]
        ops.append(BindHostFile(source, path, identity))
        # Under the overlay it is another file than the one that discovery saw.
        real = os.path.realpath(path)
        ops.append(BindHostFile(real, f"{libs_dir}/{layout.REAL}{soname}", identity_of(os.stat(real))))
    ops.append(BindHostFile(slice.quota, f"{libs_dir}/{layout.QUOTA_FILE}", None))
    if slice.mps:
        ops.append(BindHostFile(slice.mps, f"{libs_dir}/{layout.PRIVATE}/{MPS}", None, True, True))
    ops.append(BindHostFile(slice.daemon, f"{libs_dir}/{layout.DAEMON_DIRECTORY}", None, True))
    ops.append(Ledger(f"{libs_dir}/{layout.LEDGER_DIRECTORY}", ledger.header(), layout.LEDGER_SIZE))
    ops += [BindHostFile(shims[copy.soname][0], copy.path, shims[copy.soname][1]) for copy in slice.copies]
    private = f"{libs_dir}/{layout.PRIVATE}"
    ops += [Symlink(private, f"{place}/{layout.PRIVATE}") for place in slice.links]
    ops += [Tmpfs(path) for path in slice.hidden]
    return Plan(facts.driver_root, "/", "/", facts.driver_label, (), tuple(dict.fromkeys(ops)), (), slice)


def _apply(kernel: Kernel, target: Target, plan: Plan, timeout: float) -> None:
    """Without a journal: what is done is seen by this process alone and goes with it."""
    sources = Sources(kernel, plan)
    try:
        program = build_program(plan, sources, b"")
        place = ApplyTarget(-1, target.rootfs, -1, timeout, target.fsuid, target.fsgid)
        try:
            report = kernel.apply(program.packed(), place)
        except OSError as error:
            raise ContainerError.of("make a slice", "", error, "see --timeout if the host is busy") from None
        if report.error:
            raise MountError(report.step, report.path, strerror(report.error))
    finally:
        sources.close()


def _wait(kernel: Kernel, pid: int, read: int, started: Callable[[], None]) -> int:
    """The exit code of the program, signals being passed on meanwhile. `started` is called once it runs."""
    for number in FORWARDED:
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(read, "rb") as reply:
        problem = reply.read(_MESSAGE_MAX).decode("utf-8", "replace")
    if not problem:
        started()
    status = os.waitpid(pid, 0)[1]
    _forget(kernel, pid)
    if problem:
        raise RunError(problem)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class RunError(NvcError):
    """A program could not be started; the text is that of the error in its process."""

    code = "NVC-2105"
    stage = "vgpu"
    doctor = "vgpu"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def _forget(kernel: Kernel, pid: int) -> None:
    """Remove the entry of a program that has ended, unless processes of it go on."""
    base = registry.base_directory()
    lock = registry.locked(kernel)
    try:
        for name in registry.entry_names(base):
            try:
                entry = registry.read_entry(f"{base}/{name}")
            except registry.RegistryError:
                continue  # it is not this program's, or cannot be told from others: `vgpu prune` names it
            if entry.pid == pid and not entry.rootfs and not living_of(kernel, (entry,)):
                registry.remove(entry)
    finally:
        os.close(lock)

"""Slices for programs without a container: a mount namespace in which the shim covers the driver's files."""

from __future__ import annotations

import errno
import os
import posixpath
import signal
from collections.abc import Callable
from functools import partial

from nvc.apply.cgroup.leaf import Leaf, enter, make_leaf, remove
from nvc.apply.program import build_program
from nvc.apply.sources import Sources
from nvc.apply.target import Target
from nvc.base.errors import ContainerError, InputError, MountError, NvcError, PermissionDenied, SourceChanged
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.base.wake import Wake
from nvc.discovery.nvml.questions import MemoryLimit
from nvc.discovery.outer import refuse_slices
from nvc.kernel import O_PATH, ApplyTarget, Kernel, private_mounts, strerror, writable_over
from nvc.model.facts import HostFacts
from nvc.model.request import Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices import layout
from nvc.model.slices.isolation import KERNEL
from nvc.model.slices.slice import SliceDevice, library_directory, resolve
from nvc.plan.ops import Plan
from nvc.plan.slices import is_shimmed, shim_ops, too_small
from nvc.slices.make import shim
from nvc.slices.make.builder import build_slice, choose_devices, install_slice
from nvc.slices.make.confine import die_with, no_new_privileges
from nvc.slices.make.kernel_limits import check_devices, limits_of, release
from nvc.slices.store import registry
from nvc.slices.store.effects import without_effect
from nvc.slices.store.programs import check_name, claim
from nvc.slices.store.snapshot import snapshot

#: Forwarded to the program; the terminal sends others to it by itself.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
IGNORED = (signal.SIGINT, signal.SIGQUIT)
_MESSAGE_MAX = 4096
RELEASE_TIME = 10.0  # seconds for the driver to end what a killed run had reserved
_CHANGED = "\1"  # begins the message of a SourceChanged
#: Likewise of a program that could not be executed. The exit codes are those of env(1), nohup(1) and shells.
_NOT_FOUND, _NOT_EXECUTED = "\2", "\3"
EXEC_CODES = {_NOT_FOUND: 127, _NOT_EXECUTED: 126}
MPS = "mps"  # beside the shim: the pipes of the program's own MPS server


class Command(Value):
    """The program to run, and its user."""

    words: tuple[str, ...]
    environment: dict[str, str]
    uid: int = -1  # -1: as the caller
    gid: int = -1
    timeout: float = 10.0  # seconds for the mounts
    name: str | None = None  # of the slice; None: by the command


def run(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[str, ...],
    wanted: SliceRequest,
    program: Command,
    warn: Callable[[tuple[str, ...]], None],
) -> int:
    """Run a program with a slice of each of `devices`, and none of the others; its exit code is returned.

    `warn` is told when it has started of what its slice does not keep.

    A program that a signal ended gives 128 and the signal's number. Raises NvcError when it cannot be started,
    with the exit code 127 where there is no such program and 126 where it cannot be executed. Raises SourceChanged
    when `facts` or a device's policy are not what they were.
    """
    if os.geteuid() != 0:
        raise PermissionDenied("make a mount namespace", cause="only root can")
    refuse_slices(facts)
    if program.name is not None:
        check_name(program.name)
    request = Request(devices=devices or ("all",), vgpu=wanted)
    selection = select(facts, request)
    chosen = choose_devices(kernel, facts, selection, request)[2]
    if not chosen:
        raise InputError("make a slice", cause="no device", hint="`nvc-cli info` shows the devices")
    every = resolve(facts, select(facts, Request(devices=("all",))), SliceRequest())
    uuids = {device.uuid for device in chosen}
    others = tuple(device.replace(limit=0) for device in every if device.uuid not in uuids)
    environment = dict(program.environment)
    environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(device.uuid for device in chosen))
    if facts.simulated:
        _find_simulated(facts, environment)

    leaf = _own_leaf(facts, chosen, warn) if wanted.isolation == KERNEL else None
    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            program = program.replace(environment=environment)
            _child(kernel, facts, (*chosen, *others), wanted, program, parent, write, leaf)
        os.close(write)
        return _wait(kernel, pid, read, warn)
    finally:
        if leaf is not None:
            limits = limits_of(facts, chosen, False) if wanted.reserved is not None else ()
            if _released(facts, leaf, limits, program.timeout, warn):
                remove(leaf.path)


def _own_leaf(
    facts: HostFacts, devices: tuple[SliceDevice, ...], warn: Callable[[tuple[str, ...]], None]
) -> Leaf:
    """A cgroup for the program alone, which the driver can limit. Raises NvcError.

    `warn` is told of earlier runs whose reservations cannot be ended.
    """
    check_devices(facts, devices)
    every = tuple(MemoryLimit(gpu.uuid, 0, layout.NO_LIMIT) for gpu in facts.gpus if not gpu.mig_enabled)
    with closing(os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as own:
        return make_leaf(own, lambda leaf: _released(facts, leaf, every, RELEASE_TIME, warn))


def _released(
    facts: HostFacts,
    leaf: Leaf,
    limits: tuple[MemoryLimit, ...],
    timeout: float,
    warn: Callable[[tuple[str, ...]], None],
) -> bool:
    """Whether the driver reserves nothing for a cgroup any more: `warn` is told why not."""
    problem = release(facts, leaf, limits, timeout) if limits else ""
    if problem:
        warn((f"{problem}; the cgroup stays, and the next `vgpu run --isolation kernel` here tries again",))
    return not problem


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
    wanted: SliceRequest,
    program: Command,
    parent: int,
    out: int,
    leaf: Leaf | None,
) -> None:
    """Become the program, in the cgroup `leaf` if there is one; never returns.

    `out` gets warnings, a zero byte, and why the program does not run.
    """
    try:
        die_with(parent)
        if leaf is not None:
            enter(leaf)
        try:
            told = _enter_slice(kernel, facts, devices, wanted, program)
        except OSError as error:  # not the program's, as those below are
            raise ContainerError.of("make a slice", str(error.filename or ""), error) from None
        os.write(out, "\n".join(told).encode("utf-8", "replace")[:_MESSAGE_MAX] + b"\0")
        _become(program)
        die_with(parent)  # a change of ids forgets it (prctl(2))
        text = _execute(program)
    except SourceChanged as error:
        text = f"{_CHANGED}{error}"
    except NvcError as error:
        text = f"{error.code}\n{error.doctor}\n{error}"
    except BaseException as error:
        text = f"\n\ninternal error: {type(error).__name__}: {error}"
    os.write(out, text.encode("utf-8", "replace")[:_MESSAGE_MAX])
    os._exit(1)


def _execute(program: Command) -> str:
    """Execute the program; returns the message where that fails."""
    try:
        if not program.words[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))  # Python has a ValueError for it
        os.execvpe(program.words[0], list(program.words), program.environment)
    except OSError as error:
        missing = error.errno == errno.ENOENT
        hint = "write its path, or have its directory in PATH" if missing else ""
        if error.errno == errno.EACCES and not os.access(program.words[0], os.X_OK):
            hint = "make it executable: `chmod +x`"
        text = str(InputError.of("run", program.words[0], error, hint))
        return f"{_NOT_FOUND if missing else _NOT_EXECUTED}\n\n{text}"


def _become(program: Command) -> None:
    if program.gid >= 0:
        os.setgroups([])
        os.setresgid(program.gid, program.gid, program.gid)
    if program.uid >= 0:
        os.setresuid(program.uid, program.uid, program.uid)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs inherit that
        signal.signal(number, signal.SIG_DFL)
    no_new_privileges()


def _enter_slice(
    kernel: Kernel,
    facts: HostFacts,
    devices: tuple[SliceDevice, ...],
    wanted: SliceRequest,
    program: Command,
) -> tuple[str, ...]:
    """Give this process a mount namespace in which it has the slice; warnings are returned.

    Raises NvcError, OSError.
    """
    directory = library_directory(facts)
    if not directory:
        raise ContainerError(
            "make a slice", facts.driver_root, "the driver has neither libcuda nor libnvidia-ml",
            "reinstall the driver, or name its root with --root",
        )
    private_mounts()
    target = own_target()
    libs_dir = _on_host(facts, directory)
    slice = build_slice(kernel, facts, devices, target, libs_dir, wanted)
    mps = f"{libs_dir}/{layout.PRIVATE}/{MPS}"
    ops = shim_ops(facts.libraries, lambda path: _on_host(facts, path), libs_dir, slice, mps)
    plan = Plan(facts.driver_root, "/", "/", facts.driver_label, (), ops, (), slice)
    shimmed = [library.path for library in facts.libraries if is_shimmed(library, slice)]
    places = {libs_dir, *slice.links, *(posixpath.dirname(_on_host(facts, path)) for path in shimmed)}

    def apply() -> None:
        claim(kernel, registry.key_of(kernel, target), program.name or "", program.words[0])
        _apply(kernel, target, plan, sorted(places), program.timeout)

    install_slice(kernel, target, slice, libs_dir, program.timeout, apply)
    if slice.mps and not slice.server:  # there, the shim says when
        program.environment["CUDA_MPS_PIPE_DIRECTORY"] = mps
    own = registry.key_of(kernel, target)
    before = {device.uuid: device.policy for device in slice.devices if not device.hidden}
    return (*too_small(slice.devices), *without_effect(kernel, own, wanted, before))


def _on_host(facts: HostFacts, path: str) -> str:
    """A path of the driver root as the host calls it."""
    return posixpath.normpath(f"{facts.driver_root}/{path}")


def own_target() -> Target:
    """This process's own mount namespace as a target."""
    target = Target()
    target.pid, target.pidfd, target.proc, target.mount_namespace = os.getpid(), -1, -1, -1
    target.rootfs = os.open("/", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    target.rootfs_path, target.user_namespace, target.standalone, target.host = "", False, False, False
    target.id = target.bundle = ""
    target.fsuid, target.fsgid = os.geteuid(), os.getegid()
    return target


def _apply(kernel: Kernel, target: Target, plan: Plan, places: list[str], timeout: float) -> None:
    """Apply the plan, for which the directories `places` get a writable layer.

    Without a journal: what is done is seen by this process alone and goes with it.
    """
    with Sources(kernel, plan) as sources:
        program = build_program(plan, sources, b"")
        # Sources are open: what is mounted over their directories now does not hide them.
        for directory in places:
            writable_over(directory)
        place = ApplyTarget(-1, target.rootfs, -1, timeout, target.fsuid, target.fsgid)
        try:
            report = kernel.apply(program.packed(), place)
        except OSError as error:
            raise ContainerError.of("make a slice", "", error, "see --timeout if the host is busy") from None
        if report.error:
            raise MountError.of(report.step, report.path, OSError(report.error, strerror(report.error)))


def _wait(kernel: Kernel, pid: int, read: int, warn: Callable[[tuple[str, ...]], None]) -> int:
    """The exit code of the program, signals being passed on meanwhile. `warn` is called once it runs."""
    wake, pidfd = Wake(), os.pidfd_open(pid)  # never closed: signals come until this process ends
    before = {number: signal.getsignal(number) for number in (*FORWARDED, *IGNORED)}
    for number in FORWARDED:
        wake.obey((number,), partial(_forward, pidfd, number))
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    told, _, problem = _reply(wake, read).decode("utf-8", "replace").rpartition("\0")
    if not problem:
        warn(tuple(told.splitlines()))
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        wake.wait(fd=pidfd)
    _forget(kernel, pid)
    if problem.startswith(_CHANGED):
        for number, handler in before.items():  # the caller tries again, and the program inherits them
            signal.signal(number, handler)
        raise SourceChanged("make a slice", cause=problem.removeprefix(_CHANGED))
    if problem:
        kind, doctor, text = problem.split("\n", 2)
        raise RunError(text, kind, doctor)
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code >= 0 else 128 - code


def _forward(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass  # it has ended, and this process is about to


def _reply(wake: Wake, read: int) -> bytes:
    """What the program's process writes until the program runs, or it has ended. Closes `read`."""
    found = b""
    os.set_blocking(read, False)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while (data := pipe.read(_MESSAGE_MAX)) != b"":
            if data is None:
                wake.wait(fd=read)
            else:
                found += data
    return found


class RunError(NvcError, code="NVC-2105", stage="vgpu", doctor="vgpu"):
    """A program could not be started. Text, code and doctor are those of the error in its process."""

    def __init__(self, text: str, code: str = "", doctor: str = "") -> None:
        """`code`: of the error, or one of EXEC_CODES."""
        super().__init__(text)
        self.text = text
        if code in EXEC_CODES:  # the slice is sound
            self.exit_code, self.doctor = EXEC_CODES[code], ""
        elif code:
            self.code, self.doctor = code, doctor

    def __str__(self) -> str:
        return self.text


def _forget(kernel: Kernel, pid: int) -> None:
    """Remove the entry of a program that has ended, unless processes of it go on."""
    with closing(registry.locked(kernel)):
        for one in snapshot(kernel, locked=True).slices:
            if one.entry.pid == pid and not one.entry.rootfs and one.life is None:
                registry.remove(one.entry.directory)

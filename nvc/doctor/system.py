"""The host around the driver: kernel, rights, /proc, cgroups, SELinux, systemd."""

from __future__ import annotations

import os
import re

from nvc.cgroup.find import cgroup_mounts
from nvc.doctor import AS_ROOT, Check, failed, first, ok, unknown, warning
from nvc.doctor.context import read_file, read_text
from nvc.errors import InitializationError
from nvc.kernel import O_PATH, bpf, check_floor
from nvc.rundir import in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context
    from nvc.kernel import Kernel

_SELINUX = "/sys/fs/selinux"
_BOOLEAN = "container_use_devices"
#: What engines and hypervisors leave for a program to see that it is in a container.
_MARKS = ("/.dockerenv", "/run/.containerenv")
TRANSIENT = ("/run/systemd/transient", "/run/systemd/system", "/etc/systemd/system")
_NAMES = re.compile(r"char-nvidia|/dev/nvidia|/dev/char/195:|char-\*")


def kernel(context: Context) -> Iterator[Finding]:
    """Whether the kernel is new enough."""
    try:
        check_floor()
    except InitializationError as error:
        yield failed(f"Linux {os.uname().release} is too old: {error.cause}", advice=error.hint)


def rights(context: Context) -> Iterator[Finding]:
    """Whether this program can see everything."""
    if os.geteuid() != 0:
        yield unknown(
            f"this is user {os.geteuid()}: much of the host is not visible",
            commands=("sudo nvc-cli doctor",),
        )
    elif in_user_namespace():
        yield warning(
            "this is a user namespace: device rules of containers cannot be changed here",
            advice="rootless engines need CDI (nvc-cli cdi generate), or no-cgroups = true in the configuration",
        )


def place(context: Context) -> Iterator[Finding]:
    """Whether this is the host at all."""
    marks = [mark for mark in _MARKS if os.path.exists(mark)]
    environment = read_text("/proc/1/environ", 1 << 16)
    if environment and any(item.startswith("container=") for item in environment.split("\0")):
        marks.append("container= in the environment of process 1")
    if marks:
        yield warning(
            "this is a container: the checks describe it, not its host",
            *marks,
            advice="run nvc-cli doctor on the host, with --container to look into this one",
        )


def proc(context: Context) -> Iterator[Finding]:
    """Whether /proc shows processes."""
    if not os.path.exists("/proc/self/stat"):
        yield failed("/proc is not mounted", commands=("mount -t proc proc /proc",))
        return
    try:
        os.readlink("/proc/1/ns/mnt")
    except FileNotFoundError:
        yield unknown(
            "/proc hides other users' processes (hidepid): containers cannot be inspected",
            *_proc_mount(),
            commands=("sudo nvc-cli doctor",),
        )
    except PermissionError as error:
        advice = "a container or a security module may forbid it: run it on the host itself, with all rights"
        yield unknown(
            "processes of others cannot be looked into",
            f"/proc/1/ns/mnt: {(error.strerror or '').lower()}",
            advice=advice if os.geteuid() == 0 else AS_ROOT,
        )


def _proc_mount() -> tuple[str, ...]:
    lines = read_text("/proc/self/mounts", 1 << 20).splitlines()
    return tuple(line for line in lines if " /proc proc " in line)[:1]


def root(context: Context) -> Iterator[Finding]:
    """Whether runtimes can change the root directory of a container: not where that of the host is an initramfs."""
    lines = (read_file("/proc/self/mountinfo", 16 << 20) or b"").decode("utf-8", "replace").splitlines()
    tops = [line.split() for line in lines if len(line.split()) > 5 and line.split()[4] == "/"]
    kinds = [fields[fields.index("-") + 1] for fields in tops if "-" in fields[:-1]]
    if kinds and kinds[-1] == "rootfs":
        yield warning(
            "the host runs from its initramfs: runc fails with `pivot_root: invalid argument`",
            " ".join(tops[-1])[:200],
            commands=("systemctl set-environment DOCKER_RAMDISK=true", "systemctl restart docker"),
            advice="or boot from a disk; podman and runc have --no-pivot",
        )


def cgroups(context: Context) -> Iterator[Finding]:
    """Whether device rules can be changed, for both kinds of cgroups."""
    mounts = cgroup_mounts(read_file("/proc/self/mountinfo", 16 << 20) or b"")
    if not mounts:
        yield warning(
            "no cgroup hierarchy with device rules is mounted: nvc cannot add device rules",
            commands=("mount -t cgroup2 cgroup2 /sys/fs/cgroup",),
            advice="or set no-cgroups = true in [nvidia-container-cli]",
        )
        return
    versions = sorted({mount.version for mount in mounts})
    yield ok(f"device rules by cgroup v{' and v'.join(map(str, versions))}", *(m.point for m in mounts))
    second = next((mount for mount in mounts if mount.version == 2), None)
    if second is None:
        return
    if read_text("/proc/sys/kernel/kptr_restrict", 64) == "2":
        yield warning(
            "the kernel hides device programs (kptr_restrict is 2): nvc cannot add rules under cgroup v2",
            commands=("sysctl -w kernel.kptr_restrict=1",),
            advice="or use CDI, where the engine knows the nodes beforehand",
        )
    try:
        fd = os.open(second.point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        bpf.attached(fd)
    except PermissionError:
        yield unknown("device programs of cgroup v2 cannot be queried", second.point, advice=AS_ROOT)
    except OSError as error:
        yield warning(
            f"device programs of cgroup v2 cannot be queried: {(error.strerror or str(error)).lower()}",
            second.point,
            advice="the kernel needs CONFIG_CGROUP_BPF",
        )
    finally:
        os.close(fd)


def selinux(context: Context) -> Iterator[Finding]:
    """Whether SELinux keeps containers from device nodes."""
    if read_text(f"{_SELINUX}/enforce", 16) != "1":
        yield ok("SELinux does not enforce")
        return
    setting = read_text(f"{_SELINUX}/booleans/{_BOOLEAN}", 16)
    if setting.startswith("1"):
        yield ok(f"SELinux enforces, and {_BOOLEAN} is on")
        return
    yield warning(
        "SELinux enforces, and denies containers the host's devices",
        f"{_BOOLEAN} is off",
        commands=(f"setsebool -P {_BOOLEAN} on",),
        advice="or start containers with --security-opt label=type:container_device_t, or label=disable",
    )


def systemd(context: Context) -> Iterator[Finding]:
    """Whether a reload of systemd takes GPUs from containers that run: it writes its own list of devices again."""
    for scope, pid in scopes(context.kernel).items():
        yield from scope_findings(scope, pid)


def scopes(kernel: Kernel) -> dict[str, int]:
    """The systemd scopes of processes that have an NVIDIA node in a /dev of their own, each with a process.

    Nothing is asked of file systems there: a container's own may never answer, and a link may lead anywhere.
    """
    found: dict[str, int] = {}
    own = _mount_namespace("self")
    for name in os.listdir("/proc"):
        if not name.isdigit() or _mount_namespace(name) in (own, ""):
            continue
        scope = scope_of(name)
        if scope and scope not in found and _has_node(kernel, name):
            found[scope] = int(name)
    return found


def _has_node(kernel: Kernel, pid: str) -> bool:
    try:
        root = os.open(f"/proc/{pid}/root", O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(kernel.open_cached(root, "dev/nvidiactl"))
        return True
    except OSError:
        return False
    finally:
        os.close(root)


def scope_of(pid: str | int) -> str:
    """The name of the systemd scope that a process is in, "" for none."""
    lines = read_text(f"/proc/{pid}/cgroup", 1 << 16).splitlines()
    return next((scope for line in lines if (scope := scope_in(line.split(":", 2)[-1]))), "")


def scope_in(path: str) -> str:
    """The name of the scope of systemd in the path of a cgroup, "" for none.

    The outermost counts: containers, users and services make cgroups below their own with the names that they like.
    """
    for part in path.split("/"):
        if part.endswith(".service") or part.endswith(".scope") and part.startswith(("session-", "init.")):
            return ""
        if part.endswith(".scope"):
            return part
    return ""


def scope_findings(scope: str, pid: int) -> Iterator[Finding]:
    """What the unit files of a scope say of its devices."""
    text = ""
    for base in TRANSIENT:
        text += read_text(f"{base}/{scope}") + "\n"
        directory = f"{base}/{scope}.d"
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        text += "\n".join(read_text(f"{directory}/{name}") for name in names[:256]) + "\n"
    policy = re.findall(r"^DevicePolicy=(\w+)", text, re.MULTILINE)
    allowed = re.findall(r"^DeviceAllow=(\S+)", text, re.MULTILINE)
    restricted = policy[-1] in ("strict", "closed") if policy else bool(allowed)
    if restricted and not any(_NAMES.match(device) for device in allowed):
        yield warning(
            f"process {pid} loses its GPUs when systemd is reloaded: {scope} does not allow them",
            f"DevicePolicy={(policy or ['auto'])[-1]}",
            *first(f"DeviceAllow={device}" for device in allowed),
            commands=(
                f"systemctl set-property --runtime {scope} 'DeviceAllow=char-nvidia rw' "
                "'DeviceAllow=char-nvidia-uvm rw'",
            ),
            advice="give devices by CDI, which systemd knows of, or use cgroupfs as the engine's cgroup driver",
        )


def _mount_namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


CHECKS = (
    Check("host.kernel", "the kernel version", kernel),
    Check("host.rights", "the rights of this command", rights),
    Check("host.place", "whether this is a host or a container", place),
    Check("host.proc", "whether /proc shows all processes", proc),
    Check("host.root", "whether runc can pivot the root directory", root),
    Check("host.cgroups", "cgroups with device rules", cgroups),
    Check("host.selinux", "whether SELinux lets containers use devices", selinux),
    Check("host.systemd", "GPUs that containers lose when systemd reloads", systemd),
)

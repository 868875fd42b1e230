"""The host around the driver: rights, cgroups, SELinux, systemd."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from nvc.apply.cgroup.find import mounted
from nvc.base.files import closing, lines_of
from nvc.base.rundir import in_user_namespace
from nvc.discovery.containers.files import names_in
from nvc.discovery.containers.running import mount_namespace
from nvc.doctor import OK, UNKNOWN, WARNING, Check, Fact, Row, first
from nvc.doctor.context import Context, read_text
from nvc.kernel import Kernel, bpf
from nvc.kernel.processes import open_root

_SELINUX = "/sys/fs/selinux"
TRANSIENT = ("/run/systemd/transient", "/run/systemd/system", "/etc/systemd/system")
_NAMES = re.compile(r"char-nvidia|/dev/nvidia|/dev/char/195:|char-\*")


def _rights(_: Context) -> Iterator[Fact]:
    yield Fact(user=os.geteuid(), apart=in_user_namespace())


def _cgroups(_: Context) -> Iterator[Fact]:
    mounts = mounted()
    yield Fact(versions=" and ".join(sorted({f"v{mount.version}" for mount in mounts})))
    second = next((mount.point for mount in mounts if mount.version == 2), "")
    if second and read_text("/proc/sys/kernel/kptr_restrict") == "2":
        yield Fact(hidden=True)
    if second:
        with closing(os.open(second, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            bpf.attached(fd)


def _selinux(_: Context) -> Iterator[Fact]:
    setting = read_text(f"{_SELINUX}/booleans/container_use_devices")
    if read_text(f"{_SELINUX}/enforce") == "1" and not setting.startswith("1"):
        yield Fact()


def _systemd(context: Context) -> Iterator[Fact]:
    """A reload of systemd takes GPUs from containers that run: it writes its own list of devices again."""
    found, silent = scopes(context.kernel)
    for scope, cause in silent.items():
        yield Fact(silent=scope, seen=[cause])
    for scope, pid in found.items():
        yield from lost_by(scope, pid)


def scopes(kernel: Kernel) -> tuple[dict[str, int], dict[str, str]]:
    """The systemd scopes of processes that have an NVIDIA node in a /dev of their own, each with a process.

    And those of which that is not known, each with the cause: a process did not answer. Nothing is asked of file
    systems there: a container's own may never answer, and a link may lead anywhere.
    """
    found: dict[str, int] = {}
    silent: dict[str, str] = {}
    own = mount_namespace(os.getpid())
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        scope = scope_of(pid) if mount_namespace(pid) not in (own, 0) else ""
        if not scope or scope in found:
            continue
        try:
            with closing(open_root(pid)) as root:
                os.close(kernel.open_cached(root, "dev/nvidiactl"))
            found[scope] = pid
        except TimeoutError as error:
            silent[scope] = f"{error.filename}: {error.strerror}"
        except OSError:  # it has none, or has ended
            pass
    return found, {scope: cause for scope, cause in silent.items() if scope not in found}


def scope_of(pid: int) -> str:
    """The name of the systemd scope that a process is in, "" for none."""
    lines = lines_of(read_text(f"/proc/{pid}/cgroup"))
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


def lost_by(scope: str, pid: int) -> Iterator[Fact]:
    """A process whose scope, as its unit files have it, does not allow GPUs."""
    files = [f"{base}/{scope}" for base in TRANSIENT]
    texts = [read_text(path) for file in files
             for path in (file, *(f"{file}.d/{name}" for name in names_in(f"{file}.d")))]  # fmt: skip
    text = "\n".join(texts)
    policy = re.findall(r"^DevicePolicy=(\w+)", text, re.MULTILINE)
    allowed = re.findall(r"^DeviceAllow=(\S+)", text, re.MULTILINE)
    restricted = policy[-1] in ("strict", "closed") if policy else bool(allowed)
    if restricted and not any(map(_NAMES.match, allowed)):
        yield Fact(pid=pid, scope=scope, seen=first(f"DeviceAllow={device}" for device in allowed))


LOST = (
    Row(WARNING, "process {pid} loses its GPUs when systemd is reloaded: {scope} does not allow them",
        run=("systemctl set-property --runtime {scope} 'DeviceAllow=char-nvidia rw' "
             "'DeviceAllow=char-nvidia-uvm rw'",),
        advice="give devices by CDI, which systemd knows of, or use cgroupfs as the engine's cgroup driver"),
)  # fmt: skip
CHECKS = (
    Check("host.rights", "the rights of this command", _rights, (
        Row(UNKNOWN, "this is user {user}: much of the host is not visible", "user", run=("sudo nvc-cli doctor",)),
        Row(WARNING, "this is a user namespace: device rules of containers cannot be changed here", "apart",
            advice="rootless engines need CDI (nvc-cli cdi generate), or no-cgroups = true in the configuration"),
    )),
    Check("host.cgroups", "cgroups with device rules", _cgroups, (
        Row(WARNING, "the kernel hides device programs (kptr_restrict is 2): nvc cannot add rules under cgroup v2",
            "hidden", run=("sysctl -w kernel.kptr_restrict=1",),
            advice="or use CDI, where the engine knows the nodes beforehand"),
        Row(OK, "device rules by cgroup {versions}", "versions"),
        Row(WARNING, "no cgroup hierarchy with device rules is mounted: nvc cannot add device rules",
            run=("mount -t cgroup2 cgroup2 /sys/fs/cgroup",),
            advice="or set no-cgroups = true in [nvidia-container-cli]"),
    )),
    Check("host.selinux", "whether SELinux lets containers use devices", _selinux, (
        Row(WARNING, "SELinux enforces, and denies containers the host's devices",
            run=("setsebool -P container_use_devices on",),
            advice="or start containers with --security-opt label=type:container_device_t, or label=disable"),
    )),
    Check("host.systemd", "GPUs that containers lose when systemd reloads", _systemd, (
        Row(UNKNOWN, "whether {silent} has GPUs is not known", "silent"),
        *LOST,
    )),
)  # fmt: skip

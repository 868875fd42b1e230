"""--load-kmods: loads the driver's kernel modules and makes its device nodes, as nvidia-modprobe does.

Only when something is missing, under a lock of the host, and in a child with what rights that takes. What
fails is a warning: discovery itself then says what does not work.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from nvc.base.errors import NvcError, one_line
from nvc.base.files import closing
from nvc.base.rundir import in_user_namespace, runtime_directory
from nvc.discovery.devices.devfiles import missing_nodes, wanted_nodes
from nvc.discovery.devices.nodes import MODULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.discovery.host import Host
    from nvc.discovery.hostroot import HostRoot
    from nvc.model.request import DriverOptions

_NO_DEVICE = "kernel modules are not loaded: no NVIDIA device on the PCI bus"
_REPORT_LIMIT = 32 << 10


def load_kmods(host: Host, options: DriverOptions, nodes: bool = True) -> tuple[str, ...]:
    """Loads what is not loaded, and makes the `nodes` that are missing, one at a time on this host.

    Returns warnings.
    """

    def done() -> bool:
        return not missing_modules(host) and not (nodes and missing_nodes(host, wanted_nodes(host, options)))

    if done():
        return ()
    if os.geteuid() != 0 or in_user_namespace():
        return ("kernel modules are not loaded: it takes root of the host",)
    try:
        lock = _lock()
    except (OSError, NvcError) as error:
        return (f"kernel modules are not loaded: {error}",)
    with closing(lock):
        return () if done() else _in_child(host, options, nodes)  # another start did it while we waited


def missing_modules(host: Host) -> tuple[str, ...]:
    """Modules of the driver that are not loaded. A simulated driver has none to load."""
    if host.simulated:
        return ()
    return tuple(
        name for name in MODULES if not host.system.exists(f"/sys/module/{name.replace('-', '_')}/initstate")
    )


def _lock() -> int:
    directory = runtime_directory()
    path = f"{directory or '/run'}/kmods.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)  # its holder is bounded by its own deadline
    return fd


def _in_child(host: Host, options: DriverOptions, nodes: bool) -> tuple[str, ...]:
    """Does the work in a child that dies with us; its warnings, or one about the child itself."""
    try:
        import prctl  # type: ignore[import-not-found, import-untyped, unused-ignore]  # before the fork
    except ImportError:
        # It is compiled for one version of Python; the bundle has it for one only.
        return ("kernel modules are not loaded: python-prctl is not installed for this Python",)

    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prctl.set_pdeathsig(9)
            prctl.set_name("nvc:[kmods]")
            # For modprobe, and to make nodes with owners and modes; nothing it starts can have more.
            prctl.capbset.limit(
                prctl.CAP_SYS_MODULE, prctl.CAP_SYS_CHROOT, prctl.CAP_SETPCAP, prctl.CAP_MKNOD,
                prctl.CAP_CHOWN, prctl.CAP_FOWNER, prctl.CAP_DAC_OVERRIDE,
            )  # fmt: skip
            warnings = _load(host, options, nodes, prctl)
            os.write(send, "\n".join(one_line(text) for text in warnings).encode()[:_REPORT_LIMIT])
            os._exit(0)
        except BaseException as error:
            os.write(send, one_line(f"kernel modules: {error}").encode())
            os._exit(1)
    os.close(send)
    try:
        report = _read(receive, pid, time.monotonic() + options.timeout)
    except BaseException:
        os.kill(pid, 9)
        raise
    finally:
        os.close(receive)
        os.waitpid(pid, 0)
    return tuple(line for line in report.decode("utf-8", "replace").split("\n") if line)


def _read(fd: int, pid: int, deadline: float) -> bytes:
    """What the child writes until it ends; it is killed at the deadline."""
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    report = b""
    while True:
        if not waiter.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            os.kill(pid, 9)
            return report + b"\nkernel modules: modprobe did not end in time"
        chunk = os.read(fd, 65536)
        if not chunk:
            return report
        report += chunk


def _load(host: Host, options: DriverOptions, nodes: bool, prctl: Any) -> list[str]:
    """The child's work: the modules, then the nodes that they ask for."""
    modules = missing_modules(host)
    if modules and not has_nvidia_device(host.system):
        return [_NO_DEVICE]
    for module in modules:
        modprobe(host, module, prctl)
    failed = missing_modules(host)
    warnings = [f"kernel module {module} could not be loaded: see the kernel log" for module in failed]
    for node in missing_nodes(host, wanted_nodes(host, options)) if nodes else ():
        try:
            node.make(host.devices)
        except (OSError, NvcError) as error:
            warnings.append(f"device node {node.path} could not be made: {error}")
    return warnings


def has_nvidia_device(system: HostRoot) -> bool:
    """Whether the PCI bus has a device of vendor 0x10de."""
    base = "/sys/bus/pci/devices"
    return any(
        (system.read_optional(f"{base}/{name}/vendor", 64) or b"").strip() == b"0x10de"
        for name, _ in system.entries(base)
    )


def modprobe(host: Host, module: str, prctl: Any) -> int:
    """Runs the driver root's modprobe for `module`, with CAP_SYS_MODULE and little else. Its wait status.

    The program is the kernel's own choice (/proc/sys/kernel/modprobe). Nothing is imported after the chroot:
    the file found would be the driver root's.
    """
    program = (host.system.read_optional("/proc/sys/kernel/modprobe", 4096) or b"").decode().strip()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            os.fchdir(host.driver.fd)
            os.chroot(".")
            os.closerange(3, 1 << 20)
            prctl.set_pdeathsig(9)
            prctl.capbset.limit(prctl.CAP_SYS_MODULE, prctl.CAP_DAC_OVERRIDE)
            program = program if program.startswith("/") else "/sbin/modprobe"
            os.execve(program, ["modprobe", module], {"PATH": "/sbin"})
        finally:
            os._exit(127)
    return os.waitpid(pid, 0)[1]

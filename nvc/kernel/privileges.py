"""Which capabilities each process and phase of nvc holds; everything else is given up first.

The applier's own two sets are in native/core/apply/apply.c, beside the calls that need them.
"""

from __future__ import annotations

from nvc.base.errors import PermissionDenied
from nvc.kernel import Kernel, LinuxKernel

# Numbers of include/uapi/linux/capability.h.
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SETGID, SETUID, SETPCAP = 0, 1, 2, 3, 5, 6, 7, 8
NET_ADMIN, SYS_MODULE, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, MKNOD = 12, 16, 18, 19, 21, 27
SYSLOG, PERFMON, BPF = 34, 38, 39


def mask(*capabilities: int) -> int:
    """The bit mask of the given capability numbers."""
    bits = 0
    for capability in capabilities:
        bits |= 1 << capability
    return bits


#: Permitted for each command. NET_ADMIN, BPF, PERFMON and SYSLOG are for device programs (bpf(2), and the
#: right to read one back); SYS_MODULE, MKNOD and CHOWN for --load-kmods; SYS_PTRACE for /proc/PID of the
#: container; the rest for entering and mounting.
PERMITTED = {
    "configure": mask(
        DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL, SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_CHROOT,
        SYS_PTRACE, SYS_ADMIN, SYSLOG, PERFMON, BPF,
    ),
    "info": mask(DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID, SETPCAP, SYS_CHROOT),
}  # fmt: skip
#: nvcd. For /proc of containers and the files behind it; a process is stopped only where the configuration says so;
#: BPF for the tracer's maps, which it loads before; the rest is for its helper that asks NVML in the driver root,
#: and gives it all up. The timekeeper is started before, too, with rights of its own.
PERMITTED["nvcd"] = mask(
    DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SETGID, SETUID, SETPCAP, SYS_CHROOT, SYS_PTRACE, BPF
)
PERMITTED["list"] = PERMITTED["info"]
LOAD_KMODS = mask(CHOWN, FOWNER, MKNOD, SYS_MODULE, SYS_CHROOT)


def reduce(command: str, load_kmods: bool = False, kernel: Kernel | None = None) -> None:
    """Give up, for good, every capability that `command` does not need.

    Inheritable is emptied and the bounding set reduced to the same capabilities, so that no child can regain
    any. Nothing happens to a process that has none. Raises PermissionDenied when the kernel refuses.
    """
    kernel = kernel or LinuxKernel()
    _, permitted = kernel.capget()
    if not permitted:
        return
    keep = PERMITTED[command] | (LOAD_KMODS if load_kmods else 0)
    try:
        if permitted & mask(SETPCAP):
            kernel.capbset_keep(keep)
        kernel.capset(keep)
    except OSError as error:
        raise PermissionDenied.of("drop capabilities", "", error) from None

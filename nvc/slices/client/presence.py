"""Whether nvcd runs. A container start asks by one connect, and never waits."""

from __future__ import annotations

import errno
import posix

from nvc.base.errors import NvcError
from nvc.base.rundir import runtime_directory
from nvc.model.slices.policy import WITHOUT_NVCD, policy_of
from nvc.model.slices.time_settings import TO_START

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model.slices.slice import SliceDevice

NOT_RUNNING = "nvcd is not running"


class DaemonError(
    NvcError, code="NVC-2107", stage="vgpu", doctor="vgpu",
    hint=f"{TO_START}, or ask for a policy that works without it: {WITHOUT_NVCD}",
):  # fmt: skip
    """The operator requires nvcd for a slice, and it does not run."""


def socket_path() -> str:
    """The path of nvcd's socket for root."""
    return f"{runtime_directory()}/nvcd/nvcd.sock"


def absence() -> str:
    """Why nvcd cannot be reached; "" if something listens on its socket, which may still hang."""
    import _socket  # `socket` itself costs a container start 5 ms

    with_flags = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    connection = _socket.socket(_socket.AF_UNIX, with_flags)
    try:
        connection.connect(socket_path())
    except OSError as error:
        if error.errno == errno.EAGAIN:  # its queue is full: it is there
            return ""
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return NOT_RUNNING
        return f"nvcd cannot be reached: {posix.strerror(error.errno or 0).lower()}"
    finally:
        connection.close()
    return ""


def not_enforced(devices: tuple[SliceDevice, ...], required: bool) -> str:
    """Why the policies of a new slice are not enforced; "" if they are, or do not need nvcd.

    Raises DaemonError where `required`.
    """
    needing = [one for one in devices if not one.hidden and policy_of(one.policy).needs_nvcd]
    cause = absence() if needing else ""
    if cause and required:
        policy = policy_of(needing[0].policy).name
        raise DaemonError("make a slice", needing[0].uuid, f"the policy {policy} needs nvcd: {cause}")
    return cause

"""Where nvc keeps what lives until the next boot (locks, journals, the inventory), and what lives on after it; and
where its configuration is."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import InitializationError, of_host
from nvc.base.files import closing

SYSTEM = "/run/nvc"
STATE = "/var/lib/nvc"
#: The configuration file: the first of them that exists.
CONFIGURATIONS = ("/etc/nvc/config.toml", "/etc/nvidia-container-runtime/config.toml")
_INITIAL_USER_NAMESPACE = 0xEFFFFFFD  # its inode since Linux 3.8 (PROC_USER_INIT_INO)
_OVERFLOW_ID = 65534  # the host's root in a user namespace that has no number for it


def in_user_namespace() -> bool:
    """Whether this process is in a user namespace other than the host's."""
    return os.stat("/proc/self/ns/user").st_ino != _INITIAL_USER_NAMESPACE


def belongs_to_us(status: os.stat_result) -> bool:
    """Whether the owner is root or this user: of anybody else, nothing is obeyed, and no link is followed."""
    return status.st_uid in (0, os.geteuid()) or status.st_uid == _OVERFLOW_ID and in_user_namespace()


def is_ours_alone(status: os.stat_result) -> bool:
    """Whether only root and this user can change it."""
    return belongs_to_us(status) and not status.st_mode & 0o022


def runtime_directory(*below: str) -> str:
    """The path of a private directory (0700, ours), made when missing; "" when there is nowhere to keep anything.

    Root has /run/nvc. It is closed if others have made it open to everybody, as a kubelet makes a hostPath and
    systemd the directories above a socket: any user may write the ledgers of claims below it. A rootless runtime
    calls hooks as root of its user namespace, where /run/nvc is not writable: there it is /run/user/UID/nvc with
    the uid outside. Raises InitializationError when the directory is not ours: whoever owns it could plant a
    journal.
    """
    return _private(_base(), below)


def needed_directory(step: str, *below: str) -> str:
    """The runtime directory for a `step` that needs it, made if need be. Raises InitializationError."""
    path = runtime_directory(*below)
    if path:
        return path
    base = _base()
    hint = "`findmnt -T /run` must show a file system that root can write to"
    if base != SYSTEM:
        home = base.rpartition("/")[0]
        hint = f"{home} must be a directory of the user: `loginctl enable-linger USER` makes it"
    error = InitializationError(step, "/".join((base, *below)), "cannot be made", hint)
    error.doctor = "host"
    raise error


def _base() -> str:
    return SYSTEM if _is_host_root() else f"/run/user/{_outer_uid()}/nvc"


def state_directory(*below: str) -> str:
    """A directory below /var/lib/nvc, which outlives a boot; for others than root, their runtime directory."""
    return _private(STATE, below) if _is_host_root() else runtime_directory(*below)


def _private(base: str, below: tuple[str, ...]) -> str:
    path = base
    for part in ("", *below):
        path = f"{path}/{part}" if part else path
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            of_host(error, "make runtime directory", path)  # a run without a journal cannot be repaired
            return ""
        st = os.lstat(path)
        owned = stat.S_ISDIR(st.st_mode) and st.st_uid == os.geteuid()
        if not owned or st.st_mode & 0o022:
            hint = f"chmod go-w {path}" if owned else f"remove {path}"
            cause = "not a directory of this user alone"
            problem = InitializationError("open runtime directory", path, cause, hint)
            problem.doctor = "inventory"
            raise problem
        if path == base and st.st_mode & 0o077:
            _close(path)
    return path


def _close(path: str) -> None:
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
            os.fchmod(fd, 0o700)
    except OSError as error:
        raise InitializationError.of("close runtime directory", path, error, f"chmod 700 {path}") from None


def _is_host_root() -> bool:
    return os.geteuid() == 0 and _outer_uid() == 0


def _outer_uid() -> int:
    """This user's id outside the user namespace, one level up (user_namespaces(7))."""
    uid = os.geteuid()
    try:
        fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        of_host(error, "read id map")
        return uid
    with closing(fd):
        lines = os.read(fd, 65536).split(b"\n")
    for line in lines:
        fields = [int(field) for field in line.split()]
        if len(fields) == 3 and fields[0] <= uid < fields[0] + fields[2]:
            return fields[1] + uid - fields[0]
    return uid

"""Sockets of the driver's services. Their files are inspected; nothing connects to them. A restart of a service can
change the result, so it is not in the inventory."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.errors import DetectionError, of_host
from nvc.model import Ipc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.hostroot import HostRoot

#: Each service with its socket's name below /run.
SOCKETS = (
    ("persistenced", "nvidia-persistenced/socket"),
    ("fabricmanager", "nvidia-fabricmanager/socket"),
)


def find_ipcs(root: HostRoot, mps_directory: str) -> tuple[tuple[Ipc, ...], tuple[str, ...]]:
    """The services' sockets and the MPS directory that exist, and warnings about other files at their paths."""
    found = []
    warnings = []
    for service, name in SOCKETS:
        for base in ("/run", "/var/run"):
            mode, path = look(root, f"{base}/{name}")
            if stat.S_ISSOCK(mode):
                found.append(Ipc(path, service, "utility"))
                break
            if mode:
                warnings.append(f"socket {base}/{name} is left out: not a socket")
                break
    if mps_directory:
        mode, path = look(root, mps_directory)
        if stat.S_ISDIR(mode):
            found.append(Ipc(path, "mps", "compute", True))
        elif mode:
            warnings.append(f"MPS directory {mps_directory} is left out: not a directory")
    return tuple(found), tuple(warnings)


def look(root: HostRoot, path: str) -> tuple[int, str]:
    """Mode and resolved path of the file at `path`; mode 0 if it is missing, a dangling link or not accessible.

    A final link is followed only if it belongs to root: anyone can create one in /tmp, and its target would be
    mounted writable in containers.
    """
    try:
        fd = root.open(path, follow=False)
        st = os.fstat(fd)
        if stat.S_ISLNK(st.st_mode):
            os.close(fd)
            if st.st_uid != 0:
                return st.st_mode, ""
            fd = root.open(path)
    except OSError as error:
        of_host(error, "look for sockets", path)
        return 0, ""
    try:
        return os.fstat(fd).st_mode, root.real_path(fd)
    except OSError as error:
        of_host(error, "look for sockets", path)
        return 0, ""
    except DetectionError:
        return 0, ""
    finally:
        os.close(fd)

"""Sockets of the driver's services. Their files are inspected; nothing connects to them. A restart of a service can
change the result, so it is not in the inventory."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import DetectionError, of_host
from nvc.base.files import closing
from nvc.base.rundir import in_user_namespace
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Ipc

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: Each service with its socket's name below /run.
SOCKETS = (("persistenced", "nvidia-persistenced/socket"), ("fabricmanager", "nvidia-fabricmanager/socket"))


def find_ipcs(root: HostRoot, mps_directory: str) -> tuple[tuple[Ipc, ...], tuple[str, ...]]:
    """The services' sockets and the MPS directory that exist, and warnings about other files at their paths."""
    found = []
    warnings = []
    for service, name in SOCKETS:
        for base in ("/run", "/var/run"):
            status, path = look(root, f"{base}/{name}")
            if status is None:
                continue
            if path and stat.S_ISSOCK(status.st_mode):
                found.append(Ipc(path, service, "utility"))
            else:
                warnings.append(f"socket {base}/{name} is left out: not a socket")
            break
    if mps_directory:
        status, path = look(root, mps_directory)
        if status is not None:
            why = unsafe(root, status, path)
            if why:
                warnings.append(f"MPS directory {mps_directory} is left out: {why}")
            else:
                found.append(Ipc(path, "mps", "compute", True))
    return tuple(found), tuple(warnings)


def look(root: HostRoot, path: str) -> tuple[os.stat_result | None, str]:
    """Status and resolved path of the file at `path`; None if it is missing, a dangling link or not accessible.

    A final link is followed only if it belongs to root: anyone can create one in /tmp. The path is "" for others.
    """
    try:
        fd = root.open(path, follow=False)
        st = os.fstat(fd)
        if stat.S_ISLNK(st.st_mode):
            os.close(fd)
            if st.st_uid != 0:
                return st, ""
            fd = root.open(path)
        with closing(fd):
            return os.fstat(fd), root.real_path(fd)
    except OSError as error:
        of_host(error, "look for sockets", path)
        return None, ""
    except DetectionError:
        return None, ""


def unsafe(root: HostRoot, status: os.stat_result, path: str) -> str:
    """Why a service's directory is not mounted into containers; "" if only root decides what is in it.

    Anyone can make /tmp/nvidia-mps. Programs of containers would connect to a server of that user's.
    """
    if not path or not stat.S_ISDIR(status.st_mode):
        return "not a directory"
    if status.st_uid != 0:
        return f"it belongs to user {status.st_uid}, and not to root"
    if status.st_mode & _OTHERS:
        return f"others can write it (mode {status.st_mode & 0o7777:04o}): chmod 755 {path}"
    for parent in parents(path):
        try:
            above = root.stat(parent)
        except OSError as error:
            of_host(error, "look for sockets", parent)
            return f"{parent}: {(error.strerror or str(error)).lower()}"
        if above.st_mode & _OTHERS and not above.st_mode & stat.S_ISVTX:
            return f"others can replace it, since they can write {parent}"
        if above.st_uid != 0 and not in_user_namespace():  # where the host's root has no number
            return f"{parent} belongs to user {above.st_uid}, and not to root"
    return ""


def parents(path: str) -> tuple[str, ...]:
    """The directories above an absolute path, from the root on."""
    parts = path.strip("/").split("/")[:-1]
    return ("/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts))))

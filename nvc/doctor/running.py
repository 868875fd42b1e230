"""Running containers that their engine could not start again, and slices for which there is no room."""

from __future__ import annotations

import glob
import os

from nvc.containers.files import read_json, table, text
from nvc.containers.places import places
from nvc.doctor import AS_ROOT, Check, failed, ok, unknown, warning, with_systemd
from nvc.doctor.registrations import read_docker
from nvc.engines import docker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

#: What a slice takes in the runtime directory, with some for a start beside it: bytes, and files.
ROOM, FILES = 64 << 10, 16
#: Runtimes of dockerd that no file names.
_OWN = ("", "runc", "io.containerd.runc.v2")
_MOST = 4096  # containers


def unregistered(context: Context) -> Iterator[Finding]:
    """Docker's running containers whose runtime is registered no more, as after `runtime configure --remove`."""
    known = {runtime.name for runtime in read_docker().runtimes} | set(_OWN) | _given_to_dockerd()
    for root in places().docker:
        for path in sorted(glob.glob(f"{glob.escape(root)}/containers/*/hostconfig.json"))[:_MOST]:
            runtime = text(table(read_json(path)).get("Runtime"))
            state = table(read_json(f"{os.path.dirname(path)}/config.v2.json"))
            if runtime in known or table(state.get("State")).get("Running") is not True:
                continue
            name = text(state.get("Name")).lstrip("/") or os.path.basename(os.path.dirname(path))[:12]
            yield warning(
                f"docker: the container {name} runs with the runtime {runtime}, which is registered no more",
                f"{docker.CONFIG} does not name {runtime}, {path} does",
                commands=(
                    f"nvc-cli runtime configure --engine docker --runtime-name {runtime}",
                    *with_systemd("systemctl reload docker"),
                ),
                advice="after its next start, dockerd can neither stop nor start it: register it, or end it now",
            )


def _given_to_dockerd() -> set[str]:
    """The runtimes that dockerd has from its command line."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/comm"):
        if read_proc(path) == b"dockerd\n":
            words = read_proc(f"{os.path.dirname(path)}/cmdline").decode("utf-8", "replace").split("\0")
            given = [word.partition("=")[2] or following for word, following in zip(words, [*words[1:], ""])
                     if word.partition("=")[0] == "--add-runtime"]  # fmt: skip
            found |= {one.partition("=")[0] for one in given}
    return found


def read_proc(path: str) -> bytes:
    """The content of a file of /proc; nothing where its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def room(context: Context) -> Iterator[Finding]:
    """Whether there is room for another slice."""
    path = context.runtime_directory
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield unknown(f"{path}: {(error.strerror or '').lower()}", advice=AS_ROOT)
        return
    free = found.f_bavail * found.f_frsize
    if free < ROOM or found.f_files and found.f_favail < FILES:
        what = f"{free >> 10} KiB" if free < ROOM else f"room for {found.f_favail} files"
        yield failed(
            f"{path} is full: {what} is free, and a slice takes {ROOM >> 10} KiB and {FILES} files",
            "containers and programs with a slice do not start; those that run go on",
            commands=(f"df -h {path}", f"du -x -d 2 {path}"),
            advice="remove what others have put there, or mount /run larger: mount -o remount,size=20% /run",
        )
    else:
        yield ok(f"{path} has room: {free >> 20} MiB")


CHECKS = (
    Check("engines.running", "Docker's running containers: whether their runtime is registered", unregistered),
    Check("vgpu.room", "whether there is room for another slice", room),
)

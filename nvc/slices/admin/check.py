"""Whether a process has loaded the shim, and which files it does not cover."""

from __future__ import annotations

import errno
import os
import posixpath

from nvc.base.errors import ContainerError, NvcError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.discovery.driver.elf import Elf, read_elf
from nvc.discovery.driver.library_table import TABLE
from nvc.kernel import O_PATH, Kernel
from nvc.kernel.apart import apart
from nvc.kernel.processes import open_root, read
from nvc.model.slices.layout import PRIVATE, REAL, VERSION
from nvc.slices.make.shadow_libraries import SONAMES, find_shadow_libraries

MAPS_LIMIT = 16 << 20
#: Beginnings of the file names of libraries that take memory of a GPU without libcuda.
AROUND = tuple(f"{row.name}." for row in TABLE if not row.counted)

ACTIVE, IDLE, AROUND_IT = "active", "not loaded", "not covered"


class CheckReport(Value):
    """The result for one process."""

    pid: int
    name: str
    status: str  # ACTIVE, IDLE or AROUND_IT
    shims: tuple[str, ...]  # paths as the process sees them
    uncovered: tuple[tuple[str, str], ...]  # path, why


def check_process(kernel: Kernel, pid: int) -> CheckReport:
    """Check which mapped files are shims, and which are driver libraries without one.

    A process that does not answer is not covered. Raises ContainerError.
    """
    name = ""
    try:
        name = _first_line(f"/proc/{pid}/comm")
        mapped, whole = _mapped(pid)
        with closing(open_root(pid)) as root:
            (report,) = apart(lambda: [tuple(_report(kernel, pid, name, mapped, whole, root))])
        return CheckReport(*report)
    except TimeoutError as error:
        return CheckReport(pid, name, AROUND_IT, (), ((str(error.filename), str(error.strerror)),))
    except OSError as error:
        rights = error.errno in (errno.EACCES, errno.EPERM)
        hint = "run as root of the host, outside of containers" if rights else "name a process that runs"
        raise ContainerError.of("look at process", f"pid {pid}", error, hint) from None


def _report(
    kernel: Kernel, pid: int, name: str, mapped: dict[tuple[int, int], str], whole: bool, root: int
) -> CheckReport:
    """The result for a process by what it has mapped; `whole`: these are all of its files."""
    shims: dict[str, list[str]] = {}
    private: list[tuple[str, str]] = []
    uncovered: list[tuple[str, str]] = []
    elsewhere: list[tuple[str, int]] = []
    for (device, inode), path in mapped.items():
        elf = _read(kernel, root, path, device, inode)
        if elf is None:
            if posixpath.basename(path).startswith(tuple(soname[:-2] for soname in SONAMES)):
                elsewhere.append((path, inode))
        elif elf.layouts:
            shims.setdefault(elf.soname, []).append(path)
            if elf.layouts != VERSION:
                uncovered.append((path, f"a shim for layouts of version {elf.layouts}, not {VERSION}"))
        elif elf.soname in SONAMES:
            private.append((path, elf.soname))
        elif posixpath.basename(path).startswith(AROUND):
            uncovered.append((path, "takes memory that is not counted"))
    beside_shims = _beside(kernel, root, shims)
    uncovered += [
        (path, "cannot be looked at: it is not the file at that path any more")
        for path, inode in elsewhere
        if inode not in beside_shims
    ]
    if not whole:
        uncovered.append((f"/proc/{pid}/maps", "too long to be read to its end"))
    for path, soname in private:
        beside = posixpath.basename(posixpath.dirname(path)) == PRIVATE
        if not (beside and soname in shims):
            uncovered.append((path, f"the driver's {soname}, reached without the shim"))
    found = tuple(path for paths in shims.values() for path in paths)
    status = AROUND_IT if uncovered else ACTIVE if found else IDLE
    return CheckReport(pid, name, status, found, tuple(uncovered))


def _beside(kernel: Kernel, root: int, shims: dict[str, list[str]]) -> set[int]:
    """The inodes of the driver's libraries beside the shims that a process has mapped.

    Of an overlay on an overlay the kernel shows mapped files by their path in the lower one, which is not mounted.
    """
    found = set()
    for soname, paths in shims.items():
        for path in paths:
            try:
                place = f"{posixpath.dirname(path)}/{REAL}{soname}"
                fd = kernel.open_in_root(root, place, O_PATH)
            except OSError:
                continue  # nothing is beside this one: what is mapped stays uncovered
            with closing(fd):
                found.add(os.fstat(fd).st_ino)
    return found


def check_files(kernel: Kernel, root: int, libs_dir: str) -> tuple[str, ...]:
    """Paths of shadow libraries below `root` that a loader would find and that no shim covers."""
    found = find_shadow_libraries(root, libs_dir)
    uncovered = []
    for shadow in found.shadows:
        elf = _read(kernel, root, shadow.path)
        if elf is not None and not elf.layouts and elf.soname in SONAMES:
            uncovered.append(shadow.path)
    return (*uncovered, *found.hidden)


def _mapped(pid: int) -> tuple[dict[tuple[int, int], str], bool]:
    """The files that a process has mapped, by device and inode, with their paths; and whether these are all."""
    data = read(pid, "maps", MAPS_LIMIT + 1)
    found = {}
    for line in data.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/"):
            major, _, minor = fields[3].partition(b":")
            device = os.makedev(int(major, 16), int(minor, 16))
            path = fields[5].removesuffix(b" (deleted)").replace(b"\\012", b"\n")
            found[device, int(fields[4])] = path.decode("utf-8", "surrogateescape")
    return found, len(data) <= MAPS_LIMIT


def _read(kernel: Kernel, root: int, path: str, device: int = -1, inode: int = -1) -> Elf | None:
    """The ELF file at `path` below `root`, None where there is none, or another than the one that is mapped.

    An overlay shows other devices in /proc/PID/maps than to stat(2), so the inode has to do.
    """
    try:
        fd = kernel.open_regular(root, path)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if inode >= 0 and status.st_ino != inode:
            return None
        return read_elf(fd, path)
    except (OSError, NvcError):
        return None
    finally:
        os.close(fd)


def _first_line(path: str) -> str:
    with open(path, "rb") as file:
        text = file.readline(64).decode("utf-8", "replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text)


def check_loading(kernel: Kernel, environment: dict[str, str]) -> CheckReport:
    """Check what a program started here gets when it opens libcuda and libnvidia-ml by name.

    A helper opens them, with the caller's LD_LIBRARY_PATH, and is checked while it waits.
    """
    import subprocess
    import sys

    code = (
        "import ctypes\n"
        f"for name in {SONAMES!r}:\n"
        "    try:\n"
        "        ctypes.CDLL(name)\n"
        "    except OSError:\n"
        "        pass\n"
        "print('ready', flush=True)\n"
        "import sys\n"
        "sys.stdin.read()\n"
    )
    kept = {name: value for name, value in environment.items() if name in ("LD_LIBRARY_PATH", "PATH")}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=kept,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            raise ContainerError(
                "load libcuda", "", "the helper ended", "try it: python3 -c 'import ctypes'"
            )
        return check_process(kernel, process.pid)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()

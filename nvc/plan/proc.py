"""The overlay of /proc/driver/nvidia, and the application profile that names the visible GPUs."""

from __future__ import annotations

from nvc.base.types import Iterable
from nvc.model.facts import HostFacts
from nvc.model.selection import Selection
from nvc.plan.ops import BindProc, Op, Tmpfs

PROC = "/proc/driver/nvidia"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"


def proc_ops(facts: HostFacts, selection: Selection) -> list[Op]:
    """One tmpfs that shows the driver's files and the selected GPUs only.

    `params` says ModifyDeviceFiles: 0, or the driver's libraries in the container would try to make nodes.
    The kernel of a host without a driver has no /proc/driver/nvidia to mount on, so a simulated driver gets the
    tmpfs one level up, and its description and state with it.
    """
    files = tuple((file.name, unmodifiable(file.name, file.content)) for file in facts.proc_files)
    bound = [gpu.proc_dir for gpu in selection.gpus if gpu.proc_dir]
    if not facts.simulated:
        directories = ["gpus"] if bound else []
        directories += [path[len(PROC) + 1 :] for path in bound]
        tmpfs = Tmpfs(PROC, tuple(directories), files)
        return [tmpfs, *(BindProc(path, path) for path in bound)]
    return [*simulated_proc_ops(files, bound), *(BindProc(path, path) for path in bound)]


def simulated_proc_ops(files: tuple[tuple[str, bytes], ...], directories: list[str]) -> list[Op]:
    """The tmpfs on /proc/driver with `files` of the driver and `directories` to bind on, and what makes the
    simulated libraries see their GPUs, and the resource manager where a test serves one."""
    made = ["nvidia", "nvidia/gpus", "nvidia/sim", "nvidia/sim/rm"]
    made += [path[len("/proc/driver/") :] for path in directories]
    return [
        Tmpfs("/proc/driver", tuple(made), tuple((f"nvidia/{name}", data) for name, data in files)),
        BindProc(f"{PROC}/sim/description", f"{PROC}/sim/description", is_directory=False),
        BindProc(f"{PROC}/sim/state", f"{PROC}/sim/state", is_directory=False, writable=True),
        BindProc(f"{PROC}/sim/rm", f"{PROC}/sim/rm", writable=True),
    ]


def unmodifiable(name: str, content: bytes) -> bytes:
    """The content of a file of /proc/driver/nvidia as a container shall see it."""
    if name != "params":
        return content
    return content.replace(b"ModifyDeviceFiles: 1", b"ModifyDeviceFiles: 0")


def profile_ops(minors: Iterable[int]) -> list[Op]:
    """The profile by which EGL, GLX and Vulkan in the container see the GPUs of these minors only: one bit each."""
    visible = 0
    for minor in minors:
        visible |= 1 << minor
    settings = f'["EGLVisibleDGPUDevices",{visible}]'
    profile = (
        f'{{"profiles":[{{"name":"_container_","settings":{settings}}}],'
        '"rules":[{"pattern":[],"profile":"_container_"}]}\n'
    )
    return [Tmpfs(PROFILES, (), (("10-container.conf", profile.encode()),))]

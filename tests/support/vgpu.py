"""Slices in tests: the shim of the stage, and containers that were given a slice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from nvc.base.files import closing
from nvc.model.slices import quota
from nvc.model.slices.entry import read_entry
from nvc.model.slices.policy import POLICIES

from . import CLEAN_ENV, REPO, STAGE, need, run
from .begun import shared
from .dialog import Dialog

LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


def build_pass_through(directory: str, text: str = "") -> str:
    """Make libraries that stand where the shim does and change nothing: the loader's part of it, alone.

    `text` makes them differ from others. The directory is returned.
    """
    os.makedirs(directory, exist_ok=True)
    source = os.path.join(directory, "empty.c")
    with open(source, "w", encoding="ascii") as out:
        out.write(f'const char nvc_pass_through[] = "{text}";\n')
    for name in LIBRARIES:
        real = os.path.join(directory, f"real-{name}")
        run(need("gcc"), "-shared", "-fPIC", "-o", real, source, f"-Wl,-soname,real-{name}.1")
        flags = [
            "-Wl,--disable-new-dtags,-rpath,$ORIGIN/nvc",
            f"-Wl,-soname,{name}.1",
            "-Wl,--no-as-needed",
            real,
        ]
        run(need("gcc"), "-shared", "-fPIC", "-o", os.path.join(directory, name), source, *flags)
        os.unlink(real)
    return directory


def install_shim(source: str, base: str) -> str:
    """packaging/shim.py, as `make install` calls it; the directory of the version is returned."""
    run(sys.executable, os.path.join(REPO, "packaging/shim.py"), source, base)
    return os.path.realpath(os.path.join(base, "current"))


def ensure_shim(stage: str, scratch: str) -> str:
    """The stage's shim directory."""
    base = os.path.join(stage, "lib/nvc/vgpu")
    if not os.path.exists(os.path.join(base, "current")):
        install_shim(build_pass_through(os.path.join(scratch, "shim")), base)
    return os.path.realpath(os.path.join(base, "current"))


def entry_of(pid: int) -> Any:
    """The registry's entry of the container of a process, None where it has none."""
    from nvc.slices.store import registry

    namespace = f"{os.stat(f'/proc/{pid}/ns/mnt').st_ino:x}-"
    base = registry.base_directory()
    for name in registry.entry_names(base):
        if not name.startswith(namespace):
            continue
        entry = read_entry(f"{base}/{name}")
        bound = f"/proc/{pid}/root{entry.libs_dir}/nvc/quota"
        # The number of a namespace may be that of one that is gone.
        if os.path.exists(bound) and os.path.samefile(bound, entry.quota):
            return entry
    return None


def limits_of(pid: int) -> list[int]:
    """The limits in the quota of the container of a process, in bytes."""
    with closing(os.open(entry_of(pid).quota, os.O_RDONLY)) as fd:
        return [device.memory_limit for device in quota.read(fd)]


def shares_of(pid: int) -> list[tuple[int, int, str, int]]:
    """Cores, weight, policy and flags of each device in that quota."""
    with closing(os.open(entry_of(pid).quota, os.O_RDONLY)) as fd:
        return [(d.cores, d.weight, POLICIES[d.policy], d.flags) for d in quota.read(fd)]


class Inside(Dialog):
    """vgpu_tool (tests/native) in a running container: commands of the CUDA driver, one a line."""

    def __init__(
        self, container: Any, tool: str, *variables: str, user: str = "0:0", mode: int = 0o755
    ) -> None:
        place = os.path.join(container.bundle.rootfs, "tmp/vgpu_tool")
        if not os.path.exists(place):
            shutil.copy(tool, place)
            os.chmod(place, mode)
        words = [
            *container.bundle.command("runc"),
            "exec",
            f"--user={user}",
            container.name,
            "/bin/env",
            *variables,
            "/tmp/vgpu_tool",
        ]
        super().__init__(words, CLEAN_ENV)

    def code(self, command: str) -> int:
        """The driver's result."""
        return int(self._answer(command)[0])

    def ask(self, command: str) -> list[int]:
        """The numbers of an answer; the driver must succeed."""
        code, *rest = self._answer(command)
        assert code == "0", f"{command}: {code}"
        return [int(word) for word in rest]

    def start(self) -> Inside:
        """With a context on device 0."""
        for command in ("init", "primary 0"):
            self.ask(command)
        return self

    def _answer(self, command: str) -> list[str]:
        self.send(command)
        return self.receive()


def cli(launcher: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """What `nvc-cli vgpu ...` does, in the stage without its start: nvcd's tests, and pages, start it for real."""
    if launcher == f"{STAGE}/bin/nvc-cli" and "NVC_STAGE" not in os.environ:
        return shared(STAGE)("vgpu", *words, check=check)
    return run(launcher, "vgpu", *words, check=check)


def listed(launcher: str, pid: int) -> dict[str, Any]:
    """What `vgpu ls` says of the slice of a process."""
    found = json.loads(cli(launcher, "ls", "--format", "json").stdout)["slices"]
    return next(one for one in found if pid in one["pids"])

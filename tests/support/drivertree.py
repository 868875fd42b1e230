"""Driver roots made by hand, file by file, for what a simulated driver is too well-behaved to show."""

from __future__ import annotations

import os
import platform
import stat

from nvc.discovery.host import Host
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions
from nvc.testing.sim.elffile import shared_object
from nvc.testing.sim.loadercache import write

VERSION = "580.159.04"
ARCH = platform.machine()
OTHER_ARCH = {"x86_64": "i386", "aarch64": "arm"}[ARCH]
LIBS = f"/usr/lib/{ARCH}-linux-gnu"
OTHER_LIBS = {"x86_64": "/usr/lib/i386-linux-gnu", "aarch64": "/usr/lib/arm-linux-gnueabihf"}[ARCH]


class DriverTree:
    """A directory to be filled. Names are paths inside it."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o755)
        self.listed: list[tuple[str, str, str]] = []

    def full(self, name: str) -> str:
        return self.path + name

    def directory(self, name: str) -> None:
        os.makedirs(self.full(name), mode=0o755, exist_ok=True)

    def file(self, name: str, content: bytes | str = b"", mode: int = 0o644) -> str:
        """Writes a file, replacing one of that name, and returns its path from outside."""
        self.directory(os.path.dirname(name))
        full = self.full(name)
        if os.path.lexists(full):
            os.unlink(full)
        with open(full, "xb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        os.chmod(full, mode)
        return full

    def link(self, text: str, name: str) -> None:
        self.directory(os.path.dirname(name))
        os.symlink(text, self.full(name))

    def library(
        self,
        name: str,
        directory: str = LIBS,
        version: str = VERSION,
        arch: str = ARCH,
        soname: str = "",
        listed: bool = True,
        abi_note: bool = False,
    ) -> str:
        """A library with its SONAME link, in the loader cache when `listed`; its path."""
        soname = soname or f"{name}.so.1"
        path = f"{directory}/{name}.so.{version}"
        self.file(path, shared_object(soname, arch, abi_note))
        link = f"{directory}/{soname}"
        if link != path and not os.path.lexists(self.full(link)):
            self.link(os.path.basename(path), link)
        if listed:
            self.listed.append((soname, link, arch))
        return path

    def cache(self, combined: bool = False) -> None:
        """Writes the loader cache of what was listed; of equal names the first wins."""
        self.file("/etc/ld.so.cache", write(self.listed, combined))

    def node(self, name: str, major: int, minor: int) -> None:
        self.directory(os.path.dirname(name))
        os.mknod(self.full(name), stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(self.full(name), 0o666)

    def gpu(self, bus: str, minor: int, uuid: str = "", excluded: bool = False) -> None:
        """What the kernel driver shows of a GPU at `bus` (dddd:bb:dd.f)."""
        text = f"Model: \t\t Test\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        text += f"GPU Excluded:\t {'Yes' if excluded else 'No'}\n"
        self.file(f"/proc/driver/nvidia/gpus/{bus}/information", text)

    def kernel_side(self, version: str = VERSION) -> None:
        """The driver's module and numbers."""
        devices = "195 nvidia\n511 nvidia-uvm\n"
        self.file("/sys/module/nvidia/version", version + "\n")
        self.file("/proc/devices", f"Character devices:\n  1 mem\n{devices}\nBlock devices:\n  7 loop\n")

    def simulated(self) -> None:
        """Makes discovery read /proc, /sys and /dev in here."""
        self.file("/proc/driver/nvidia/sim/description", "made by a test\n")

    def root(self) -> HostRoot:
        return HostRoot.at(LinuxKernel(), self.path)

    def host(self) -> Host:
        return Host.open(LinuxKernel(), DriverOptions(root=self.path))

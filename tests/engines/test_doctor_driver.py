"""`nvc-cli doctor`: each fault of the driver, its files and its nodes, made, named and mended."""

from __future__ import annotations

import os

import pytest
from support import until
from support.doctor import Case, check, examine, problems
from support.engines import DRIVER, Host

from nvc.testing.sim.spec import SimSpec, gpus_of

LIBS = f"{DRIVER}/usr/lib/{os.uname().machine}-linux-gnu"
VERSION = "580.159.04"
GPUS = f"{DRIVER}/proc/driver/nvidia/gpus"
OLD = "570.00.01"
CONFIG = "/etc/nvc/config.toml"
XID = "4,1,9000,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
#: A fabric manager, as far as it can be seen from outside.
FABRIC = """
mkdir /run/nvidia-fabricmanager
python3 -c 'import socket, signal
s = socket.socket(1)
s.bind("/run/nvidia-fabricmanager/socket")
s.listen()
signal.pause()' < /dev/null > /run/fabric.log 2>&1 & echo $! > /run/fabric
until grep -q nvidia-fabricmanager /proc/net/unix; do :; done
"""
SIM_FAULTS = f"{DRIVER}/proc/driver/nvidia/sim/faults"
UUIDS = [gpu.uuid for gpu in gpus_of(SimSpec(gpus=2))]
HANG = "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n"


def aside(path: str) -> tuple[str, str]:
    """Shell lines that put a file away, and that bring it back."""
    return f"mv {path} {DRIVER}/aside", f"mv {DRIVER}/aside {path}"


def fabric(*faults: str) -> str:
    """Shell lines with which NVML tells such things of GPU 1, and that GPU 0 has joined."""
    lines = "; ".join(f"echo {UUIDS[1]} {fault}" for fault in faults)
    return f"(echo {UUIDS[0]} fabric 3; {lines}) > {SIM_FAULTS}"


def copied(path: str, change: str) -> tuple[str, str]:
    """Shell lines that change a file, and that undo it."""
    return f"cp -a {path} {DRIVER}/copy; {change}", f"mv {DRIVER}/copy {path}"


CASES = (
    Case("driver.root", *copied(CONFIG, f"sed -i s,{DRIVER},/run/none, {CONFIG}")[:1], "cannot be opened",
         copied(CONFIG, "")[1]),
    Case("driver.module",
         f"mv {DRIVER}/sys/module/nvidia {DRIVER}/aside; mv {DRIVER}/proc/driver/nvidia/version {DRIVER}/copy",
         "loaded",
         f"mv {DRIVER}/aside {DRIVER}/sys/module/nvidia; mv {DRIVER}/copy {DRIVER}/proc/driver/nvidia/version"),
    Case("driver.modules", copied(f"{DRIVER}/proc/devices", f"sed -i /nvidia-uvm/d {DRIVER}/proc/devices")[0],
         "nvidia-uvm is not loaded", copied(f"{DRIVER}/proc/devices", "")[1]),
    Case("driver.modules", f"echo {OLD} > {DRIVER}/sys/module/nvidia_uvm/version", f"nvidia_uvm is of driver {OLD}",
         f"rm {DRIVER}/sys/module/nvidia_uvm/version"),
    Case("driver.libraries", aside(f"{LIBS}/libcuda.so.{VERSION}")[0], "libcuda.so is missing",
         aside(f"{LIBS}/libcuda.so.{VERSION}")[1]),
    Case("driver.libraries", f"mkdir {DRIVER}/aside; mv {LIBS}/libcuda.* {LIBS}/libnvidia-ml.* {DRIVER}/aside",
         f"there is no driver library in {DRIVER}", f"mv {DRIVER}/aside/* {LIBS}; rmdir {DRIVER}/aside"),
    Case("driver.version", f"echo {OLD} > {DRIVER}/sys/module/nvidia/version",
         f"the libraries are of driver {VERSION}, the kernel module of {OLD}",
         f"echo {VERSION} > {DRIVER}/sys/module/nvidia/version"),
    Case("driver.libraries", f"mv {LIBS}/libcuda.so.{VERSION} {LIBS}/libcuda.so.{OLD}; ldconfig -r {DRIVER}",
         "libcuda.so is missing",
         f"mv {LIBS}/libcuda.so.{OLD} {LIBS}/libcuda.so.{VERSION}; ldconfig -r {DRIVER}"),
    Case("driver.nvml", f"echo nothing > {DRIVER}/etc/ld.so.cache", "unsupported file format", status="warning"),
    Case("driver.nvml", aside(f"{LIBS}/libnvidia-opencl.so.{VERSION}")[0],
         "stale entry in the loader cache: ", status="warning",
         after=f"{aside(f'{LIBS}/libnvidia-opencl.so.{VERSION}')[1]}; ldconfig -r {DRIVER}"),
    Case("driver.nvml", copied(f"{LIBS}/libnvidia-ml.so.{VERSION}", f"echo > {LIBS}/libnvidia-ml.so.{VERSION}")[0],
         "the driver cannot be asked", copied(f"{LIBS}/libnvidia-ml.so.{VERSION}", "")[1]),
    Case("driver.gpus", f"cp -a {GPUS}/0000:43:00.0 {GPUS}/0000:99:00.0; "
         f"sed -i 's/^Device Minor.*/Device Minor: 5/' {GPUS}/0000:99:00.0/information",
         "GPU 0000:99:00.0 is the kernel module's, but NVML does not show it",
         f"rm -r {GPUS}/0000:99:00.0"),
    Case("driver.firmware", aside(f"{DRIVER}/lib/firmware/nvidia/{VERSION}")[0], "there is no GSP firmware",
         aside(f"{DRIVER}/lib/firmware/nvidia/{VERSION}")[1]),
    Case("driver.xid", f"echo '{XID}' > /run/kmsg; mount --bind /run/kmsg /dev/kmsg",
         "reported Xid 79, 1 times: GPU has fallen", "umount /dev/kmsg"),
    Case("driver.xid", f"echo '{XID.replace(':01:', ':1b:')}' > /run/kmsg; mount --bind /run/kmsg /dev/kmsg",
         "has fallen off the bus.; it answers again", "umount /dev/kmsg", status="warning"),
    Case("driver.xid", f"echo '{XID.replace(': 79,', ': 154,')}' > /run/kmsg; mount --bind /run/kmsg /dev/kmsg",
         "reported Xid 154, 1 times", "umount /dev/kmsg", status="warning"),
    Case("driver.services", "mount -t tmpfs none /proc/driver; mkdir -p /proc/driver/nvidia-nvswitch/devices/0",
         "its fabric manager does not run", FABRIC, "--root /",
         after="kill $(cat /run/fabric); umount /proc/driver; rm -r /run/nvidia-fabricmanager"),
    Case("driver.fabric", fabric("fabric 2"), "GPU 1: joining the fabric of NVSwitches is in progress (state 2)",
         fabric("fabric 3"), after=f"rm {SIM_FAULTS}"),
    Case("driver.fabric", fabric("fabric 3", "fabric-status 999"),
         "GPU 1: joining the fabric of NVSwitches failed with NVML's error 999", f"rm {SIM_FAULTS}"),
    Case("driver.fabric", fabric("fabric 200", "fabric-status 5"), "NVML tells state 200 of the fabric",
         f"rm {SIM_FAULTS}", status="unknown"),
    Case("nodes.control", f"rm {DRIVER}/dev/nvidiactl", f"{DRIVER}/dev/nvidiactl is missing"),
    Case("nodes.control", f"rm {DRIVER}/dev/nvidia-uvm; mknod {DRIVER}/dev/nvidia-uvm c 1 3",
         "nvidia-uvm: is 1:3, the driver's is"),
    Case("nodes.gpus", f"rm {DRIVER}/dev/nvidia0; touch {DRIVER}/dev/nvidia0", "nvidia0: not a character device"),
    Case("nodes.gpus", f"cd {DRIVER}/dev; rm nvidia0; mkdir nvidia0; echo mine > nvidia0/file",
         "nvidia0: not a character device", after=f"grep mine {DRIVER}/dev/.nvidia0.aside*/file"),
    Case("nodes.capabilities",
         "nvc-cli sim create /run/mig --mig 3g.40gb; rm /run/mig/dev/nvidia-caps/nvidia-cap13",
         "nvidia-cap13 is missing", words="--root /run/mig", after="nvc-cli sim destroy /run/mig"),
    Case("nodes.permissions", f"chmod 660 {DRIVER}/dev/nvidia1", "nvidia1 is not open to all", status="warning"),
    Case("nodes.dev-char", "mkdir -p /run/systemd/system", "no link in", status="warning",
         after=f"rm -r /run/systemd {DRIVER}/dev/char"),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.says}")
def test_a_fault(host: Host, case: Case) -> None:
    check(host, case)


def test_a_driver_in_another_root(host: Host) -> None:
    """As driver containers leave it; on this host nothing else has one."""
    host.sh(f"mkdir -p /run/nvidia/driver; mount --bind {DRIVER} /run/nvidia/driver")
    named = next(one for one in problems(examine(host, "--root /").stdout) if "driver.libraries" in one.line)
    assert "there is no driver library in /" in named.line
    assert host.sh("\n".join(named.commands)).stdout.startswith("NVRM version:")
    host.sh("umount /run/nvidia/driver")


def test_a_driver_that_hangs(host: Host) -> None:
    host.write("/run/hang.c", HANG)
    host.sh(
        f"gcc -shared -fPIC -o /run/hang.so /run/hang.c; mount --bind /run/hang.so {LIBS}/libnvidia-ml.so.{VERSION}"
    )
    named = next(one for one in problems(examine(host, "--timeout 0.2", "driver.nvml").stdout))
    assert "timed out" in named.line and "nvidia-persistenced" in named.commands[0]
    # The probe that was killed may take a moment to end: nothing waits for it.
    until(lambda: host.sh(f"umount {LIBS}/libnvidia-ml.so.{VERSION}", check=False).returncode == 0)
    assert examine(host, "--timeout 5", "driver.nvml").returncode == 0


def test_gpus_that_somebody_else_holds(host: Host) -> None:
    """Which kernel driver a GPU has, as sysfs shows it."""
    card = "/sys/bus/pci/devices/0000:01:00.0"
    host.sh(
        f"mount -t tmpfs none {os.path.dirname(card)}; mkdir {card}; echo 0x10de > {card}/vendor; "
        f"echo 0x030200 > {card}/class; ln -s ../../../bus/pci/drivers/nouveau {card}/driver"
    )
    said = []
    for holder in ("nouveau", "vfio-pci", ""):
        host.sh(
            f"rm {card}/driver; " + (f"ln -s /sys/bus/pci/drivers/{holder} {card}/driver" if holder else "")
        )
        said += problems(examine(host, "--root /", "driver.module").stdout)
    host.sh(f"umount {os.path.dirname(card)}")
    assert "the kernel driver nouveau holds the GPUs" in said[0].line
    assert "assigned to virtual machines (vfio-pci)" in said[1].line
    assert "not loaded, although 1 NVIDIA GPUs are on the PCI bus" in said[2].line
    assert said[2].commands == ("modprobe nvidia",)
    host.sh(f"mkdir -p /etc/modprobe.d; {said[0].commands[0]}")
    assert host.read("/etc/modprobe.d/nouveau.conf").startswith("blacklist nouveau\n")


def test_nothing_is_left(host: Host) -> None:
    """The faults above were mended, and a host that is well has no problem but that of being a test's."""
    left = [one.line for one in problems(examine(host).stdout) if "host." not in one.line]
    assert left == []

"""A tenant holds a lease (fcntl(2), F_SETLEASE) on a file of the driver, which its container sees read-only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from support.configure import Configure
from support.drivertree import DriverTree
from support.fileleases import Lease
from support.nvcd import Place
from support.nvcd_programs import METRICS, started
from support.prestart import at_prestart
from support.rootfs import LIBS

from nvc.base.errors import HostError
from nvc.discovery import discover, host, hostroot
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions
from nvc.slices.make.held_files import HeldFiles
from nvc.testing.sim.elffile import shared_object

VERSION = "580.159.04"
CUDA, NVML = f"{LIBS}/libcuda.so.{VERSION}", f"{LIBS}/libnvidia-ml.so.{VERSION}"
FIRMWARE = f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"
REFUSED = "Resource temporarily unavailable"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hostroot, host):
        monkeypatch.setattr(module, "PATIENCE", 0.05)


@pytest.mark.parametrize("path", [CUDA, NVML, "/usr/bin/nvidia-smi", FIRMWARE])
def test_who_keeps_a_lease_is_named_and_nothing_is_left_out(
    driver: str, scratch: str, impatient: None, path: str
) -> None:
    """Libraries that could not be read were left out, and so they were for the next containers."""
    options, keep = DriverOptions(root=driver), f"{scratch}/keep"
    os.mkdir(keep, 0o700)
    with Lease(f"{driver}{path}") as lease:
        named = rf"{path.partition('.so')[0]}\S*: held by a lease of process {lease.pid};"
        with pytest.raises(HostError, match=named):
            discover(LinuxKernel(), options, keep)
        assert os.listdir(keep) == []
    found = discover(LinuxKernel(), options, keep)
    assert path in [one.path for one in (*found.libraries, *found.binaries, *found.firmwares)]
    assert os.listdir(keep)


def test_a_lease_that_is_given_back_is_waited_for(driver: str, scratch: str) -> None:
    with Lease(f"{driver}{CUDA}", "yields") as lease:
        assert not lease.refused
        found = discover(LinuxKernel(), DriverOptions(root=driver), scratch)
        assert CUDA in [one.path for one in found.libraries] and not found.warnings


def test_nobody_waits_longer_than_the_caller(driver: str) -> None:
    """A container runtime starts the container without a GPU if nvc-nri does not answer within 2 s."""
    with Lease(f"{driver}{CUDA}"), pytest.raises(HostError):
        began = time.monotonic()
        discover(LinuxKernel(), DriverOptions(root=driver, timeout=0.1, inventory=False))
    assert time.monotonic() - began < hostroot.PATIENCE


def test_one_search_waits_for_all_leases_together(scratch: str, impatient: None) -> None:
    tree = DriverTree(f"{scratch}/root")
    for name in ("/a", "/b"):
        tree.file(name)
    root = tree.root()
    with Lease(tree.full("/a")), Lease(tree.full("/b")):
        for name in ("/a", "/b"):
            with pytest.raises(HostError):
                root.open_regular(name)
        assert root.patience == 0.0
    root.close()


def test_what_cannot_be_read_is_not_kept(scratch: str, driver: str, stage: str) -> None:
    """It is left out for this caller, as long as it cannot be read."""
    os.chmod(f"{driver}{CUDA}", 0o600)
    os.mkdir(f"{scratch}/keep")
    os.chown(f"{scratch}/keep", 65534, 65534)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = discover(LinuxKernel(), DriverOptions(root=driver), f"{scratch}/keep")
            code = 0 if any(CUDA in line and "permission denied" in line for line in found.warnings) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.listdir(f"{scratch}/keep") == []


def test_a_start_is_refused_while_the_host_looks_anew(
    runc_bundle: Callable[..., object], debian: str, driver: str, launcher: str
) -> None:
    with at_prestart(runc_bundle(debian), "runc", "true") as held:  # type: ignore[arg-type]
        with Lease(f"{driver}{CUDA}") as lease:
            said = Configure(launcher, driver, "--timeout=0.5").refusal(held.pid, held.rootfs)
            assert f"held by a lease of process {lease.pid}" in said and "NVC-1102" in said
        Configure(launcher, driver)(held.pid, held.rootfs)
        held.release()


def test_nobody_gets_a_lease_while_nvcd_runs(place: Place, driver: str, stage: str) -> None:
    """Also not on the shim, which is in every slice."""
    started(place, driver, METRICS)
    for path in (f"{driver}{CUDA}", f"{driver}/usr/bin/nvidia-smi", f"{stage}/lib/nvc/vgpu/current/libcuda.so"):
        with Lease(path) as lease:
            assert REFUSED in lease.refused


def test_a_driver_root_that_is_gone_is_let_go(driver: str) -> None:
    """A driver in a container, whose file system is to be unmounted."""

    def held_there() -> int:
        links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(link.startswith((f"{driver}/", f"{driver}.old/")) for link in links)

    held = HeldFiles(LinuxKernel())
    assert held.hold(discover(LinuxKernel(), DriverOptions(root=driver, inventory=False))) == ""
    assert held_there() > 20
    os.rename(driver, f"{driver}.old")
    assert "open driver root" in held.look() and held_there() == 0
    os.rename(f"{driver}.old", driver)
    assert held.look() == "" and held_there() > 20
    held.close()
    assert held_there() == 0


def test_a_lease_for_reading_delays_nobody_who_reads(driver: str, scratch: str) -> None:
    """The kernel grants it also while others read. Installers write new files."""
    held = HeldFiles(LinuxKernel())
    options = DriverOptions(root=driver)
    with Lease(f"{driver}{CUDA}", lock="F_RDLCK") as lease:
        assert not lease.refused
        found = discover(LinuxKernel(), options, scratch)
        assert not found.warnings and CUDA in [one.path for one in found.libraries]
        assert held.hold(found) == ""
    with Lease(f"{driver}{CUDA}", lock="F_RDLCK") as lease:
        assert not lease.refused
    held.close()


def test_files_that_change_are_held_too(scratch: str, driver: str) -> None:
    options = DriverOptions(root=driver, inventory=False)
    held = HeldFiles(LinuxKernel())
    assert held.hold(discover(LinuxKernel(), options)) == ""
    tree = DriverTree(driver)
    tree.file(CUDA, shared_object("libcuda.so.1", "x86_64"))  # as an installer does
    with Lease(f"{driver}{CUDA}") as lease:
        assert not lease.refused
        assert f"{CUDA} is not held: host error: open: {CUDA}: held by a lease of process {lease.pid}" in (
            held.look()
        )
    while held.look():  # the kernel has seen by now that the holder ended
        pass
    with Lease(f"{driver}{CUDA}") as lease:
        assert REFUSED in lease.refused
    os.unlink(f"{driver}{CUDA}")
    assert held.look() == ""
    held.close()

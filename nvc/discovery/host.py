"""The places that discovery reads: the driver root, where /proc and /sys are, and where device nodes are."""

from __future__ import annotations

from nvc.base.files import Closable
from nvc.discovery.hostroot import PATIENCE, HostRoot
from nvc.kernel import Kernel
from nvc.model.request import DriverOptions

#: A driver root with this file is a simulated driver.
SIMULATION = "/proc/driver/nvidia/sim/description"


class Host(Closable):
    """Three roots, often one and the same. `close` it when done."""

    __slots__ = ("driver", "system", "devices", "simulated")

    def __init__(self, driver: HostRoot, system: HostRoot, devices: HostRoot, simulated: bool) -> None:
        self.driver = driver  # files of the driver
        self.system = system  # has /proc and /sys: the kernel's, or those of a simulated driver
        self.devices = devices  # /dev
        self.simulated = simulated

    @classmethod
    def open(cls, kernel: Kernel, options: DriverOptions) -> Host:
        """Open the roots that `options` name. Raises InitializationError if the driver root cannot be opened."""
        driver = HostRoot.at(kernel, options.root)
        driver.patience = min(PATIENCE, options.timeout)  # a runtime waits for nvc-nri for 2 s
        simulated = driver.exists(SIMULATION)
        try:
            system = driver if simulated or driver.path == "/" else HostRoot.at(kernel, "/")
            devices = driver  # which brings its own /dev, as a driver container does
            if system is not driver and not driver.character("/dev/nvidiactl", follow=True):
                devices = system
            if options.device_root and options.device_root != devices.path:
                devices = HostRoot.at(kernel, options.device_root)
        except BaseException:
            driver.close()
            raise
        return cls(driver, system, devices, simulated)

    def close(self) -> None:
        for root in (self.driver, self.system, self.devices):
            root.close()

"""What driver and GPUs this host has. Readers of its parts come without the rest: hooks need ELF alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.kernel import Kernel
    from nvc.model.facts import HostFacts
    from nvc.model.request import DriverOptions


def discover(
    kernel: Kernel, options: DriverOptions, directory: str = "", meanwhile: Callable[[], None] | None = None
) -> HostFacts:
    """The facts of the driver in `options.root`.

    `directory` replaces the runtime directory; `meanwhile` is called while NVML starts, if it must be asked. Raises
    InitializationError when the driver root or NVML is unusable, DetectionError when the host contradicts itself. A
    listed file may have been replaced since it was found: who opens one compares its identity, and on a difference
    calls `inventory.forget` and this again.
    """
    from nvc.discovery import find

    return find.find(kernel, options, directory, meanwhile)

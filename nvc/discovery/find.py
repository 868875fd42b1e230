"""What driver and GPUs this host has: the inventory's answer while its key holds, else the long way."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.types import Any, Callable
from nvc.discovery import inventory
from nvc.discovery.devices.proc import proc_files
from nvc.discovery.devices.sockets import find_ipcs
from nvc.discovery.host import Host
from nvc.discovery.key import Look, answer, host_key, looks_of
from nvc.discovery.pack import pack, unpack
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions


def find(
    kernel: Kernel, options: DriverOptions, directory: str, meanwhile: Callable[[], None] | None
) -> HostFacts:
    """The host's facts: from the inventory where nothing has changed, else from a full discovery.

    The inventory's file is in `directory`. `meanwhile` is called while NVML is waited for.
    Raises DetectionError, InitializationError.
    """
    with Host.open(kernel, options) as host:
        if not options.inventory:
            warnings = _load_kmods(host, options)
            facts, _ = _long_way(host, options, meanwhile)
        else:
            facts, warnings = _kept_or_found(host, options, directory, meanwhile)
        return facts.replace(warnings=warnings + facts.warnings) if warnings else facts


def kept_looks(options: DriverOptions, facts: HostFacts) -> tuple[Look, ...] | None:
    """The looks by which `facts` are the inventory's: they hold while each has the same answer.

    None where the inventory has other facts, or none. Raises OSError.
    """
    apart = bool(options.configuration) or options.load_kmods
    kept = inventory.load(inventory.file_name(os.stat(options.root), apart))
    if not isinstance(kept, tuple) or len(kept) != 4 or kept[2] != pack(facts):
        return None
    looks = looks_of(kept[0], options)
    if looks is None or (options.load_kmods and not _was_complete(kept)):
        return None
    return (*looks, *(("D", "d", path, state) for path, state in kept[1]))


def _load_kmods(host: Host, options: DriverOptions) -> tuple[str, ...]:
    """Modules and device nodes, where that is asked for. Returns warnings about what is still missing."""
    if not options.load_kmods:
        return ()
    from nvc.discovery.devices.kmods import load_kmods

    return load_kmods(host, options)


def _long_way(
    host: Host, options: DriverOptions, meanwhile: Callable[[], None] | None
) -> tuple[HostFacts, tuple[str, ...] | None]:
    # NVML takes longest, so the probe is under way before the modules for the rest are even loaded.
    from nvc.discovery.nvml.asking import start_first

    probe = start_first(host, options)
    from nvc.discovery.full import find_facts

    return find_facts(host, options, probe, meanwhile)


def _kept_or_found(
    host: Host, options: DriverOptions, directory: str, meanwhile: Callable[[], None] | None
) -> tuple[HostFacts, tuple[str, ...]]:
    """The facts, and warnings about modules that could not be loaded."""
    name = inventory.file_name(os.fstat(host.driver.fd), bool(options.configuration) or options.load_kmods)
    kept = inventory.load(name, directory)
    warnings: tuple[str, ...] = ()
    # Where nothing was missing then and the key still holds, nothing is now; but a channel's node is made for
    # the first that asks for it.
    loaded = not _was_complete(kept) or bool(options.imex_channels)
    if loaded:
        warnings = _load_kmods(host, options)
    key = host_key(host, options)
    facts = _from_kept(host, options, key, kept)
    if facts is not None:
        return facts, warnings
    if not loaded:
        warnings = _load_kmods(host, options)
        key = host_key(host, options)
    facts, directories = _long_way(host, options, meanwhile)
    # Something may have changed while NVML was asked: then the facts hold for now, but not for this key.
    if directories is not None and host_key(host, options) == key:
        states = tuple((path, answer(host.driver, "d", path)) for path in directories)
        kept = (key, states, pack(facts), not warnings)
        inventory.store(name, kept, directory)
    return facts, warnings


def _was_complete(kept: Any) -> bool:
    return isinstance(kept, tuple) and len(kept) == 4 and kept[3] is True


def _from_kept(host: Host, options: DriverOptions, key: tuple[Any, ...], kept: Any) -> HostFacts | None:
    try:
        kept_key, states, packed, _ = kept
        if kept_key != key or any(answer(host.driver, "d", path) != state for path, state in states):
            return None
        ipcs, warnings = find_ipcs(host.driver, options.mps_directory)
        facts = unpack(packed, ipcs, proc_files(host.system))
    except (TypeError, ValueError, IndexError):
        return None
    return facts.replace(warnings=facts.warnings + warnings) if warnings else facts

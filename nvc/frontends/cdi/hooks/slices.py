"""slice-memory: what the devices of a container are limited to, and the operations by which it is.

A document cannot have what is one container's own: quota and ledger. Nor does it know which of its devices one
container has, or what that container's variables say. All of this is in the bundle, so it is looked up there, and
each call of this hook finds the same, however many devices the container has and in whatever order hooks run.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

import nvc
from nvc.base.errors import ContainerError, InputError
from nvc.base.files import closing, replace_file
from nvc.base.rundir import runtime_directory
from nvc.base.value import Value
from nvc.frontends.cdi.hooks.bundle import slices_of
from nvc.frontends.cdi.hooks.nodes import device_nodes, mounted_nodes, refuse_mounted
from nvc.frontends.cdi.hookspec import OPTION, STEP
from nvc.kernel import O_PATH
from nvc.model.request import SliceRequest
from nvc.request.config import driver_options, load
from nvc.request.environment import bounds_of, slice_request
from nvc.request.oci import Container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.apply.target import Target
    from nvc.discovery.driver.compat import CompatLibrary
    from nvc.frontends.cdi.hooks.arguments import HookCall
    from nvc.kernel import Kernel
    from nvc.model.facts import Gpu, HostFacts, MigDevice
    from nvc.model.request import DriverOptions, Part
    from nvc.model.selection import Selection
    from nvc.model.slices.slice import Slice
    from nvc.plan.ops import Op
    from nvc.request.config import Config

#: In the runtime directory: the version of nvc and the configuration file that limits nobody.
NOTE = "config-whole"


class Asked(Value):
    """What a container is to be limited to."""

    wanted: SliceRequest  # by its CDI devices, else by its variables or the operator's defaults
    options: DriverOptions
    compat: bool  # whether the image's forward-compatibility libraries may be used
    nodes: tuple[tuple[int, int], ...]  # its character devices, in the order in which it was given them
    mounted: tuple[tuple[int, int, str], ...]  # those that come by mounts, and by which


class Limits(Value):
    """The slice of one container, and how it gets it."""

    facts: HostFacts
    slice: Slice
    libs_dir: str
    ops: tuple[Op, ...]
    compat: tuple[CompatLibrary, ...]  # of the image, for the loader to find first
    hidden: frozenset[str]  # names of libraries that are covered, since they are not counted


def asked(
    bundle: str, container: Container, document: dict[str, Any], steps: tuple[HookCall, ...]
) -> Asked | None:
    """What limits the container of a bundle, None where nothing does. `steps` are those of this call.

    The sizes of CDI devices decide; variables count where there is none. Raises InputError, ContainerError.
    """
    own = next((step for step in steps if step.name == STEP), None)
    if own is None:
        return None
    slices = dict.fromkeys(value for step in steps if step.name == STEP for value in step.all(OPTION))
    slices.update(dict.fromkeys(slices_of(document)))
    config = load()
    wanted = _parts(tuple(slices), container, config) if slices else slice_request(container, config)
    compat = config.cuda_compat_mode in ("ldconfig", "mount")
    if wanted is None:
        if slice_request(Container("/", {}), config) is None:
            _note(config)
        return None
    mounted = mounted_nodes(bundle, container.mounts)
    return Asked(wanted, driver_of(config, own), compat, device_nodes(document), mounted)


def _note(config: Config) -> None:
    """Note of the configuration that it limits nobody who does not ask for it.

    native/launcher/cdi/target.c reads the note: while the file is the same, it starts no interpreter to judge it.
    """
    directory = runtime_directory() if config.path else ""
    if not directory:
        return
    text = f"{nvc.__version__} {config.path} {config.identity.decode()}\n"
    try:
        replace_file(f"{directory}/{NOTE}", text.encode(), 0o600, sync=False)
    except OSError:
        pass  # the next start asks again


def _parts(slices: tuple[str, ...], container: Container, config: Config) -> SliceRequest:
    """What the CDI devices of a container ask for, and what holds for every container. Raises InputError."""
    from nvc.frontends.cdi.sliced import parsed
    from nvc.model.slices.variables import library_path

    parts: dict[str, Part] = {}
    for part in map(parsed, slices):
        if part.uuid in parts:
            raise InputError("nvidia.com/vgpu", part.uuid, "two slices of one device", "ask for one of them")
        parts[part.uuid] = part
    if len({part.isolation for part in parts.values()}) > 1:
        raise InputError("nvidia.com/vgpu", cause="sizes with isolation by the kernel, and without",
                         hint="ask for devices of one kind")  # fmt: skip
    return bounds_of(config).replace(
        parts=tuple(parts.values()),
        uncounted=config.vgpu_uncounted or all(part.uncounted for part in parts.values()),
        library_path=library_path(container.environment, container.program),
        label=container.mount_label,
    )


def driver_of(config: Config, step: HookCall) -> DriverOptions:
    """Where the driver is: as the document says, which was made from it. Modules are not loaded here."""
    options = driver_options(config)
    directories = tuple(step.all("library-directory"))
    return options.replace(
        root=step.last("driver-root"),
        ldcache=step.last("ldcache", options.ldcache),
        load_kmods=False,
        library_directories=directories,
    )


def limits(kernel: Kernel, target: Target, asked: Asked) -> Limits | None:
    """The slice that was asked for, None where the container has no device of this driver. Raises NvcError."""
    from nvc.discovery import discover
    from nvc.discovery.outer import refuse_slices
    from nvc.model.slices.slice import library_directory, resolve
    from nvc.plan.build import beside_shims
    from nvc.slices.make.builder import build_slice

    facts = discover(kernel, asked.options)
    refuse_slices(facts)
    own = frozenset(part.uuid for part in asked.wanted.parts)
    devices = resolve(facts, _selection(facts, asked.nodes, own), asked.wanted)
    refuse_mounted(facts, asked.mounted, frozenset(device.uuid for device in devices if not device.hidden))
    libs_dir = library_directory(facts)
    if not devices or not libs_dir:
        return None
    slice = build_slice(kernel, facts, devices, target, libs_dir, asked.wanted, asked.compat)
    if any(part.isolation for part in asked.wanted.parts):  # by a hook of its own, before this one
        slice = slice.replace(isolation=asked.wanted.parts[0].isolation)
    ops, hidden = _ops(kernel, target, facts, slice, libs_dir)
    return Limits(facts, slice, libs_dir, tuple(ops), beside_shims(slice), hidden)


def _selection(facts: HostFacts, nodes: tuple[tuple[int, int], ...], slices: frozenset[str]) -> Selection:
    """The devices whose nodes a container has, in its order, and those of `slices`."""
    from nvc.model.selection import Selection

    places = {number: place for place, number in enumerate(nodes)}
    gpus: list[tuple[int, Gpu]] = []
    mig: list[tuple[int, Gpu, MigDevice]] = []
    for gpu in facts.gpus:
        place = places.get((gpu.node.major, gpu.node.minor), len(places))
        parts = []
        for part in gpu.mig:
            at = [
                places.get((node.major, node.minor), len(places))
                for node in (part.gi_node, part.ci_node)
                if node is not None
            ]
            if part.uuid in slices or at and max(at) < len(places):
                parts.append((max(at, default=0), gpu, part))
        mig += parts
        whole = not gpu.mig_enabled and (place < len(places) or gpu.uuid in slices)
        if whole or parts:
            gpus.append((place if whole else min(parts[0][0], place), gpu))
    gpus.sort(key=lambda item: item[0])
    mig.sort(key=lambda item: item[0])
    return Selection(tuple(gpu for _, gpu in gpus), tuple((gpu, part) for _, gpu, part in mig))


def _ops(
    kernel: Kernel, target: Target, facts: HostFacts, slice: Slice, libs_dir: str
) -> tuple[list[Op], frozenset[str]]:
    """The shim over what the document has mounted, what lies beside it, and a cover for what is not counted."""
    from nvc.plan.ops import BindHostFile
    from nvc.plan.slices import is_shimmed, shim_ops
    from nvc.slices.make.builder import empty_file

    there = [library for library in facts.libraries if _is_there(kernel, target.rootfs, library.path)]
    there32 = [library for library in facts.libraries32 if _is_there(kernel, target.rootfs, library.path)]
    covered = []
    if not slice.uncounted:
        shimless = [library for library in there if not is_shimmed(library, slice)]
        covered = [*(library for library in shimless if not library.counted), *there32]
    ops = [*shim_ops(there, lambda directory: directory, libs_dir, slice)]
    if covered:
        path, identity = empty_file()
        ops += [BindHostFile(path, library.path, identity) for library in covered]
    return ops, frozenset(library.path.rpartition("/")[2] for library in covered)


def _is_there(kernel: Kernel, rootfs: int, path: str) -> bool:
    """Whether a file has content: what is left of an earlier container's mounts has none. Raises ContainerError.

    One that cannot be looked at may be a library that programs load, without the shim over it.
    """
    try:
        fd = kernel.open_in_root(rootfs, path, O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ContainerError.of("make a slice", path, error) from None
    with closing(fd):
        return os.fstat(fd).st_size > 0

"""`nvidia-ctk system`: device nodes of the driver, links to them by number, and the loader cache."""

from __future__ import annotations

import os

import click

from nvc.base.errors import InitializationError, InputError, PermissionDenied
from nvc.discovery.devices import charlinks
from nvc.discovery.devices.devfiles import (
    WantedNode,
    existing_nodes,
    missing_nodes,
    possible_controls,
    possible_nodes,
)
from nvc.discovery.devices.kmods import load_kmods, missing_modules
from nvc.discovery.driver.ldcache import CACHE_LIMIT, parse_cache
from nvc.discovery.host import Host
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions
from nvc_cli import output
from nvc_cli.ctk import Flags, debug, only
from nvc_cli.main import Commands, examples, flag, program_of, value

_DRIVER_ROOT = ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT")


_DRY_RUN = flag("--dry-run", "Tell what would be done, and do nothing.", envvar="DRY_RUN")


@click.group(cls=Commands, **examples("nvidia-ctk system create-device-nodes --control-devices"))
def system() -> None:
    """Make device nodes of the driver, and links to them."""


@system.command("create-device-nodes", cls=Flags, **examples(
    "nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules",
))
@value("--driver-root", "--root", "root", "PATH",
       "The driver root: its modprobe loads modules, its /dev gets nodes.", default="/",
       envvar=("ROOT", *_DRIVER_ROOT))  # fmt: skip
@value("--dev-root", "PATH", "Where /dev is. Default: the driver root.", envvar=("NVIDIA_DEV_ROOT", "DEV_ROOT"))
@flag("--control-devices", "control", "Create the nodes that belong to no GPU, such as nvidiactl.")
@flag("--load-kernel-modules", "load", "Load the driver's kernel modules first.")
@_DRY_RUN
@click.pass_context
def create_device_nodes(
    ctx: click.Context, root: str, dev_root: str, control: bool, load: bool, dry_run: bool
) -> None:
    """Create the driver's control device nodes that are missing, with owner and mode as the driver asks for."""
    root = _absolute("driver-root", root)
    options = DriverOptions(root=root, device_root=_absolute("dev-root", dev_root or root))
    with Host.open(LinuxKernel(), options) as host:
        if load:
            _load_modules(ctx, host, options, dry_run)
        if control:
            _make(ctx, host, possible_controls(host), dry_run)


@system.command("create-dev-char-symlinks", cls=Flags, **examples(
    "nvidia-ctk system create-dev-char-symlinks --create-all",
))
@value("--dev-char-path", "directory", "PATH", "Where links MAJOR:MINOR are made.", default="/dev/char",
       envvar="DEV_CHAR_PATH")  # fmt: skip
@value("--driver-root", "root", "PATH",
       "The driver root. Nodes are those in its /dev, if it has some, else those in /dev.", default="/",
       envvar=_DRIVER_ROOT)  # fmt: skip
@flag("--create-all", "everything",
      "Links for all nodes that the driver could have, not only for those that there are.", envvar="CREATE_ALL")
@flag("--create-device-nodes", "nodes", "With --create-all: create the control device nodes first.",
      envvar="CREATE_DEVICE_NODES")  # fmt: skip
@flag("--load-kernel-modules", "load", "With --create-all: load the driver's kernel modules first.",
      envvar="LOAD_KERNEL_MODULES")  # fmt: skip
@flag("--watch", "Refused, as in NVIDIA's program since 1.17.")
@_DRY_RUN
@click.pass_context
def create_dev_char_symlinks(
    ctx: click.Context, directory: str, root: str, everything: bool, nodes: bool, load: bool, watch: bool,
    dry_run: bool,
) -> None:  # fmt: skip
    """Create links in /dev/char to the driver's device nodes, by which systemd and runc find them by number.

    Without them, GPUs are lost when systemd reads its units again. Links that are there stay as they are.
    """
    if watch:
        raise InputError("--watch", cause="nvc does not wait for nodes", hint="add --create-all")
    if not everything:
        only("create-device-nodes", nodes, "calls with --create-all")
        only("load-kernel-modules", load, "calls with --create-all")
    _absolute("dev-char-path", directory)
    options = DriverOptions(root=_absolute("driver-root", root))
    with Host.open(LinuxKernel(), options) as host:
        if load:
            _load_modules(ctx, host, options, dry_run)
        if nodes:
            _make(ctx, host, possible_controls(host), dry_run)
        found = possible_nodes(host) if everything else existing_nodes(host.devices)
        links = charlinks.links(host.devices.path, found)
        program = program_of(ctx)
        if not links:
            output.note(program, f"no device nodes of the driver in {host.devices.path}")
        elif not dry_run:
            _check_root("make links", directory)
        for name, target in links:
            if problem := charlinks.problem(directory, name, target):
                output.warn(program, (problem,))
            elif not charlinks.is_there(directory, name):
                if not dry_run:
                    charlinks.make(directory, name, target)
                output.note(program, f"{'would link' if dry_run else 'linked'} {directory}/{name} -> {target}")


@system.command("print-ldcache", cls=Flags, **examples("nvidia-ctk system print-ldcache"))
@value("--driver-root", "root", "PATH", "The driver root.", default="/", envvar=_DRIVER_ROOT)
def print_ldcache(root: str) -> None:
    """Print the libraries in the loader cache, one path a line."""
    options = DriverOptions(root=_absolute("driver-root", root))
    host = Host.open(LinuxKernel(), options)
    try:
        entries = parse_cache(host.driver.read(options.ldcache, CACHE_LIMIT))
    except OSError as error:
        raise InitializationError.of("read loader cache", options.ldcache, error) from None
    finally:
        host.close()
    output.write("".join(f"{path}\n" for path in dict.fromkeys(path for _, _, path in entries)))


def _absolute(option: str, path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise InputError(f"--{option}", path, "want an absolute path")
    return path


def _check_root(step: str, path: str) -> None:
    if os.geteuid() != 0:
        raise PermissionDenied(step, path, "only root can")


def _load_modules(ctx: click.Context, host: Host, options: DriverOptions, dry_run: bool) -> None:
    """Load what is not loaded. Raises InitializationError, PermissionDenied."""
    missing = missing_modules(host)
    debug(ctx, f"kernel modules that are not loaded: {', '.join(missing) or 'none'}")
    if dry_run:
        for module in missing:
            output.note(program_of(ctx), f"would load {module}")
    elif missing:
        _check_root("load kernel modules", missing[0])
        warnings = load_kmods(host, options, nodes=False)
        if warnings:
            hint = f"`modprobe -v {missing[0]}`, then `dmesg`, tell why"
            raise InitializationError("load kernel modules", missing[0], "; ".join(warnings), hint)


def _make(ctx: click.Context, host: Host, wanted: tuple[WantedNode, ...], dry_run: bool) -> None:
    """Make the nodes that are missing. Raises InitializationError, PermissionDenied."""
    program, place = program_of(ctx), host.devices.path.rstrip("/")
    for node in missing_nodes(host, wanted):
        if not node.attributes.modify:
            cause = "the driver's parameter NVreg_ModifyDeviceFiles is 0"
            raise InitializationError("make device node", place + node.path, cause, "load its module with 1")
        if not dry_run:
            _check_root("make device node", place + node.path)
            try:
                node.make(host.devices)
            except OSError as error:
                raise InitializationError.of("make device node", place + node.path, error) from None
        output.note(program, f"{'would make' if dry_run else 'made'} {place}{node.path} {node.major}:{node.minor}")

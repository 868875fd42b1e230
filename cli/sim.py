"""`nvc-cli sim`: driver roots of simulated GPUs, for machines that have none."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import click

from nvc.base.columns import fitted
from nvc.base.errors import InputError, counted
from nvc.testing.sim import SimSpec, create, destroy
from nvc.testing.sim.models import MODELS
from nvc.testing.sim.report import report
from nvc_cli import output
from nvc_cli.main import Commands, examples, flag, format_option, value, values

MIB = 1 << 20
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DIRECTORY = click.argument("directory", type=click.Path())


def parse_size(text: str) -> int:
    """Bytes of `16GiB`, `16G`, `512MiB` or a plain number of bytes. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(?:iB)?", text)
    if match is None:
        raise InputError("read size", text, "not a size", "for example 16GiB or 8192MiB")
    return int(match[1]) * _UNITS[match[2]]


def parse_layouts(layout_options: tuple[str, ...], gpus: int) -> tuple[str, ...]:
    """MIG layouts by GPU from `LAYOUT` (all GPUs) and `GPU:LAYOUT`; a later one wins. Raises InputError."""
    layouts = [""] * gpus
    for one in layout_options:
        where, colon, layout = one.rpartition(":")
        if not colon:
            layouts = [layout] * gpus
        elif where.isdecimal() and int(where) < gpus:
            layouts[int(where)] = layout
        else:
            raise InputError(
                "read --mig", one, f"no GPU {where}", f"it has {counted(gpus, 'GPU')}, counted from 0"
            )
    return tuple(layouts) if layout_options else ()


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """`1,0,5` as numbers. Raises InputError."""
    words = text.split(",") if text else []
    if not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"read --{option}", text, "want numbers separated by commas")
    return tuple(int(word) for word in words)


@click.group(cls=Commands, **examples(
    "nvc-cli sim create /srv/sim --gpus 2 --model h100", "nvc-cli --root /srv/sim info",
    "nvc-cli sim show /srv/sim --format json", "nvc-cli sim destroy /srv/sim",
))
def sim() -> None:
    """Create, show and remove simulated drivers.

    A simulated driver is a driver root for --root of every command. Programs that use its libraries see GPUs, whose
    memory is limited and whose kernels take time but compute nothing.
    """


@sim.command("create", **examples(
    "nvc-cli sim create /srv/sim --gpus 8 --model h200",
    "nvc-cli sim create /srv/sim --gpus 2 --mig 7x1g.10gb",
    "nvc-cli sim create /srv/sim --gpus 2 --mig 1:3g.40gb,2x2g.20gb",
    "nvc-cli sim create /srv/sim --model t4 --memory 4GiB --imex-channel 0",
))
@_DIRECTORY
@value("--gpus", "N", "Number of GPUs.", default=1)
@click.option(
    "--model", default="h100", show_default=True, type=click.Choice(tuple(MODELS)), help="Their model."
)
@value("--memory", "SIZE", "Memory of each GPU, such as 16GiB.")
@values("--mig", "[GPU:]LAYOUT",
        "MIG devices of every GPU, or of one: 7x1g.10gb, or 3g.40gb,2x2g.20gb; on: MIG mode without devices.")
@value("--minors", "N,N,...", "Device minor of each GPU, if not its index.")
@value("--driver-version", "VERSION", "Version that the driver reports.", default=SimSpec().driver_version)
@value("--cuda-version", "MAJOR.MINOR", "CUDA version that the driver reports.", default=SimSpec().cuda_version)
@values("--imex-channel", "imex_channels", "N", "Create this IMEX channel.", type=int)
@flag("--no-persistenced", "No socket of nvidia-persistenced.")
@flag("--fabricmanager", "Make the socket of nv-fabricmanager.")
@flag("--mps", "Make the directory of the MPS control daemon.")
@flag("--no-compat32", "No 32-bit libraries.")
@value("--libdir", "PATH", "Directory of the libraries inside the root.")
@flag("--combined-cache", "Write the loader cache in its old and new formats at once.")
@flag("--without-cache", "Write no loader cache.")
@flag("--second-copy", "List the libraries twice in the loader cache.")
@flag("--stale-entry", "Name a missing library in the loader cache.")
@flag("--no-device-nodes", "No device nodes, so no root needed; GPUs stay hidden.")
@flag("--smi-wrapper", "Put a shell script before nvidia-smi on the PATH.")
@value("--seed", "TEXT", "Derive UUIDs and serial numbers from TEXT.")
def create_command(directory: str, **given: Any) -> None:
    """Create a simulated driver in DIRECTORY.

    DIRECTORY must be missing, empty, or an earlier simulated driver, which is replaced. Device nodes need root.
    """
    create(directory, spec_of(given))


def spec_of(given: dict[str, Any]) -> SimSpec:
    """The options of `sim create` as what they ask for. Raises InputError."""
    if given["combined_cache"] and given["without_cache"]:
        raise InputError("read options", "--without-cache", "contradicts --combined-cache", "leave out one of them")
    same = {name: given[name] for name in SimSpec._fields if name in given}
    same |= {name: not given[f"no_{name}"] for name in ("persistenced", "compat32", "device_nodes")}
    return SimSpec(**same).replace(
        memory=parse_size(given["memory"]) if given["memory"] else 0,
        mig=parse_layouts(given["mig"], given["gpus"]),
        minors=parse_numbers("minors", given["minors"]),
        cache="none" if given["without_cache"] else "combined" if given["combined_cache"] else "new",
    )


@sim.command("destroy", **examples("nvc-cli sim destroy /srv/sim"))
@_DIRECTORY
def destroy_command(directory: str) -> None:
    """Remove the simulated driver root DIRECTORY. It must not be in use."""
    destroy(directory)


@sim.command("show", **examples("nvc-cli sim show /srv/sim", "nvc-cli sim show /srv/sim --format json"))
@_DIRECTORY
@format_option("table")
def show_command(directory: str, form: str) -> None:
    """Show the GPUs of a simulated driver, and the processes that use them.

    Process ids are those of the process's own pid namespace.
    """
    found = report(directory)
    if form == "table":
        output.write(table(found, output.columns()))
    else:
        output.write(output.document_text(document(found), form))


def document(found: SimpleNamespace) -> dict[str, Any]:
    """The report as JSON values: field names are kept, sizes are bytes."""
    gpus = [{**vars(gpu), "mig": [vars(mig) for mig in gpu.mig]} for gpu in found.gpus]
    return {**vars(found), "gpus": gpus, "processes": [vars(process) for process in found.processes]}


def table(found: SimpleNamespace, width: int = 0) -> str:
    """The report for people, in at most `width` columns; 0: any number. Memory is in MiB."""
    head = f"driver {found.driver_version} (simulated), CUDA {found.cuda_version}; memory in MiB\n\n"
    rows: list[tuple[str, ...]] = [("DEVICE", "MINOR", "BUS", "USED", "MEMORY", "MODEL", "UUID")]
    for gpu in found.gpus:
        name = gpu.name.removeprefix("NVIDIA ").removesuffix(" (simulated)")
        bus = gpu.bus_id.removeprefix("0000")
        rows.append((str(gpu.index), str(gpu.minor), bus, *_sizes(gpu), name, gpu.uuid))
        for mig in gpu.mig:
            instance = f"gi {mig.gpu_instance} ci {mig.compute_instance}"
            rows.append((f"{gpu.index}:{mig.index}", "", instance, *_sizes(mig), f"MIG {mig.profile}", mig.uuid))
    text = head + fitted(rows, width, ("MINOR", "BUS"), middle=("MODEL",), short=14)
    if not found.processes:
        return text
    rows = [("PID", "DEVICE", "USED", "BUSY ms")]
    for process in found.processes:
        where = str(process.gpu) if process.mig < 0 else f"{process.gpu}:{process.mig}"
        rows.append((str(process.pid), where, str(process.used // MIB), str(process.busy_ns // 1000000)))
    return f"{text}\n{fitted(rows, width)}"


def _sizes(device: Any) -> tuple[str, str]:
    return str(device.used // MIB), str(device.memory // MIB)

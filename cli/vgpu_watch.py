"""`nvc-cli vgpu ls`, `show` and `top`: slices as they are."""

from __future__ import annotations

import posix
import time

import click

from nvc.base.errors import NvcError, counted
from nvc.kernel import Kernel
from nvc.model.slices.slice import SliceDevice
from nvc.model.slices.suspension import Suspension
from nvc.slices.store.status import SliceStatus
from nvc_cli import arguments, completion, output
from nvc_cli.main import Seconds, flag, format_option, program_of, value
from nvc_cli.vgpu_group import ALL, FORMAT, command, everybody, operator_kernel, shown

FIRST = 0.25  # seconds until the first table of `top`


@command("ls", "nvc-cli vgpu ls", "nvc-cli vgpu ls --all --format json", "nvc-cli vgpu ls -q")
@ALL
@format_option("table", "wide", "name")
@click.option("--quiet", "-q", "form", flag_value="name", help="Names only, as --format name.")
@flag("--no-headers", "Rows only.")
@click.pass_context
def ls_command(ctx: click.Context, everything: bool, form: str, no_headers: bool) -> None:
    """List slices, their limits, and the use that their processes report.

    On a terminal, the table leaves out columns for which there is no room; --format wide has all of them.
    """
    found = shown(everybody(ctx, operator_kernel()), everything)
    if form == "name":
        output.write("".join(f"{tenant.name}\n" for tenant in found))
        return
    if form in ("json", "yaml"):
        from nvc.slices.show.document import document

        output.write(output.document_text({"slices": [document(tenant) for tenant in found]}, form))
        return
    from nvc.slices.show import tables

    width = 0 if form == "wide" else output.columns()
    if no_headers:
        output.write(tables.slices(found, time.time(), width).partition("\n")[2])
        return
    text = tables.slices(found, time.time(), width) + tables.enforcement(found)
    output.write(output.emphasised(text))


@command("show", "nvc-cli vgpu show web", "nvc-cli vgpu show 4242 --format json")
@click.argument("slice_name", metavar="SLICE", shell_complete=completion.slices)
@FORMAT
@click.pass_context
def show_command(ctx: click.Context, slice_name: str, form: str) -> None:
    """Show one slice.

    SLICE is its name, the name or id of its container, the beginning of that id or of its key, or the id
    of a process in it.
    """
    from nvc.model.request import TEXTS
    from nvc.model.slices.sizes import size_text
    from nvc.slices.client.nvcd import violations_of
    from nvc.slices.show import rows, tables
    from nvc.slices.show.document import document
    from nvc.slices.store.status import find

    tenant = find(everybody(ctx, operator_kernel()), slice_name)
    if form != "table":
        found = violations_of(tenant.entry.key)
        verification = {"ongoing": [text for _, text in found.ongoing], "past": list(found.past)}
        more = {"verification": verification, "suspensions": found.suspensions}
        output.write(output.document_text({**document(tenant), **more}, form))
        return
    entry = tenant.entry
    seen = violations_of(entry.key)
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
    lines = [
        ("slice", tenant.name), *container_lines(tenant), ("key", entry.key), ("rootfs", entry.rootfs or "-"),
        ("libraries", entry.libs_dir), ("quota", entry.quota), ("created", created),
        ("processes", f"{rows.processes_text(tenant)} use a GPU" if tenant.alive else "gone"),
    ]  # fmt: skip
    told = [
        f"{row.option.removeprefix('vgpu-')} {text}"
        for name, row in TEXTS.items()
        if (text := getattr(entry, name))
    ]
    lines += [("settings" if not place else "", text) for place, text in enumerate(told)]
    if tenant.suspension is not None:
        lines += suspension_lines(tenant.suspension)
    for device in tenant.devices:
        memory = size_text(device.memory) if device.memory else "unknown"
        used = rows.used_text(tenant, device, size_text)
        lines.append((f"device {device.index}", f"{device.uuid}  {device.name}"))
        if device.hidden:
            lines.append(("", "hidden: it was not asked for"))
            continue
        used += f" and {size_text(device.moved)} on the host" if device.moved else ""
        refused = f", {device.refused} requests refused" if device.refused else ""
        lines.append(("", f"limit {rows.limit_text(device, size_text)} of {memory}, used {used}{refused}"))
        if device.reserved:
            lines.append(("", f"{size_text(device.reserved)} reserved"))
        if keepers := tenant.keepers(device):
            lines.append(("", f"limited by {', '.join(keepers)}"))
        lines.append(("", tables.time_text(device)))
        lines += [("", text) for text in seen.lines(device.uuid, device.denied)]
        if tenant.alive:
            lines.append(("", tables.received_text(device, time.time() - entry.created)))
    lines += [("found" if not place else "", text) for place, text in enumerate(seen.past)]
    if tenant.problem:
        lines.append(("problem", tenant.problem))
    text = "".join(
        f"{name:<11}{''.join(c if c.isprintable() else '?' for c in value)}\n" for name, value in lines
    )
    held = tables.processes((tenant,))
    output.write(text + (f"\n{held}" if held else ""))


def suspension_lines(one: Suspension) -> list[tuple[str, str]]:
    """What is known of a slice that does not run."""
    from nvc.model.slices.sizes import size_text

    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.since))
    whose = counted(len(one.pids), "process", "processes")
    text = f"since {since}, {size_text(one.bytes)} of {whose} in the host's memory"
    return [(one.state, text), *([("", one.problem)] if one.problem else [])]


def container_lines(tenant: SliceStatus) -> list[tuple[str, str]]:
    """What is known of the container or program of a slice."""
    known = tenant.container
    if tenant.entry.program:
        return [("program", tenant.entry.program)]
    lines = (
        ("engine", " ".join(filter(None, (known.engine, known.realm)))),
        ("container", " ".join(filter(None, (known.name, known.id if known.id != known.name else "")))),
        ("pod", "/".join(filter(None, (known.namespace, known.pod)))),
    )
    return [line for line in lines if line[1]]


@command("top", "nvc-cli vgpu top", "nvc-cli vgpu top --once", "nvc-cli vgpu top -n 60 --format json > log")
@flag("--once", "Print tables once, also on a terminal.")
@value("--count", "-n", "N", "End after N tables.", default=None, type=click.IntRange(1))
@value("--interval", "-d", "SECONDS", "Time between two tables.", default=1.0, type=Seconds(0.1, 3600))
@ALL
@FORMAT
@click.pass_context
def top_command(
    ctx: click.Context, once: bool, count: int | None, interval: float, everything: bool, form: str
) -> None:
    """Watch GPUs, slices and their processes.

    On a terminal, `q` quits and `?` lists the keys. Elsewhere, and with --once, tables are plain text; with
    --format json, each is one line of JSON.

    USED of a device is what its slices use. PROMISED is the sum of their limits. CORES is the cap of a slice,
    and ENTITLED its entitlement. UTILIZED is its utilization since the previous table. WAITED is the part of
    the time in which it was stopped, or its launches were held back. Where the shim keeps time, UTILIZED also
    counts the time in which kernels of others ran before its own.
    """
    from nvc.slices.show.live import LiveView, document
    from nvc.slices.show.tables import plain_top

    kernel = operator_kernel()
    host, notes = _host_devices(ctx, kernel)
    watcher = LiveView(kernel, interval, host)
    if form == "table" and not once and _interactive(ctx):
        from nvc_cli.vgpu_screen import run

        watcher.notes = notes
        run(watcher.look, interval, count or 0, output.coloured(), everything)
        return
    output.warn(program_of(ctx), notes)
    picture = watcher.look()
    left, pause = 1 if once else count or 0, min(interval, FIRST)
    while True:
        time.sleep(pause)
        picture, pause = watcher.look(), interval
        output.warn(program_of(ctx), picture.warnings)
        found = shown(picture.everybody, everything)
        if form == "table":
            gone = len(picture.everybody) - len(found)
            output.write(plain_top(found, picture.now, picture.received, output.columns(), gone, host))
        else:
            output.write(output.one_of_many(document(picture.replace(everybody=found)), form))
        left -= 1
        if left == 0:
            return
        if form == "table":
            output.write("\n")


def _host_devices(ctx: click.Context, kernel: Kernel) -> tuple[tuple[SliceDevice, ...], tuple[str, ...]]:
    """The devices of the host, or why they are not known: then those of slices are shown."""
    from nvc.discovery import discover
    from nvc.slices.admin.device_policy import devices_named

    try:
        facts = discover(kernel, arguments.driver_options(ctx.obj["globals"]))
        return devices_named(facts, ("all",)), ()
    except NvcError as error:
        return (), (f"GPUs without slices are not shown: {error}",)


def _interactive(ctx: click.Context) -> bool:
    """Whether there is somebody at a terminal that can be drawn on."""
    if not (posix.isatty(0) and posix.isatty(1)) or posix.environ.get(b"TERM", b"dumb") == b"dumb":
        return False
    try:
        import curses  # noqa: F401
    except ImportError:
        output.say(program_of(ctx), "this Python has no `curses`: tables follow each other instead")
        return False
    return True

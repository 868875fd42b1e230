"""`nvc-cli vgpu ls`, `show` and `top`: slices as they are."""

from __future__ import annotations

import posix
import time

import click

from nvc.errors import InputError
from nvc_cli import completion, output
from nvc_cli.boot import INTERRUPTED
from nvc_cli.main import Seconds, program_of
from nvc_cli.vgpu_group import ALL, FORMAT, command, everybody, operator_kernel, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.vgpu.tenants import Tenant

CLEAR = "\x1b[H\x1b[2J"
FIRST = 0.25  # seconds until the first table of `top`
MOST_READINGS = 100_000


def columns() -> tuple[int, int]:
    """Width and height of what is written to; a file has no height."""
    try:
        width, height = posix.get_terminal_size(1)
    except OSError:
        return output.WIDTH, 0
    return (width, height) if width else (output.WIDTH, 0)  # a terminal may not know its size


@command("ls", "nvc-cli vgpu ls", "nvc-cli vgpu ls --all --format json")
@ALL
@FORMAT
@click.pass_context
def ls_command(ctx: click.Context, everything: bool, form: str) -> None:
    """List slices: limits, and what their processes say that they use."""
    found = shown(everybody(ctx, operator_kernel()), everything)
    if form != "table":
        from nvc.vgpu.tenants import document

        output.write(output.document_text({"slices": [document(tenant) for tenant in found]}, form))
        return
    from nvc.vgpu import top

    output.write(output.emphasised(top.slices(found, time.time(), columns()[0])))


@command("show", "nvc-cli vgpu show f0000154", "nvc-cli vgpu show 4242 --format json")
@click.argument("slice_name", metavar="SLICE", shell_complete=completion.slices)
@FORMAT
@click.pass_context
def show_command(ctx: click.Context, slice_name: str, form: str) -> None:
    """Show one slice.

    SLICE is its name, the name or id of its container, the beginning of that id or of its key, or a process in it.
    """
    from nvc.vgpu import top
    from nvc.vgpu.sizes import size_text
    from nvc.vgpu.tenants import document, find

    tenant = find(everybody(ctx, operator_kernel()), slice_name)
    if form != "table":
        output.write(output.document_text(document(tenant), form))
        return
    entry = tenant.entry
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
    lines = [
        ("slice", tenant.name), *container_lines(tenant), ("key", entry.key), ("rootfs", entry.rootfs or "-"),
        ("libraries", entry.libs_dir), ("quota", entry.quota), ("created", created),
        ("processes", f"{top.processes_text(tenant)} use a GPU" if tenant.alive else "gone"),
    ]  # fmt: skip
    for device in tenant.devices:
        memory = size_text(device.memory) if device.memory else "unknown"
        used = top.used_text(tenant, device)
        lines.append((f"device {device.index}", f"{device.uuid}  {device.name}"))
        if device.hidden:
            lines.append(("", "hidden: it was not asked for"))
            continue
        lines.append(("", f"limit {top.limit_text(device)} of {memory}, used {used}"))
        lines.append(("", top.time_text(device)))
        if tenant.alive:
            lines.append(("", top.received_text(device, time.time() - entry.created)))
    if tenant.problem:
        lines.append(("problem", tenant.problem))
    text = "".join(
        f"{name:<11}{''.join(c if c.isprintable() else '?' for c in value)}\n" for name, value in lines
    )
    output.write(text + ("\n" + top.processes((tenant,)) if tenant.accounts else ""))


def container_lines(tenant: Tenant) -> list[tuple[str, str]]:
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


@command("top", "nvc-cli vgpu top", "nvc-cli vgpu top --once")
@click.option("--once", is_flag=True, help="Print it once and end.")
@ALL
@click.option("--interval", default=1.0, show_default=True, type=Seconds(0.1, 3600), metavar="SECONDS")
@click.pass_context
def top_command(ctx: click.Context, once: bool, everything: bool, interval: float) -> None:
    """Show devices, slices and their processes, again and again.

    ASKED is the cap or weight of a slice, EXPECTED the part of the device's time that it gets when everybody is
    busy, RECEIVED the part that it had since the table before, WAITED how much its launches were held back. Where
    standard output is no terminal, tables follow each other as plain text.
    """
    from nvc.vgpu.history import maxima
    from nvc.vgpu.received import expected, reading, received
    from nvc.vgpu.top import Shares, screen

    kernel = operator_kernel()
    terminal = posix.isatty(1)
    old = reading(everybody(ctx, kernel), time.monotonic_ns())
    pause = min(interval, FIRST)
    while True:
        time.sleep(pause)
        found = shown(everybody(ctx, kernel), everything)
        new = reading(found, time.monotonic_ns())
        shares = Shares(received(old, new), expected(found, maxima(found)))
        width, height = columns()
        whole = terminal and not once
        text = screen(found, time.time(), shares, width, height - 1 if whole else 0)
        output.write(f"{CLEAR}{text}" if whole else text)
        if once:
            return
        old, pause = new, interval
        if not terminal:
            output.write("\n")


@command(
    "report",
    "nvc-cli vgpu report --seconds 60 --output shares.svg",
    "nvc-cli vgpu report f0000154 4242 --seconds 10 --interval 0.5",
)
@click.argument("names", metavar="[SLICE...]", nargs=-1, shell_complete=completion.slices)
@click.option(
    "--seconds", default=10.0, show_default=True, type=Seconds(0.2, 86400), metavar="SECONDS",
    help="How long to look.",
)  # fmt: skip
@click.option(
    "--interval", default=0.2, show_default=True, type=Seconds(0.05, 3600), metavar="SECONDS",
    help="Time between two readings.",
)  # fmt: skip
@click.option("--output", "path", default="", metavar="FILE.svg", help="Draw it here: shares over time.")
@FORMAT
@click.pass_context
def report_command(
    ctx: click.Context, names: tuple[str, ...], seconds: float, interval: float, path: str, form: str
) -> None:
    """Measure what slices receive of their devices' time; without SLICE, all of them.

    In the drawing, whole lines are what was received and dashed ones what is expected when everybody is busy.
    Who interrupts it gets what was measured until then.
    """
    if path and not path.endswith(".svg"):
        hint = "write it as .svg, and convert that where need be: rsvg-convert shares.svg > shares.png"
        raise InputError("--output", path, "only SVG is drawn", hint)
    if interval > seconds:
        raise InputError("--interval", f"{interval:g}", f"longer than --seconds {seconds:g}", "ask for less")
    if interval * MOST_READINGS < seconds:
        raise InputError(
            "--interval", f"{interval:g}", f"more than {MOST_READINGS} readings", "ask for fewer"
        )
    from nvc.vgpu import plot
    from nvc.vgpu.history import watch
    from nvc.vgpu.tenants import find

    kernel = operator_kernel()
    found = everybody(ctx, kernel)
    keys = tuple(find(found, name).entry.key for name in names)
    drawing = _opened(path) if path else -1  # before a day is spent on what nothing can take
    tracks, looked = watch(kernel, keys, seconds, interval)
    if form != "table":
        made = {"seconds": looked, "tracks": [track.document() for track in tracks]}
        output.write(output.document_text(made, form))
    else:
        from nvc.vgpu.top import tracks_table

        output.write(output.emphasised(tracks_table(tracks, columns()[0])))
        if not tracks:
            why = "no slice was measured: none has used a device, or all are under native or without a cap or nvcd"
            output.say(program_of(ctx), why)
    if drawing >= 0:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        title = f"Shares of time received, {looked:g} s until {when}"
        text = plot.svg(title, tuple(track.series for track in tracks), looked)
        try:
            with open(drawing, "w", encoding="utf-8") as out:
                if out.seekable():
                    out.truncate()
                out.write(text)
        except OSError as error:
            raise output.OutputError.of("write", path, error) from None
    if looked < seconds:
        ctx.exit(INTERRUPTED)


def _opened(path: str) -> int:
    """A descriptor for the file, which is not changed yet. Raises OutputError."""
    try:
        return posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o666)
    except OSError as error:
        raise output.OutputError.of("write", path, error) from None

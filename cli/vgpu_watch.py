"""`nvc-cli vgpu ls`, `show` and `top`: slices as they are."""

from __future__ import annotations

import posix
import time

import click

from nvc_cli import output
from nvc_cli.vgpu_group import FORMAT, command, everybody, operator_kernel

CLEAR = "\x1b[H\x1b[2J"


@command("ls", "nvc-cli vgpu ls", "nvc-cli vgpu ls --format json")
@FORMAT
@click.pass_context
def ls_command(ctx: click.Context, form: str) -> None:
    """List slices: limits, and what their processes say that they use."""
    found = everybody(ctx, operator_kernel())
    if form == "json":
        from nvc.vgpu.tenants import document

        output.write(output.json_text({"slices": [document(tenant) for tenant in found]}))
        return
    from nvc.vgpu import top

    output.write(output.emphasised(top.slices(found, time.time())))


@command("show", "nvc-cli vgpu show f0000154", "nvc-cli vgpu show 4242 --format json")
@click.argument("slice_name", metavar="SLICE")
@FORMAT
@click.pass_context
def show_command(ctx: click.Context, slice_name: str, form: str) -> None:
    """Show one slice. SLICE is its name, the beginning of its key, or a process in it."""
    from nvc.vgpu import top
    from nvc.vgpu.sizes import size_text
    from nvc.vgpu.tenants import document, find

    tenant = find(everybody(ctx, operator_kernel()), slice_name)
    if form == "json":
        output.write(output.json_text(document(tenant)))
        return
    entry = tenant.entry
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
    lines = [
        ("slice", tenant.short), ("key", entry.key), ("rootfs", entry.rootfs or "(a program)"),
        ("libraries", entry.libs_dir), ("quota", entry.quota), ("created", created),
        ("processes", f"{top.processes_text(tenant)} use a GPU" if tenant.alive else "gone"),
    ]  # fmt: skip
    for device in tenant.devices:
        memory = size_text(device.memory) if device.memory else "unknown"
        used = top.used_text(tenant, device)
        lines.append((f"device {device.index}", f"{device.uuid}  {device.name}"))
        lines.append(("", f"limit {top.limit_text(device)} of {memory}, used {used}"))
        lines.append(("", top.time_text(device)))
    if tenant.problem:
        lines.append(("problem", tenant.problem))
    text = "".join(
        f"{name:<11}{''.join(c if c.isprintable() else '?' for c in value)}\n" for name, value in lines
    )
    output.write(text + ("\n" + top.processes((tenant,)) if tenant.accounts else ""))


@command("top", "nvc-cli vgpu top", "nvc-cli vgpu top --once")
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 3600), metavar="SECONDS"
)
@click.pass_context
def top_command(ctx: click.Context, once: bool, interval: float) -> None:
    """Show devices, slices and their processes, again and again.

    Where standard output is no terminal, tables follow each other as plain text.
    """
    from nvc.vgpu.top import screen

    kernel = operator_kernel()
    terminal = posix.isatty(1)
    while True:
        text = screen(everybody(ctx, kernel), time.time())
        output.write(f"{CLEAR}{text}" if terminal and not once else text)
        if once:
            return
        time.sleep(interval)
        if not terminal:
            output.write("\n")

"""`nvc-cli vgpu trace`: who had each GPU lately, to the microsecond, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import time

import click

from nvc.base.errors import InitializationError
from nvc_cli.main import program_of, value
from nvc_cli.output import say
from nvc_cli.vgpu_group import command, everybody, operator_kernel
from nvc_cli.vgpu_report import check_writable, write_file

PATIENCE = 5.0  # seconds for the timekeeper's answer
AGAIN = 0.05  # seconds between two looks at whether it is there


def name_of(pid: int) -> str:
    """The name of a process; "" of one that has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


@command("trace", "nvc-cli vgpu trace --output gpu.json", "nvc-cli vgpu trace --seconds 2 --output gpu.json")
@value("--seconds", "SECONDS", "How far back.", default=10, type=click.IntRange(1, 60))
@click.option("--output", "path", required=True, metavar="FILE.json", help="Write the trace into this file.")
@click.pass_context
def trace_command(ctx: click.Context, seconds: int, path: str) -> None:
    """Write who had each GPU in the last seconds, by the driver's own log.

    Perfetto (ui.perfetto.dev) and chrome://tracing open the file: each GPU has a row for each process. It shows who
    had the GPU while another one waited. It needs nvcd, and the driver's scheduler.
    """
    from nvc.slices.client.nvcd import ask, by_shim
    from nvc.slices.show.trace import document

    tenants = everybody(ctx, operator_kernel())
    check_writable(path)
    uuids = {device.uuid for tenant in tenants if tenant.alive for device in tenant.devices}
    asked = ask("trace", PATIENCE, back=seconds).get("asked")
    if not asked or uuids and all(map(by_shim, uuids)):
        raise InitializationError("trace GPUs", "", "the shim keeps time here", "`nvcd --state` says why")
    end = time.monotonic() + PATIENCE
    while (records := (found := ask("traced", PATIENCE)).get("records")) is None:
        if time.monotonic() > end:
            raise InitializationError("trace GPUs", "", "nvcd's timekeeper does not answer", "try again")
        time.sleep(AGAIN)
    if found.get("problem"):
        raise InitializationError("trace GPUs", "", str(found["problem"]), "try again, with fewer --seconds")
    slices = {pid: tenant.name for tenant in tenants for pid in tenant.pids}
    indices = {device.uuid: device.index for tenant in tenants for device in tenant.devices}
    names = {pid: name_of(pid) for pid in {pid for _, _, _, pid in records}}
    write_file(path, json.dumps(document(records, names, slices, indices)) + "\n")
    say(program_of(ctx), f"{len(records)} changes of {len({one[0] for one in records})} GPUs in {path}")

"""`nvc-cli vgpu advise`: which policy fits what slices do now."""

from __future__ import annotations

import time
from typing import Any

import click

from nvc.base.errors import InitializationError, InputError
from nvc_cli import completion, output
from nvc_cli.main import Seconds, filled, flag, program_of, value
from nvc_cli.vgpu_group import FORMAT, command, operator_kernel
from nvc_cli.vgpu_report import Progress


def _state() -> tuple[dict[str, Any], tuple[str, ...]]:
    """What nvcd says now, and a warning if it says nothing."""
    from nvc.slices.client.nvcd import PATIENCE, ask

    try:
        return ask("state", PATIENCE), ()
    except InitializationError as error:
        return {}, (f"how busy GPUs are is not known: {error.cause}",)


@command("advise", "nvc-cli vgpu advise", "nvc-cli vgpu advise 0 --trusted --seconds 10")
@click.argument("gpu", metavar="[GPU]", default="", callback=filled, shell_complete=completion.devices)
@flag("--trusted", "Tenants trust each other: also consider concurrent, where a fault of one ends all.")
@value("--seconds", "SECONDS", "Duration of the measurement.", default=2.0, type=Seconds(0.2, 3600))
@FORMAT
@click.pass_context
def advise_command(ctx: click.Context, gpu: str, trusted: bool, seconds: float, form: str) -> None:
    """Measure what slices do, and say which policy fits.

    GPU is an index or UUID; without it, every GPU with slices. UTILIZED is the part of the GPU's time that a slice
    used. STEP is how long it has the GPU until it has nothing to run, where that is less than its timeslice.
    """
    from nvc.slices.policy.advice import advise
    from nvc.slices.show.advice import document, situations, text
    from nvc.slices.show.live import LiveView

    watcher = LiveView(operator_kernel(), seconds)
    progress = Progress(seconds)
    picture, before = watcher.look(), _state()[0]
    begin = time.monotonic()
    try:
        while (left := begin + seconds - time.monotonic()) > 0:
            progress.measured(seconds - left, len(picture.everybody))
            time.sleep(min(left, output.OFTEN))
    finally:
        progress.end()
    picture = watcher.look()
    state, problem = _state()
    found = situations(picture, state, before)
    output.warn(program_of(ctx), (*picture.warnings, *problem) if found else picture.warnings)
    if gpu:
        found = tuple(one for one in found if gpu.lower() in (one.index, one.uuid.lower()))
        if not found:
            raise InputError(
                "GPU", gpu, "no slice with a process uses it", "`nvc-cli vgpu top` lists those in use"
            )
    advices = tuple(advise(one, trusted) for one in found)
    if form == "table" and not advices:
        output.say(program_of(ctx), "no slice has a process: start programs, and ask while they work")
    else:
        output.show(form, lambda: document(advices, seconds), lambda width: text(advices, width))
